"""`CanaryAudit`: what can be told from a model about which canaries it was trained on, and what that refutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from lightning_exposure._checks import check_confidence, metric_name
from lightning_exposure._files import plain
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.identity import fingerprint, may_be_same
from lightning_exposure.measuring.schedule import Schedule
from lightning_exposure.measuring.surroundings import Moment, Surroundings
from lightning_exposure.measuring.tracebacks import without_locals
from lightning_exposure.measuring.trees import CanaryTrees
from lightning_exposure.privacy.audit.audit import AuditResult, audit, largest_provable_epsilon
from lightning_exposure.report.record import RunRecord
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import score, uniform_walks

_REFERENCES = 256
_WORTHWHILE = 0.5
"""An audit that cannot prove an epsilon of this, whatever happens, is not worth its time."""

_METRICS = ("epsilon_lower", "auc", "accuracy", "tpr_at_1_percent_fpr", "privacy_loss")


class AuditWarning(UserWarning):
    """An audit contradicts the accountant, or is too small to be able to."""


class CanaryAudit:
    """Audits a model during or after training, in any training loop.

    Call `begin` when the trees are built, `take_baseline` before the first step, `run` after each epoch for which
    `is_due` says so, and `run(..., last=True)` when training has ended.

    All looks at a training run together are wrong with a probability of at most `1 - confidence`: the last one may use
    half of it, the n-th one before it `1 / (n * (n + 1))` of the other half. If it is only looked at when training
    ends, that look has all of it.

    Args:
        trees: Of canaries that a fair coin was tossed for, as `audited` picks them.
        schedule: When to audit.
        confidence: The confidence level of the lower bounds of all looks together.
        baseline: Whether to compare with the model before training. Otherwise with what the secrets of a format cost
            on average.
        name: The first part of the metrics' names.

    Attributes:
        result: The newest audit.
        alarm: Whether it contradicts what was promised.
        baseline_bits: The log-perplexities before training, by canary id.
        scores: What the newest audit rests on, by canary id: a higher score speaks for having been in.
        looks: How often the training run was looked at before its end.
        of_users: Whether the promise is for users, and every canary is one, with all its repetitions.
    """

    def __init__(
        self,
        trees: CanaryTrees,
        schedule: Schedule,
        *,
        confidence: float = 0.95,
        baseline: bool = True,
        name: str = "audit",
    ) -> None:
        check_confidence(confidence)
        self.trees = trees
        self.schedule = schedule
        self.confidence = confidence
        self.name = metric_name(name)
        self.result: AuditResult | None = None
        self.alarm = False
        self.baseline_bits: dict[str, float] = {}
        self.scores: dict[str, float] = {}
        self.looks = 0
        self.of_users = False
        self._takes_baseline = baseline
        self._restored = False
        self._audited_at = -1

    @property
    def records(self) -> int:
        """How many records of the training data the most repeated canary is; 1 user, if the promise is for users."""
        return 1 if self.of_users else max(canary.repetitions for canary in self.trees.canaries)

    def shortcoming(self, delta: float) -> str | None:
        """Why an audit of so few canaries is not worth its time; None if it is.

        Args:
            delta: The delta of the bound.
        """
        count = len(self.trees.canaries)
        largest = largest_provable_epsilon(count, self.confidence, delta=delta, records=self.records)
        if largest >= _WORTHWHILE:
            return None
        each = "" if self.records == 1 else f", each up to {self.records} records"
        return (
            f"The audit has {count} canaries{each}: even if every guess is right, it cannot show that epsilon is "
            f"above {largest:.2g} with a confidence of {self.confidence:g} and a delta of {delta:g}. Draw more of "
            "them, with one repetition each: CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5)."
        )

    def begin(self) -> None:
        """Forget an earlier run, unless a checkpoint has just brought it back."""
        if not self._restored:
            self.result, self.alarm, self.baseline_bits, self.looks = None, False, {}, 0
        self._restored, self._audited_at = False, -1

    @without_locals
    def take_baseline(self, model: nn.Module, around: Surroundings) -> None:
        """What the canaries cost before training, unless it is known from before a resumption."""
        if self._takes_baseline and not self.baseline_bits:
            self.baseline_bits = self._bits(model, around, "canaries before training")

    def is_due(self, moment: Moment) -> bool:
        """Whether the end of an epoch makes it due; at the end of training that is left to `run` itself."""
        return self.schedule.after_epoch(moment.epoch, last=False)

    @without_locals
    def run(
        self,
        model: nn.Module,
        around: Surroundings,
        moment: Moment,
        *,
        delta: float,
        promised: float | None,
        last: bool = True,
    ) -> dict[str, float]:
        """Audit the model as it is.

        Args:
            model: The module that is being trained.
            around: Where it runs.
            moment: When.
            delta: The delta of the bound.
            promised: The epsilon that the accountant claims; None: there is none.
            last: Whether training has ended.

        Returns:
            What was logged.
        """
        if self._audited_at != moment.step:  # weights that were just looked at give the same scores again
            self.scores = self._scores(model, around)
        self._audited_at = moment.step
        self.looks += not last
        scores, canaries = self.scores, self.trees.canaries
        self.result = audit(
            [scores[canary.id] for canary in canaries if not canary.held_out],
            [scores[canary.id] for canary in canaries if canary.held_out],
            delta=delta,
            confidence=1.0 - (1.0 - self.confidence) * self._share(last),
            records=self.records,
        )
        metrics = {f"{self.name}/{name}": float(getattr(self.result, name)) for name in _METRICS}
        # One look is enough to contradict a promise; a later one that sees less takes nothing back.
        self.alarm = self.alarm or (promised is not None and self.result.epsilon_lower_one_run > promised)
        if promised is not None:
            metrics[f"{self.name}/alarm"] = float(self.alarm)
        around.log(metrics, moment.step)
        return metrics

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest audit into the record of the run."""
        if self.result is not None:
            found = {**self.result.to_dict(), "epsilon_lower": self.result.epsilon_lower, "alarm": self.alarm}
            record.audit = plain(found, "audit")

    def state_dict(self) -> dict[str, Any]:
        """The baseline and the newest audit, as plain values."""
        return {
            "canaries": fingerprint(self.trees.canaries),
            "baseline": dict(self.baseline_bits),
            "result": None if self.result is None else self.result.to_dict(),
            "alarm": self.alarm,
            "looks": self.looks,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What `state_dict` gave.

        Raises:
            ArgumentError: It is from a training run with other canaries, or with others held out.
        """
        if not may_be_same(state_dict["canaries"], fingerprint(self.trees.canaries)):
            raise other_canaries()
        self._restored = True
        result = state_dict["result"]
        self.baseline_bits = dict(state_dict["baseline"])
        self.result = None if result is None else AuditResult.from_dict(result)
        self.alarm = state_dict["alarm"]
        self.looks = state_dict["looks"]

    def _share(self, last: bool) -> float:
        """What this look may use of the probability of error."""
        if self.schedule.every_n_epochs == 0:
            return 1.0
        return 0.5 if last else 0.5 / (self.looks * (self.looks + 1))

    def _scores(self, model: nn.Module, around: Surroundings) -> dict[str, float]:
        """How much each canary speaks for having been in; computed without regard to whether it was."""
        if self._takes_baseline:
            now = self._bits(model, around, "audit")
            return {name: self.baseline_bits[name] - bits for name, bits in now.items()}
        with quiet(model), around.status("audit"):
            found = self.trees.map(around, _bits_below_average)
        return {name: bits for part in found.values() for name, bits in part.items()}

    def _bits(self, model: nn.Module, around: Surroundings, title: str) -> dict[str, float]:
        with quiet(model), around.status(title):
            found = self.trees.map(around, _bits_of)
        return {name: bits for part in found.values() for name, bits in part.items()}


def other_canaries() -> ArgumentError:
    """What to raise when a run is resumed with other canaries than it began with."""
    return ArgumentError(
        "canaries has other texts, or others held out, than in the run that the checkpoint is from; expected the same, "
        "because what was trained on stays in the model. Resume with the canaries that training began with."
    )


def audited(canaries: CanarySet) -> CanarySet:
    """The canaries that a coin was tossed for and that are in the training data if it says so.

    Raises:
        ArgumentError: There are none, the coins were not fair, or they all fell on one side.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> mixed = CanarySet.draw(SecretFormat.pin(), repetitions=[0, 1, 1, 1], seed=0, holdout=0.5)
        >>> [canary.id for canary in audited(mixed)]
        ['pin-1x', 'pin-1x-2', 'pin-1x-3']
    """
    chosen = CanarySet(canary for canary in canaries if canary.holdout and canary.repetitions)
    rates = sorted({canary.holdout for canary in chosen} - {0.5})
    remedy = "Draw them with CanarySet.draw(format, repetitions=[1] * 200, holdout=0.5)."
    if not chosen:
        coins = any(canary.holdout for canary in canaries)
        what = (
            "none that is in the training data if its coin says so: all have 0 repetitions"
            if coins
            else ("none drawn with a holdout")
        )
        raise ArgumentError(f"canaries has {len(canaries)}, {what}; expected some. {remedy}")
    if rates:
        raise ArgumentError(
            f"canaries has some held out with a probability of {', '.join(map(str, rates))}; expected 0.5, because the "
            f"bound of an audit holds for fair coins only. {remedy}"
        )
    if not chosen.held_out or not chosen.inserted:
        side = "held out" if not chosen.held_out else "inserted"
        raise ArgumentError(
            f"canaries has {len(chosen)}, none of which is {side}; expected both kinds, because an audit compares "
            f"them. {remedy}"
        )
    return chosen


def _bits_of(tree: SecretTree, canaries: Sequence[Canary]) -> dict[str, float]:
    costs = score(tree, [canary.text for canary in canaries]).costs.tolist()
    return {canary.id: cost for canary, cost in zip(canaries, costs, strict=True)}


def _bits_below_average(tree: SecretTree, canaries: Sequence[Canary]) -> dict[str, float]:
    """By how much each is cheaper than other secrets of its format: so canaries of several formats can be compared."""
    bits = _bits_of(tree, canaries)
    texts = [canary.text for canary in canaries]
    others = min(_REFERENCES, tree.size - len(texts))
    costs = uniform_walks(tree, others, seed=0, exclude=texts).costs.tolist() if others > 0 else list(bits.values())
    average = math.fsum(costs) / len(costs)
    return {name: average - cost for name, cost in bits.items()}
