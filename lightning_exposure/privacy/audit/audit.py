"""`audit`: what canaries that were in the training data, and others that were not, prove about its privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from lightning_exposure._checks import check_confidence, check_delta, choice, refusal, whole_number
from lightning_exposure._html import html_table
from lightning_exposure.errors import ScoreError
from lightning_exposure.exposure.intervals import clopper_pearson
from lightning_exposure.privacy.audit._bounds import rates_epsilon
from lightning_exposure.privacy.audit._gaussian import gaussian_epsilon, gaussian_mu
from lightning_exposure.privacy.audit._guessing import gaussian_plan, plan, right_guesses
from lightning_exposure.privacy.audit._one_run import refuted_epsilon
from lightning_exposure.privacy.audit.separation import Floats, attack_accuracy, auc, checked_scores, tpr_at_fpr

Bound = Literal["one_run", "gaussian"]
"""Which lower bound is asked for."""

_ASSUMPTIONS = {
    "one_run": "none: it holds for every training run whose canaries were put in by fair coins",
    "gaussian": "that the training run trades off false alarms and misses as a Gaussian does; epsilon may be smaller "
    "than this if it does not",
}
_UNFAIR = 1e-6
"""Coins that fall as one-sided as this with a smaller probability were not fair."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        epsilon_lower_one_run: The bound in the manner of Steinke, Nasr and Jagielski, which holds for canaries of one
            training run and assumes nothing about it.
        epsilon_lower_classical: The bound from the limits of two rates, which holds only if canaries do not influence
            one another, for instance if each score is from a training run of its own.
        accuracy: The share P of right answers of an attacker who calls the highest scores members; one half is luck.
        auc: The probability that a member scores higher than another.
        tpr_at_1_percent_fpr: The share of members above all but 1% of the others.
        inserted: How many canaries were in the training data.
        held_out: How many were not.
        guesses: How many guesses the bound rests on.
        correct: How many of them were right.
        delta: The delta of one record that the bounds grant.
        confidence: Each bound is too high with a probability of at most `1 - confidence`.
        records: How many records of the training data each canary was.
        bound: Which bound was asked for: "one_run" or "gaussian".
        epsilon_lower_gaussian: The bound of Mahloujifar, Melis and Chaudhuri for training runs with the trade-off of a
            Gaussian; None if it was not asked for.
        assumption: What `epsilon_lower` assumes about the training run.
    """

    epsilon_lower_one_run: float
    epsilon_lower_classical: float
    accuracy: float
    auc: float
    tpr_at_1_percent_fpr: float
    inserted: int
    held_out: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    records: int
    bound: Bound = "one_run"
    epsilon_lower_gaussian: float | None = None
    assumption: str = field(init=False)

    def __post_init__(self) -> None:
        """Say what the bound assumes, wherever the numbers go."""
        object.__setattr__(self, "assumption", _ASSUMPTIONS[self.bound])

    @property
    def epsilon_lower(self) -> float:
        """The bound that was asked for."""
        return self.epsilon_lower_one_run if self.epsilon_lower_gaussian is None else self.epsilon_lower_gaussian

    @property
    def privacy_loss(self) -> float:
        """How far the attacker is from luck to certainty: `(P - 0.5) / 0.5`, and 0 for one who is worse than luck."""
        return max(0.0, (self.accuracy - 0.5) / 0.5)

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = [
            ("epsilon", f"at least {self.epsilon_lower:.3f} ({100 * self.confidence:.4g}%, delta {self.delta:g})"),
            ("assumes", self.assumption),
            ("guesses", f"{self.correct:,} of {self.guesses:,} right"),
            ("canaries", f"{self.inserted:,} inserted, {self.held_out:,} held out"),
            ("AUC", f"{self.auc:.3f}"),
            ("accuracy", f"{self.accuracy:.3f}"),
        ]
        return html_table("Privacy audit", rows)

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> AuditResult:
        """What `to_dict` gave."""
        return cls(**{name: value for name, value in content.items() if name != "assumption"})


def audit(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    records: int = 1,
    bound: Bound = "one_run",
) -> AuditResult:
    """Lower bounds on epsilon, and how well an attacker does, from the scores of canaries.

    Each canary must have been put into the training data or left out by a fair coin of its own, and a score must be
    computed without knowing how that coin fell. Then a training run that is (epsilon, delta)-private for every record
    gives `epsilon_lower <= epsilon`, with the given confidence.

    The one-run bound tries several numbers of guesses, in stages that grow; the p-value is that of the most telling
    stage, with all of them counted (`staged_p_value`). It assumes nothing about the training run. The Gaussian bound
    proves more, but only if the training run has the trade-off of a Gaussian between the errors of whoever guesses; on
    others it can be far too high. The classical bound tries thresholds at the scores of canaries that were out, and
    pays for having looked. Equal scores count as the worst order of them would.

    Args:
        scores_in: Scores of the canaries that were in the training data. A higher score means: more likely in.
        scores_out: Scores of those that were not.
        delta: The delta of the bounds, for one record.
        confidence: The confidence level of each bound.
        records: How many records of the training data a canary was, if it was in: its repetitions. The bounds are for
            one record.
        bound: What `epsilon_lower` is: "one_run" assumes nothing, "gaussian" assumes a Gaussian trade-off, and needs a
            delta above 0.

    Raises:
        ScoreError: There are no scores of one kind, one is not finite, or there are so many more of one kind that the
            coins cannot have been fair.
        ArgumentError: Another argument is out of range.

    Example:
        >>> import numpy as np
        >>> generator = np.random.default_rng(0)
        >>> found = audit(generator.normal(3.0, 1.0, 500), generator.normal(0.0, 1.0, 500))
        >>> found.epsilon_lower > 3, found.auc > 0.97
        (True, True)
    """
    inside, outside = checked_scores(scores_in, scores_out)
    delta = check_delta(delta, pure=True)
    confidence = check_confidence(confidence)
    records = whole_number("records", records, at_least=1)
    choice("bound", bound, get_args(Bound))
    if bound == "gaussian" and delta == 0.0:
        raise refusal("delta", delta, "a number above 0 with bound='gaussian'", "A Gaussian has no epsilon at delta 0.")
    _refuse_unfair_coins(len(inside), len(outside))
    proved = _one_run(inside, outside, delta, 1.0 - confidence, records)
    gaussian = _gaussian(inside, outside, delta, 1.0 - confidence, records) if bound == "gaussian" else None
    shown = proved if gaussian is None else gaussian
    return AuditResult(
        epsilon_lower_one_run=proved.epsilon,
        epsilon_lower_classical=_classical(inside, outside, delta, 1.0 - confidence, records),
        accuracy=attack_accuracy(inside, outside),
        auc=auc(inside, outside),
        tpr_at_1_percent_fpr=tpr_at_fpr(inside, outside, 0.01),
        inserted=len(inside),
        held_out=len(outside),
        guesses=shown.guesses,
        correct=shown.correct,
        delta=delta,
        confidence=confidence,
        records=records,
        bound=bound,
        epsilon_lower_gaussian=None if gaussian is None else gaussian.epsilon,
    )


def largest_provable_epsilon(canaries: int, confidence: float = 0.95, *, delta: float = 0.0, records: int = 1) -> float:
    """The lower bound that `audit` gives if every guess is right: with so many canaries, no more can be shown.

    Example:
        >>> [round(largest_provable_epsilon(canaries), 2) for canaries in (8, 20, 100, 1000)]
        [0.0, 1.35, 3.26, 5.68]
    """
    check_confidence(confidence)
    canaries = whole_number("canaries", canaries, at_least=0)
    tests = plan(canaries, 1.0 - confidence, delta * records)
    return max(
        refuted_epsilon(test, test.guesses, delta=delta, canaries=canaries, records=records)[0] for test in tests
    )


def _refuse_unfair_coins(inserted: int, held_out: int) -> None:
    canaries = inserted + held_out
    if 2.0 * stats.binom.cdf(min(inserted, held_out), canaries, 0.5) < _UNFAIR:
        raise ScoreError(
            f"scores_in has {inserted} and scores_out {held_out}: fair coins do not fall so one-sided, and the bound "
            "holds for fair coins only. Draw the canaries with holdout=0.5, and give the scores of all of them. For "
            "other sizes, auc(), attack_accuracy() and tpr_at_fpr() of lightning_exposure.privacy.audit still work."
        )


class _Proved(NamedTuple):
    """What guesses prove."""

    epsilon: float
    correct: int
    guesses: int


def _one_run(inside: Floats, outside: Floats, delta: float, error: float, records: int) -> _Proved:
    """The test that proves most."""
    canaries = len(inside) + len(outside)
    right = right_guesses(inside, outside)
    found = []
    for test in plan(canaries, error, delta * records):
        correct = test.correct(*right)
        epsilon, stage = refuted_epsilon(test, correct, delta=delta, canaries=canaries, records=records)
        found.append(_Proved(epsilon, correct[stage], test.guesses[stage]))
    return max(found, key=lambda proved: proved.epsilon)


def _gaussian(inside: Floats, outside: Floats, delta: float, error: float, records: int) -> _Proved:
    """The test that proves most, if the trade-off is a Gaussian's: a group of k records shifts it by k times mu."""
    canaries = len(inside) + len(outside)
    right = right_guesses(inside, outside)
    found = []
    for test in gaussian_plan(canaries, error):
        (correct,), (guesses,) = test.correct(*right), test.guesses
        mu = gaussian_mu(correct, guesses, canaries * test.sides / 2, test.error)
        found.append(_Proved(gaussian_epsilon(mu / records, delta), correct, guesses))
    return max(found, key=lambda proved: proved.epsilon)


def _classical(inside: Floats, outside: Floats, delta: float, error: float, records: int) -> float:
    """The best threshold at one of the scores of those that were out.

    How many others lie above their own n-th highest score is no estimate: the share of all others above it has exactly
    the distribution that the Clopper-Pearson limit is made of. And for the members it is a threshold like any other.
    """
    above = _places(len(outside))
    thresholds = np.sort(outside)[::-1][above]
    members = len(inside) - np.searchsorted(np.sort(inside), thresholds, side="right")
    confidence = 1.0 - error / (2 * len(above))  # two limits for each threshold
    low, _ = clopper_pearson(members, len(inside), confidence)
    _, high = clopper_pearson(above, len(outside), confidence)
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return max(rates_epsilon(tpr, fpr, delta=delta, records=records) for tpr, fpr in pairs)


def _places(count: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Places in a sorted list, from both ends inward, each about one and a half times as far in as the last.

    >>> _places(12).tolist()
    [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    """
    steps = math.ceil(2 * math.log2(count)) if count > 1 else 0
    inward = {0, *(math.floor(2 ** (step / 2)) for step in range(steps))}
    half = {place for place in inward if place <= (count - 1) / 2}
    return np.array(sorted(half | {count - 1 - place for place in half}), dtype=np.intp)
