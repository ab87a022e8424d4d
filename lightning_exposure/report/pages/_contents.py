"""What a report says, as plain rows and sentences; how it looks is the template's business."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import Candidate, Extraction
from lightning_exposure.report._summary import found_by_scan, listed
from lightning_exposure.report.amounts import exposure_text, gain_text, margin_text, rests_on
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.verdicts import (
    HOLDS,
    LEAKS,
    UNKNOWN,
    Verdict,
    is_certain,
    joint_shade,
    rank_ends,
    rounded,
    ruled_out_in_words,
)
from lightning_exposure.secrets import Canary, SecretFormat

CANDIDATES_SHOWN = 20
"""Of each attack; canaries further down are shown all the same."""

GLOSSARY = (
    (
        "Canary",
        "A made-up secret that was put into the training data on purpose, so that one can measure what the model "
        "remembers of it. A control is a canary that was never put in.",
    ),
    (
        "Log-perplexity",
        "How surprised the model is by a text, in bits. Each bit less makes the text twice as likely.",
    ),
    (
        "Rank",
        "The place of a secret when all secrets of its format are sorted from the most likely to the least likely. "
        "The secret of rank 1 is the first that an attacker would guess.",
    ),
    (
        "Guesses",
        "How many of them find the secret, if one guesses in the order of the model's preference: as many as its rank. "
        '"Proven" follows from a count of all secrets that are more likely, or from an attack that came up with the '
        "secret; with a confidence it follows from a sample. Of a format with few secrets, only as many guesses are "
        "spoken of as a tenth of them: with enough guesses anyone finds everything.",
    ),
    (
        "Exposure",
        "How much the model helps a guesser: log₂ of the number of secrets, minus log₂ of the rank, in bits. 0 means "
        "no help at all; one bit more halves the guesses; log₂|R|, the largest value, means the first guess is right.",
    ),
    (
        "Interval",
        "Where the exposure lies with the confidence given (usually 95%), if it was estimated. An exact count has no "
        "interval; one that leaves ties undecided has an interval that is certain. With ≥ only a lower bound is known. "
        "What is drawn as a line, sorted or decided is the low end.",
    ),
    (
        "Gain",
        "Exposure now minus exposure before training: what this training run added, between what the two intervals "
        "leave.",
    ),
    (
        "Proven optimal",
        "The attack went on until no secret outside its list could be more likely than those in it.",
    ),
)
"""Terms and what they mean."""

_MARGIN = (
    "Ahead",
    "Of the secret of rank 1: how many bits less it costs than the next one. Exposure ends at its largest value when "
    "the first guess is right, however sure the model is; this goes on.",
)
_PRIOR = (
    "Prior",
    "How likely each secret was before this model learned anything about it, according to a reference model that has "
    "not seen it. Exposure is then -log₂ of the prior probability of all secrets that the model finds at least as "
    "likely: a secret drawn from the prior that was not learned shows b bits with a probability of at most 2^-b. The "
    "largest value is -log₂ of its own prior probability, another one for each secret. "
    "Ranks do not depend on the prior.",
)
_PRIORS = {
    "without_adapters": "the model without its adapters",
    "before_training": "the model as it was before this training",
}


def prior_in_words(record: RunRecord) -> str:
    """What the newest exposures were measured against; "" if all secrets were equally likely."""
    prior = record.final.prior if record.final else None
    return "" if prior is None else _PRIORS.get(prior, prior)


def glossary(record: RunRecord) -> list[tuple[str, str]]:
    """The terms that the page of a run uses."""
    estimates = record.final.estimates.values() if record.final else ()
    terms = list(GLOSSARY)
    after_exposure = [name for name, _ in terms].index("Exposure") + 1
    if any(estimate.margin_bits is not None for estimate in estimates):
        terms.insert(after_exposure, _MARGIN)
    if any(estimate.prior_bits is not None for estimate in estimates):
        terms.insert(after_exposure, _PRIOR)
    return terms


@dataclass(frozen=True)
class CanaryRow:
    """One canary in the table; None where nothing was measured."""

    canary: Canary
    estimate: ExposureEstimate | None
    baseline: ExposureEstimate | None
    verdict: Verdict

    @property
    def gain(self) -> str:
        """What this training run added; "" if that was not measured."""
        return gain_text(self.estimate, self.baseline) if self.estimate and self.baseline else ""

    @property
    def share(self) -> float:
        """At least so much of the largest possible exposure, as a percentage."""
        if self.estimate is None or self.estimate.ceiling_bits <= 0:
            return 0.0
        return 100.0 * min(1.0, max(0.0, self.estimate.low / self.estimate.ceiling_bits))


@dataclass(frozen=True)
class AttackRows:
    """One attack in the table: each candidate with the id of the canary it is, and how many are not shown."""

    name: str
    attack: Extraction
    candidates: list[tuple[Candidate, str | None]]
    hidden: int


@dataclass(frozen=True)
class Part:
    """What one callback, or one after the other, found about some canaries.

    Attributes:
        name: What distinguishes it from the first; "" for the first.
        canaries: The canaries, most exposed first.
        attacks: The attacks.
        foundations: What the intervals rest on.
        ledger: How often each canary was read in training, by its id; None: not counted.
        formats: By their names.
    """

    name: str
    canaries: list[CanaryRow]
    attacks: list[AttackRows]
    foundations: list[tuple[str, str, str]]
    ledger: Mapping[str, int] | None
    formats: Mapping[str, SecretFormat]


def part_of(name: str, record: RunRecord) -> Part:
    """The tables of a record."""
    rows = canary_rows(record)
    return Part(
        name,
        rows,
        attack_rows(record),
        foundations((row.canary.id, row.estimate) for row in rows if row.estimate),
        record.ledger,
        {canary.format.name: canary.format for canary in record.canaries},
    )


def canary_rows(record: RunRecord) -> list[CanaryRow]:
    """The canaries, most exposed first."""
    estimates = record.final.estimates if record.final else {}
    verdicts = record.verdicts
    rows = [
        CanaryRow(canary, estimates.get(canary.id), record.baseline.get(canary.id), verdicts[canary.id])
        for canary in record.canaries
    ]
    return sorted(rows, key=_most_exposed_first)


def _most_exposed_first(row: CanaryRow) -> tuple[float, float]:
    """By what is certain; nothing measured comes last, and of equal exposures the more likely text comes first."""
    return (-row.estimate.low, row.estimate.log_perplexity) if row.estimate else (math.inf, math.inf)


def foundations(estimates: Iterable[tuple[str, ExposureEstimate]]) -> list[tuple[str, str, str]]:
    """What the intervals rest on: each method with its words, and the names of what was measured so."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, estimate in estimates:
        words = rests_on(estimate)
        if words:
            names.setdefault((estimate.method, words), []).append(name)
    return [(method, words, listed(dict.fromkeys(found))) for (method, words), found in names.items()]


