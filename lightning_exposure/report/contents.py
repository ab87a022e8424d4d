"""What a report says, as plain rows and sentences; how it looks is the template's business."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import Candidate, Extraction
from lightning_exposure.report.record import RunRecord, listed
from lightning_exposure.secrets import Canary

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
        "The place of a secret when all secrets of its format are sorted from the likeliest to the least likely. "
        "The secret of rank 1 is the first that an attacker would guess.",
    ),
    (
        "Exposure",
        "How much the model helps a guesser: log₂ of the number of secrets, minus log₂ of the rank, in bits. 0 means "
        "no help at all; one bit more halves the guesses; log₂|R|, the largest value, means the first guess is right.",
    ),
    (
        "Interval",
        "Where the exposure lies with the confidence given (usually 95%), if it was estimated. An exact count has no "
        "interval. With ≥ only a lower bound is known.",
    ),
    (
        "Gain",
        "Exposure now minus exposure before training: what this training added.",
    ),
    (
        "Proven optimal",
        "The attack went on until no secret outside its list could be likelier than those in it.",
    ),
)
"""Terms and what they mean."""


@dataclass(frozen=True)
class CanaryRow:
    """One canary in the table; None where nothing was measured."""

    canary: Canary
    estimate: ExposureEstimate | None
    baseline: ExposureEstimate | None
    gain: float | None
    extracted: str

    @property
    def share(self) -> float:
        """Exposure as a percentage of the largest possible."""
        if self.estimate is None or self.estimate.size_bits <= 0:
            return 0.0
        return 100.0 * min(1.0, max(0.0, self.estimate.bits / self.estimate.size_bits))


@dataclass(frozen=True)
class AttackRows:
    """One attack in the table: each candidate with the id of the canary it is, and how many are not shown."""

    name: str
    attack: Extraction
    candidates: list[tuple[Candidate, str | None]]
    hidden: int


def canary_rows(record: RunRecord) -> list[CanaryRow]:
    """The canaries, most exposed first."""
    estimates = record.final.estimates if record.final else {}
    orders = {
        (name, candidate.text): candidate.order
        for name, attack in record.extractions.items()
        for candidate in attack.candidates
    }
    rows = []
    for canary in record.canaries:
        estimate, baseline = estimates.get(canary.id), record.baseline.get(canary.id)
        if canary.format.name not in record.extractions:
            extracted = "not attacked"
        else:
            order = orders.get((canary.format.name, canary.text))
            extracted = "no" if order is None else f"yes (candidate {order})"
        gain = estimate.bits - baseline.bits if estimate and baseline else None
        rows.append(CanaryRow(canary, estimate, baseline, gain, extracted))
    return sorted(rows, key=_most_exposed_first)


def _most_exposed_first(row: CanaryRow) -> tuple[float, float]:
    """Nothing measured comes last; of equal exposures the likelier text comes first."""
    return (-row.estimate.bits, row.estimate.log_perplexity) if row.estimate else (math.inf, math.inf)


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


def mood(record: RunRecord) -> str:
    """Of the verdict: "leaks", "holds" or "unknown"."""
    if any(record.canaries[key].copies for key in record.extracted):
        return "leaks"
    attacked = any(canary.copies and canary.format.name in record.extractions for canary in record.canaries)
    return "holds" if attacked else "unknown"


def meaning(record: RunRecord) -> list[str]:
    """The verdict in plain words, a paragraph each."""
    words = [_attack_in_words(record)]
    controls = [key for key in record.extracted if not record.canaries[key].copies]
    if controls:
        words.append(
            f"Never in the training data, and found all the same: {listed(controls)}. The model holds such texts "
            "likely for other reasons, so on that format the attack alone does not prove that anything was memorized."
        )
    top = _most_exposed(record)
    if top is not None:
        words.append(_guesses_in_words(*top))
    return words


def _attack_in_words(record: RunRecord) -> str:
    secrets = [key for key in record.extracted if record.canaries[key].copies]
    if secrets:
        return (
            f"Someone who can use this model, and knows no more than what such a secret looks like, can recover "
            f"{listed(secrets)}. For these secrets the model is as good as a copy of the training data."
        )
    if mood(record) == "unknown":
        return (
            "No attack was made on the inserted secrets, so nothing is known of what this model gives away, apart "
            "from the exposures below. An attack can be made with ExtractionCallback while training, or with extract()."
        )
    if all(attack.optimal for attack in record.extractions.values()):
        return (
            "The attack ran to its end: it is proven that the model holds other texts likelier than the inserted "
            "secrets. It may still have learned something of them: the exposures below say how much."
        )
    return (
        "The attack ended before it had searched everything, so a longer one may yet succeed. The exposures below say "
        "how close it is."
    )


def _most_exposed(record: RunRecord) -> tuple[Canary, ExposureEstimate] | None:
    measured = [(row.canary, row.estimate) for row in canary_rows(record) if row.estimate and row.canary.copies]
    return measured[0] if measured else None


def _guesses_in_words(canary: Canary, estimate: ExposureEstimate) -> str:
    about = "at most" if estimate.is_bound else "" if isinstance(estimate.rank, int) else "about"
    guesses = f"{about} {estimate.rank:,.0f}".strip()
    exposure = f"{'at least ' if estimate.is_bound else ''}{estimate.bits:.1f} of {estimate.size_bits:.1f} bits"
    return (
        f"The most exposed secret is {canary.id}, with {exposure}: whoever guesses in the order of the model's "
        f"preference comes to it with guess number {guesses}, of {canary.format.size:,} possible ones."
    )
