"""`audit_synthetic`: what generated texts prove about the privacy of their generator, when only the texts are seen."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import (
    check_confidence,
    check_delta,
    check_texts,
    count_of,
    instance,
    refusal,
    whole_number,
)
from lightning_exposure.errors import ArgumentError, DataError, ScoreError
from lightning_exposure.leakage.counting import CanaryFinder, count
from lightning_exposure.leakage.writer import Written
from lightning_exposure.measuring import AuditWarning, audited
from lightning_exposure.privacy.audit.audit import AuditResult, audit, largest_provable_epsilon
from lightning_exposure.report.release import (
    CanaryCopies,
    FoundShare,
    ReleasedCanary,
    ScorerFinding,
    SyntheticAudit,
)
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
from lightning_exposure.synthetic.text._copied import check_spans, count_spans, without
from lightning_exposure.synthetic.text._near import allowed_edits, texts_with_near_copies
from lightning_exposure.synthetic.text.scorers import SCORERS, AskedSecret, ReleaseScorer

Floats = NDArray[np.float64]
Scorers = Sequence[str] | Mapping[str, ReleaseScorer]
"""Scorers by name, or scorers of one's own under names."""

_CANARIES_LONG = 10
"""A release has to have as many characters as so many canaries."""
_WORTHWHILE = 0.5
"""An audit that cannot prove an epsilon of this, whatever happens, is not worth its time."""
_LARGEST = 1e100
"""Scores beyond this are brought to 1."""
_REFERENCES = 64
"""How many other secrets of a format say what its secrets score that nobody trained on."""


def audit_synthetic(
    texts: Sequence[str],
    canaries: CanarySet,
    *,
    train: Sequence[str] | None = None,
    held_out: Sequence[str] | None = None,
    scorers: Scorers = ("ngram", "lm"),
    delta: float = 1e-5,
    confidence: float = 0.95,
    edits: int = 2,
    span: int = 40,
    seed: int = 0,
    on_stage: Callable[[str], None] | None = None,
) -> SyntheticAudit:
    """Bound the epsilon of a release of generated texts from below, and count what they have copied.

    Canaries were put into the training data of a generator, or left out, by fair coins. The generator itself is not
    needed: small models are trained on its texts, and say of each canary how well it fits in. Whoever guesses from that
    which canaries were in, and is right more often than an epsilon allows, has refuted this epsilon for the release.
    A release is made of the generator alone, so it is refuted for the generator, too.

    Each scorer's scores are compared with those of other secrets of the same format, which nobody was trained on, and
    are then added up: one test, with the whole error. No scorer is told which canaries were in.

    Args:
        texts: The release.
        canaries: Those of the generator's training data, with their coins, as `CanarySet.draw(..., holdout=0.5)` drew
            them. Those that no coin was tossed for take no part.
        train: The training texts, one per record. Only copies are counted in them; no score depends on them, because
            they tell which canaries are in. Texts that hold a canary are left out: canaries are counted apart.
        held_out: Texts of the same source, and as long, that the generator was not trained on: they say how many
            stretches a release shares with such texts by chance. Without them, one half of `train` takes the place of
            the release for the other half.
        scorers: Names of scorers, or scorers of your own by name.
        delta: The delta of the bound, for one record.
        confidence: The confidence level of the bound, and of each interval.
        edits: How many characters of a near copy may differ; never more than a quarter of a secret.
        span: How many characters a stretch of a training text has to have to count as copied.
        seed: Of the other secrets, the networks and the halves.
        on_stage: Called with what is done next, in words.

    Raises:
        ArgumentError: An argument is out of range, or no fair coins were tossed for the canaries.
        DataError: There are no texts, or none in which a canary or a stretch could stand.
        ScoreError: A scorer has given something else than a finite number for each secret.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat("pin ########"), repetitions=[1] * 60, seed=0, holdout=0.5)
        >>> found = audit_synthetic([canary.text for canary in canaries.inserted], canaries, scorers=["ngram"])
        >>> found.epsilon_lower > 2, found.verbatim.inserted.found, found.verbatim.held_out.found
        (True, 31, 0)
    """
    chosen = audited(instance("canaries", canaries, CanarySet, "a CanarySet", "Draw one with CanarySet.draw(...)."))
    texts = checked_texts("texts", texts)
    _check_enough(texts, chosen)
    named = _named(scorers)
    check_delta(delta, pure=True)
    check_confidence(confidence)
    edits, span = whole_number("edits", edits, at_least=0), whole_number("span", span, at_least=2)
    seed = whole_number("seed", seed, at_least=0)
    train, held_out = _checked_sources(train, held_out, canaries)
    if train is not None:
        check_spans(texts, train, held_out, span)
    tell = on_stage or (lambda stage: None)
    _warn_if_small(chosen, delta, confidence)

    def bound(scores: Floats) -> AuditResult:
        inside = np.array([not canary.held_out for canary in chosen])
        return audit(scores[inside], scores[~inside], delta=delta, confidence=confidence, records=_records(chosen))

    by_scorer = {}
    for name, scorer in named.items():
        tell(f"scorer {name}")
        by_scorer[name] = standard_scores(name, scorer, texts, chosen, seed)
    combined = np.mean(list(by_scorer.values()), axis=0)
    tell("copies of canaries")
    hits = count(CanaryFinder(chosen), (Written(text, 0, 0) for text in texts)).hits
    verbatim = [hits[number] for number in range(len(chosen))]
    secrets = [canary.text[len(canary.format.prompt) :] for canary in chosen]
    near = texts_with_near_copies(texts, secrets, edits)
    spans = None
    if train is not None:
        tell("copies of training texts")
        spans = count_spans(texts, train, held_out, span, confidence, seed)
    rows = [
        ReleasedCanary(canary, *found) for canary, *found in zip(chosen, verbatim, near, combined.tolist(), strict=True)
    ]
    return SyntheticAudit(
        combined=bound(combined),
        scorers=tuple(ScorerFinding(name, bound(scores)) for name, scores in by_scorer.items()),
        verbatim=_copies(chosen, verbatim, 0, confidence),
        near=_copies(chosen, near, max(allowed_edits(secret, edits) for secret in secrets), confidence),
        spans=spans,
        canaries=tuple(sorted(rows, key=lambda row: -row.score)),
        texts=len(texts),
        characters=sum(map(len, texts)),
        settings={"scorers": list(named), "edits": edits, "span": span, "seed": seed},
    )


def checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Texts that are texts.

    Raises:
        ArgumentError: They are one text, or something else is among them.
        DataError: There is nothing in them.
    """
    check_texts(name, texts)
    if not isinstance(texts, Iterable):
        raise refusal(name, texts, "a list of texts", with_type=True)
    listed = list(texts)
    for place, text in enumerate(listed):
        instance(f"{name}[{place}]", text, str, "a text")
    if not any(text.strip() for text in listed):
        raise DataError(
            f"{name} has {count_of(len(listed), 'text')} without a visible character; expected some. Give what was "
            "written."
        )
    return listed


def _checked_sources(
    train: Sequence[str] | None, held_out: Sequence[str] | None, canaries: CanarySet
) -> tuple[list[str] | None, list[str] | None]:
    """The texts that the generator was, and was not, trained on; without those that hold a canary."""
    if held_out is not None and train is None:
        raise ArgumentError(
            "held_out is given without train; expected both, because copies of one are compared with those of the "
            "other. Give train, too."
        )
    return (
        None if train is None else without(checked_texts("train", train), canaries.texts),
        None if held_out is None else without(checked_texts("held_out", held_out), canaries.texts),
    )


def _check_enough(texts: Sequence[str], canaries: CanarySet) -> None:
    """Refuse a release in which nothing could be seen."""
    there, needed = sum(map(len, texts)), _CANARIES_LONG * max(map(len, canaries.texts))
    if there < needed:
        raise DataError(
            f"texts has {count_of(there, 'character')} in {count_of(len(texts), 'text')}; expected at least {needed}, "
            f"as many as {_CANARIES_LONG} canaries have: in less, nothing can be seen of them. Give more of the "
            "release."
        )


def _records(canaries: Sequence[Canary]) -> int:
    """How many records of the training data the most repeated canary is."""
    return max(canary.repetitions for canary in canaries)


@lru_cache(maxsize=64)
def _provable(canaries: int, confidence: float, delta: float, records: int) -> float:
    """Remembered, for those who audit many releases of one size."""
    return largest_provable_epsilon(canaries, confidence, delta=delta, records=records)


def _warn_if_small(canaries: CanarySet, delta: float, confidence: float) -> None:
    largest = _provable(len(canaries), confidence, delta, _records(canaries))
    if largest < _WORTHWHILE:
        warnings.warn(
            f"The audit has {len(canaries):,} canaries: even if every guess is right, it cannot show that epsilon is "
            f"above {largest:.2g} with a confidence of {confidence:g} and a delta of {delta:g}. Train the generator "
            "with more of them, one repetition each: CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5).",
            AuditWarning,
            stacklevel=3,
        )


def standard_scores(
    name: str, scorer: ReleaseScorer, texts: Sequence[str], canaries: Sequence[Canary], seed: int
) -> Floats:
    """How much a release speaks for each canary, in standard deviations of other secrets of its format.

    So canaries of several formats can be compared, and scores of several scorers be added. The coins have no part in
    it.

    Raises:
        ScoreError: The scorer has given something else than a finite number for each.
    """
    luck = random.Random(seed)
    asked = [AskedSecret(canary.text, len(canary.format.prompt)) for canary in canaries]
    groups: dict[SecretFormat, tuple[list[int], list[int]]] = {}
    for place, canary in enumerate(canaries):
        groups.setdefault(canary.format, ([], []))[0].append(place)
    for format_, (own, others) in groups.items():
        known = [canaries[place].text for place in own]
        more = min(_REFERENCES, format_.size - len(known))
        drawn = format_.sample(more, luck, exclude=known) if more > 0 else known
        others += range(len(asked), len(asked) + len(drawn))
        asked += [AskedSecret(text, len(format_.prompt)) for text in drawn]
    given = _checked_scores(name, scorer(texts, asked, seed=seed), len(asked))
    scores = np.zeros(len(canaries))
    for own, others in groups.values():
        spread = given[others].std()
        scores[own] = (given[own] - given[others].mean()) / (spread if spread > 0 else 1.0)
    return scores


def _checked_scores(name: str, given: object, count: int) -> Floats:
    """What a scorer has given, as numbers that can be squared and added.

    Raises:
        ScoreError: It is something else than a finite number for each secret.
    """
    expected = f"a finite number for each of the {count} secrets, in their order. Correct the scorer"
    try:
        scores = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScoreError(f"scorer {name!r} has given what is no number ({error}); expected {expected}.") from error
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ScoreError(
            f"scorer {name!r} has given an array of shape {scores.shape}, or numbers that are not finite; expected "
            f"{expected}."
        )
    largest = float(np.abs(scores).max())
    # Squares of such numbers would be infinite. What is asked is which scores are higher than others.
    return scores / largest if largest > _LARGEST else scores


def _copies(canaries: Sequence[Canary], hits: Sequence[int], edits: int, confidence: float) -> CanaryCopies:
    def share(held_out: bool) -> FoundShare:
        found = [hit > 0 for hit, canary in zip(hits, canaries, strict=True) if canary.held_out == held_out]
        return FoundShare.counted(sum(found), len(found), confidence)

    return CanaryCopies(edits, inserted=share(False), held_out=share(True))


def _named(scorers: Scorers) -> dict[str, ReleaseScorer]:
    if isinstance(scorers, str) or not isinstance(scorers, Sequence | Mapping) or not len(scorers):
        raise refusal(
            "scorers", scorers, "a list of names, or scorers by name", f"For example {list(SCORERS.names())}."
        )
    if isinstance(scorers, Mapping):
        for name, scorer in scorers.items():
            if not callable(scorer):
                raise refusal(f"scorers[{name!r}]", scorer, "a function of texts and secrets", with_type=True)
            _check_signature(f"scorers[{name!r}]", scorer)
        return dict(scorers)
    named = {name: SCORERS.get(name, argument="scorers") for name in scorers}
    for name, scorer in named.items():
        _check_signature(f"scorer {name!r}", scorer)
    return named


def _check_signature(name: str, scorer: ReleaseScorer) -> None:
    """Refuse a function that cannot be called as a scorer is.

    Raises:
        ArgumentError: It takes other arguments.
    """
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError):  # of what is written in C, nothing is known
        return
    try:
        signature.bind([], [], seed=0)
    except TypeError as error:
        raise refusal(
            name,
            scorer,
            f"a function of texts and secrets, and of a seed by its name ({error})",
            "Write def scorer(texts, asked, *, seed).",
        ) from None