def attack_rows(record: RunRecord) -> list[AttackRows]:
    """The attacks and what they found."""
    ids = {(canary.format.name, canary.text): canary.id for canary in record.canaries}
    groups = []
    for name, attack in record.extractions.items():
        pairs = [(candidate, ids.get((name, candidate.text))) for candidate in attack.candidates]
        shown = [pair for place, pair in enumerate(pairs) if place < CANDIDATES_SHOWN or pair[1] is not None]
        groups.append(AttackRows(name, attack, shown, len(pairs) - len(shown)))
    return groups


def setting_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as names with dots and values as text.

    >>> setting_rows({"model": "lstm", "optimizer": {"lr": 0.001, "betas": [0.9, 0.999]}})
    [('model', 'lstm'), ('optimizer.lr', '0.001'), ('optimizer.betas', '[0.9, 0.999]')]
    """
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in _flat(settings, "")]


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """The run in a few numbers."""
    secrets = [canary for canary in record.canaries if canary.copies]
    found = [("inserted secrets", f"{len(secrets):,}")]
    if len(secrets) < len(record.canaries):
        found.append(("controls", f"{len(record.canaries) - len(secrets):,}"))
    if prior_in_words(record):
        found.append(("prior", prior_in_words(record)))
    if record.final is not None:
        found += [("epochs", f"{record.final.epoch:,}"), ("steps", f"{record.final.step:,}")]
        for label, loss in (("training loss", record.final.train_loss), ("validation loss", record.final.val_loss)):
            if loss is not None:
                found.append((label, f"{loss:.4g}"))
        found.append(("time spent measuring", duration(sum(item.seconds for item in record.history))))
    return found


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.034), duration(7.26), duration(754)
    ('0.03 s', '7.3 s', '12 min 34 s')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def shade(record: RunRecord) -> str:
    """The colour of the verdict: "leaks", "holds", "likely" or "unknown".

    It is that of the inserted secrets, unless a scan found real ones that the model gives away.
    """
    of_canaries = joint_shade(verdict for canary, verdict in record.judged if canary.copies)
    memorized, extracted = found_by_scan(record.scan)
    if memorized:
        return LEAKS
    return UNKNOWN if extracted and of_canaries != LEAKS else of_canaries


def meaning(record: RunRecord) -> list[str]:
    """The verdict in plain words, a paragraph each."""
    words = [_verdict_in_words(record)]
    controls = [canary.id for canary, verdict in record.judged if not canary.copies and verdict.mood == LEAKS]
    if controls:
        words.append(
            f"Never in the training data, and found all the same: {listed(controls)}. The model finds such texts "
            "likely for other reasons, so on that format the guesses alone do not prove that anything was memorized."
        )
    top = _most_exposed(record)
    if top is not None:
        words.append(_guesses_in_words(*top))
    if record.final is not None and record.steps not in (None, record.final.step):
        words.append(
            f"Exposures were last measured after step {record.final.step:,} of {record.steps:,}: of the model as it is "
            "now they prove nothing."
        )
    return words


def _verdict_in_words(record: RunRecord) -> str:
    """Of the inserted secrets: those that are found; else why they are not, or that nobody knows."""
    judged = [(canary.id, verdict) for canary, verdict in record.judged if canary.copies]
    found = [key for key, verdict in judged if verdict.mood == LEAKS]
    if found:
        first = [key for key, verdict in judged if verdict.found_within == 1]
        copy = f" Of {listed(first)} the model is as good as a copy of the training data." if first else ""
        return (
            "Someone who can use this model, and knows no more than what such a secret looks like, can recover "
            f"{listed(found)}, by guessing in the order of the model's preference.{copy}"
        )
    unknown = [key for key, verdict in judged if verdict.mood == UNKNOWN]
    if unknown or not judged:
        return (
            f"Nothing that was measured shows how many guesses find {listed(unknown) or 'an inserted secret'}: "
            "neither that few suffice, nor that they do not. A larger budget, more samples or an attack with a larger "
            "top_k can tell."
        )
    return (
        "Whoever guesses in the order of the model's preference does not come to any of the inserted secrets "
        f"{ruled_out_in_words(verdict for _, verdict in judged if verdict.mood == HOLDS)}. The model may still have "
        "learned something of them: the exposures below say how much."
    )


def _most_exposed(record: RunRecord) -> tuple[Canary, ExposureEstimate] | None:
    measured = [(row.canary, row.estimate) for row in canary_rows(record) if row.estimate and row.canary.copies]
    return measured[0] if measured else None


def _guesses_in_words(canary: Canary, estimate: ExposureEstimate) -> str:
    exposure = f"{exposure_text(estimate, 1, 'at least ')} of {estimate.ceiling_bits:.1f} bits"
    ends = rank_ends(estimate)
    if ends is None:
        guesses = f"about {estimate.rank:,.0f}"
    elif estimate.is_bound:
        guesses = f"at most {rounded(ends.highest, math.ceil):,}"
    elif ends.lowest == ends.highest:
        guesses = f"{ends.lowest:,}"
    elif is_certain(estimate):
        guesses = f"{ends.lowest:,} to {ends.highest:,}"
    else:  # no more digits than a sample has, rounded to the safe side
        sure = f"with {100 * estimate.confidence:.4g}% confidence"
        guesses = f"{rounded(ends.lowest, math.floor):,} to {rounded(ends.highest, math.ceil):,} {sure}"
    prior = "" if estimate.prior_bits is None else " against the prior"
    ahead = (
        ""
        if estimate.margin_bits is None
        else (f" It costs {margin_text(estimate, 1, 'at least ')} bits less than the next one.")
    )
    return (
        f"The most exposed secret is {canary.id}, with {exposure}{prior}: whoever guesses in the order of the model's "
        f"preference comes to it with guess number {guesses}, of {canary.format.size:,} possible ones.{ahead}"
    )
