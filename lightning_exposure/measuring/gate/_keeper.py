"""`GateKeeper`: looks at what was measured, decides, and remembers what it has decided and spent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from torch import nn

from lightning_exposure._checks import check_confidence, choice, metric_name, number, refusal, whole_number
from lightning_exposure.errors import ArgumentError, GateError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.measuring.gate._decision import (
    EXCEEDED,
    UNDECIDED,
    WITHIN,
    AlphaSpending,
    Answer,
    Bounds,
    GateLook,
    bits_of_luck,
    bounds_of,
    take_look,
)
from lightning_exposure.measuring.gate._words import in_words
from lightning_exposure.measuring.surroundings import Surroundings
from lightning_exposure.report.record import RunRecord
from lightning_exposure.secrets import CanarySet

if TYPE_CHECKING:
    from lightning_exposure.measuring.exposure import ExposureMonitor

GateAction = Literal["stop", "raise", "warn"]
UndecidedAction = Literal["warn", "stop", "raise", "ignore"]

_ROUNDING = 1e-9
_SEVERITY = (WITHIN, UNDECIDED, EXCEEDED)


def _severity(decided: Mapping[str, Any]) -> int:
    """How bad an answer is; -1: there is none yet."""
    return _SEVERITY.index(decided["answer"]) if decided["answer"] in _SEVERITY else -1


class GateWarning(UserWarning):
    """A limit is exceeded, cannot be decided, or is one that luck alone exceeds."""


class GateKeeper:
    """Decides at every look whether exposures and epsilon are within their limits, in any training loop.

    Args:
        max_bits: The largest exposure that is allowed, in bits; None: any.
        max_epsilon: The largest epsilon that may be spent; None: any.
        action: What is to be done when a limit is exceeded.
        undecided: What is to be done when that stays open, also with the largest effort.
        confidence: With which an alarm is right, over the whole run, all looks and all canaries.
        max_effort: How many times the samples and the budget of the usual measurement a further one may have.
        seed: The random seed of further walks.
        name: The first part of the metrics' names.

    Attributes:
        answer: The newest; None before the first look.
        reason: For it, in a sentence.
        canary: The id of the canary that it is about; None: of none.
        looks: How many there were.
        stopped_at_step: After how many steps a limit was first found to be exceeded; None: it was not.
        spending: The error that confirmations have had.
        bounds: What the newest look knew of each inserted canary in the end.
    """

    def __init__(
        self,
        *,
        max_bits: float | None,
        max_epsilon: float | None = None,
        action: GateAction = "stop",
        undecided: UndecidedAction = "warn",
        confidence: float = 0.95,
        max_effort: int = 16,
        seed: int = 0,
        name: str = "gate",
    ) -> None:
        if max_bits is None and max_epsilon is None:
            raise ArgumentError(
                "max_bits and max_epsilon are None; expected a limit for at least one of them. For example max_bits=10."
            )
        self.max_bits = None if max_bits is None else number("max_bits", max_bits, at_least=0, remedy="It is in bits.")
        self.max_epsilon = None if max_epsilon is None else number("max_epsilon", max_epsilon, above=0)
        self.action: GateAction = choice("action", action, get_args(GateAction))
        self.undecided: UndecidedAction = choice("undecided", undecided, get_args(UndecidedAction))
        self.confidence = check_confidence(confidence)
        self.max_effort = whole_number("max_effort", max_effort, at_least=1, remedy="1 does not measure further.")
        self.seed = whole_number("seed", seed, at_least=0)
        self.name = metric_name(name)
        self._restored = False
        self._reset()

    def _reset(self) -> None:
        self.answer: Answer | None = None
        self.reason = "nothing was measured yet"
        self.canary: str | None = None
        self.looks = 0
        self.stopped_at_step: int | None = None
        self.spending = AlphaSpending(1.0 - self.confidence)
        self.bounds: dict[str, Bounds] = {}
        self._seen: dict[str, list[Any]] = {}
        self._newest: dict[str, list[Any]] = {}  # by measurement: answer, reason, canary
        self._ends: dict[str, tuple[float, float]] = {}
        self._metrics: dict[str, float] = {}
        self._controls: list[str] = []
        self._warned: set[str] = set()

    # ---- before training ----------------------------------------------------------------------------------

    def begin(self, watched: Sequence[ExposureMonitor], around: Surroundings) -> None:
        """Begin a run, or go on with one whose state was just loaded.

        Args:
            watched: The measurements that it decides by.
            around: Where it runs.

        Raises:
            ArgumentError: The limit cannot be exceeded, or there is no canary that could.
        """
        if not self._restored:
            self._reset()
        self._restored = False
        if self.max_bits is None:
            return
        ceilings: dict[str, float | None] = {}
        for monitor in watched:
            known = monitor.prior.source is None
            ceilings |= {
                f"{monitor.name}/{canary.id}": math.log2(canary.format.size) if known else None
                for canary in inserted(monitor.trees.canaries)
            }
        self.check_limit(list(ceilings.values()), around)

    def check_limit(self, ceilings: Sequence[float | None], around: Surroundings, *, name: str = "max_bits") -> None:
        """Refuse a limit that no canary can exceed, and warn of one that luck exceeds.

        Args:
            ceilings: The largest exposure that each inserted canary can have; None: that depends on a prior.
            around: Where it runs.
            name: What the limit is called where it was given.

        Raises:
            ArgumentError: There is no such canary, or all of them are below the limit whatever happens.
        """
        assert self.max_bits is not None
        if not ceilings:
            raise ArgumentError(
                "canaries were all left out of the training data (copies=0, or held out); expected at least one that "
                "was inserted, because a gate judges what could be memorized. Draw one with repetitions=[1]."
            )
        largest = max(np.inf if ceiling is None else ceiling for ceiling in ceilings)
        if self.max_bits >= largest - _ROUNDING:
            raise refusal(
                name, self.max_bits, f"less than {largest:.2f}, which is the largest exposure that any of these "
                "canaries can have", "Lower the limit, or use a format with more secrets.",
            )  # fmt: skip
        luck = bits_of_luck(len(ceilings), 1.0 - self.confidence)
        if self.max_bits < luck:
            self._warn(
                around, "luck",
                f"{name} is {self.max_bits:g}, which luck exceeds: the luckiest of {len(ceilings)} random secrets "
                f"that nothing was learned about shows {luck:.1f} bits with a probability of "
                f"{100 * (1 - self.confidence):.3g}%; expected at least that much, or fewer canaries.",
            )  # fmt: skip

    # ---- during training ----------------------------------------------------------------------------------

    def look(self, monitor: ExposureMonitor, model: nn.Module, around: Surroundings) -> dict[str, float] | None:
        """Look at the newest measurement, if it was not looked at yet; measures further where that is needed.

        The weights have to be those that were measured.

        Returns:
            What was logged; None if there is nothing new.
        """
        if self.max_bits is None or not monitor.history:
            return None
        newest = monitor.history[-1]
        moment = [newest.step, newest.cut]
        if self._seen.get(monitor.name) == moment:
            return None
        self._seen[monitor.name] = moment

        def measure(ids: Sequence[str], effort: int, error: float) -> dict[str, Bounds]:
            seed = self._fresh_seed(monitor.name, newest.step, effort, error)
            found = monitor.measure_again(model, around, ids, effort=effort, confidence=1.0 - error, seed=seed)
            return {key: bounds_of(estimate) for key, estimate in found.items()}

        return self.decide(monitor.trees.canaries, newest.estimates, measure, newest.step, around, name=monitor.name)

    def decide(
        self,
        canaries: CanarySet,
        estimates: Mapping[str, ExposureEstimate],
        measure: Any,
        step: int,
        around: Surroundings,
        *,
        name: str = "",
    ) -> dict[str, float]:
        """One look at given estimates.

        Args:
            canaries: What was measured.
            estimates: By the id of the canary.
            measure: Measures again, as `take_look` asks for it.
            step: After how many steps.
            around: Where it runs.
            name: Which measurement it is of: the newest of each counts.

        Returns:
            What was logged.
        """
        assert self.max_bits is not None
        canaries.refuse_made_for_audits()
        self.looks += 1
        first = {canary.id: bounds_of(estimates[canary.id]) for canary in inserted(canaries)}
        error = max(1.0 - estimates[key].confidence for key in first)
        if self.stopped_at_step is not None:  # the null is rejected: nothing is left to be decided, or to be spent
            look = GateLook(EXCEEDED, first, max(first, key=lambda key: first[key].low))
        else:
            look = take_look(
                first, self.max_bits, self.spending, measure, error=error, largest_effort=self.max_effort
            )  # fmt: skip
            look, self.spending = around.gather((look, self.spending))[0]  # one process decides for all
            reason = in_words(look, self.max_bits, self.confidence, self.max_effort)
            self._newest[name] = [look.answer, reason, look.canary]
            answer, reason, canary = max(self._newest.values(), key=lambda each: _SEVERITY.index(each[0]))
            self._conclude(answer, reason, canary, step)
        self._ends[name] = (
            max(each.low for each in look.bounds.values()),
            max(each.high for each in look.bounds.values()),
        )
        self.bounds = look.bounds
        self._note_controls(canaries, estimates, around)
        self._metrics |= {
            f"{self.name}/low": max(low for low, _ in self._ends.values()),
            f"{self.name}/high": max(high for _, high in self._ends.values()),
            f"{self.name}/alpha_spent": self.spending.spent,
        }
        return self._log(around, step)

    def look_at_epsilon(self, epsilon: float, step: int, around: Surroundings) -> dict[str, float] | None:
        """Look at what was spent.

        Returns:
            What was logged; None if there is nothing to decide any more.
        """
        if self.max_epsilon is None or self.stopped_at_step is not None:
            return None
        if epsilon > self.max_epsilon:
            self._conclude(EXCEEDED, f"epsilon is {epsilon:.4g}, above the limit of {self.max_epsilon:g}", None, step)
        elif self.answer is None and self.max_bits is None:
            self._conclude(WITHIN, f"epsilon is {epsilon:.4g}, within the limit of {self.max_epsilon:g}", None, step)
        elif self.max_bits is None:
            self.reason = f"epsilon is {epsilon:.4g}, within the limit of {self.max_epsilon:g}"
        else:
            return None
        return self._log(around, step)

    @property
    def wants(self) -> UndecidedAction:
        """What is to be done now."""
        if self.answer == EXCEEDED:
            return self.action
        return self.undecided if self.answer == UNDECIDED else "ignore"

    def warn_if_asked(self, around: Surroundings) -> None:
        """Warn of an answer that is to be warned of, once."""
        if self.wants == "warn" and self.answer is not None:
            self._warn(around, self.answer, f"{self.answer}: {self.reason}.")

    def error(self) -> GateError:
        """What is raised where that was asked for."""
        at = "" if self.stopped_at_step is None else f" after {self.stopped_at_step:,} steps"
        return GateError(
            f"the gate is closed{at} ({self.answer}): {self.reason}; expected a model within the limits. What was "
            "trained is saved as usual; see lightning_exposure.report.best_checkpoint for one that is within them."
        )

    def newest_metrics(self) -> dict[str, float]:
        """The newest numbers; empty before the first look."""
        return dict(self._metrics)

    # ---- what is left behind ------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What was decided, for a record: no text of a secret."""
        return {
            "max_bits": self.max_bits,
            "max_epsilon": self.max_epsilon,
            "answer": self.answer,
            "reason": self.reason,
            "action": self.action,
            "undecided": self.undecided,
            "confidence": self.confidence,
            "alpha_spent": self.spending.spent,
            "looks": self.looks,
            "stopped_at_step": self.stopped_at_step,
            "canary": self.canary,
            "controls_above": list(self._controls),
        }

    def add_to_record(self, record: RunRecord) -> None:
        """Note what was decided, and when. Of several gates the one with the worst answer is in the record."""
        mine = self.to_dict()
        if record.gate is None or _severity(mine) > _severity(record.gate):
            record.gate = mine

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: what was decided, and what was spent; no text of a secret."""
        return {
            "answer": self.answer,
            "reason": self.reason,
            "canary": self.canary,
            "looks": self.looks,
            "stopped_at_step": self.stopped_at_step,
            "confirmations": self.spending.confirmations,
            "newest": {name: list(each) for name, each in self._newest.items()},
            "ends": {name: list(each) for name, each in self._ends.items()},
            "limits": [self.max_bits, self.max_epsilon],
            "seen": {name: list(moment) for name, moment in self._seen.items()},
            "metrics": dict(self._metrics),
            "controls": list(self._controls),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a run was: what it has spent stays spent."""
        self._reset()
        self._restored = True
        for name in ("answer", "reason", "canary", "looks", "stopped_at_step"):
            setattr(self, name, state_dict[name])
        self.spending.confirmations = state_dict["confirmations"]
        self._seen = {name: list(moment) for name, moment in state_dict["seen"].items()}
        self._metrics = dict(state_dict["metrics"])
        self._controls = list(state_dict["controls"])
        self._newest = {name: list(each) for name, each in state_dict["newest"].items()}
        self._ends = {name: tuple(each) for name, each in state_dict["ends"].items()}
        if state_dict["limits"] != [self.max_bits, self.max_epsilon]:  # what was decided was about other limits
            self.answer, self.reason, self.canary, self.stopped_at_step = None, "nothing was measured yet", None, None
            self._newest = {}

    # ---- inside -------------------------------------------------------------------------------------------

    def _conclude(self, answer: Answer, reason: str, canary: str | None, step: int) -> None:
        self.answer, self.reason, self.canary = answer, reason, canary
        if answer == EXCEEDED and self.stopped_at_step is None:
            self.stopped_at_step = step

    def _log(self, around: Surroundings, step: int) -> dict[str, float]:
        self._metrics |= {
            f"{self.name}/exceeded": float(self.answer == EXCEEDED),
            f"{self.name}/undecided": float(self.answer == UNDECIDED),
        }
        around.log(self._metrics, step)
        return dict(self._metrics)

    def _note_controls(
        self, canaries: CanarySet, estimates: Mapping[str, ExposureEstimate], around: Surroundings
    ) -> None:
        """Canaries that were never inserted close no gate; but that one is above the limit tells something about it."""
        assert self.max_bits is not None
        for canary in canaries:
            if canary.copies or bounds_of(estimates[canary.id]).low <= self.max_bits or canary.id in self._controls:
                continue
            self._controls.append(canary.id)
            self._warn(
                around, "control",
                f"{canary.id!r} was never inserted and has an exposure of at least {estimates[canary.id].low:.2f} "
                f"bits, above the limit of {self.max_bits:g}: what was not memorized exceeds it, too. It closes no "
                "gate. Measure against a prior, or raise the limit.",
            )  # fmt: skip

    def _warn(self, around: Surroundings, kind: str, text: str) -> None:
        if kind not in self._warned and around.rank == 0:
            warnings.warn(f"{self.name}: {text}", GateWarning, stacklevel=2)
        self._warned.add(kind)

    def _fresh_seed(self, name: str, step: int, effort: int, error: float) -> int:
        """A seed that no other measurement of the run has, and that is the same in every process."""
        words = [self.seed, self.looks, step, effort, self.spending.confirmations, round(error * 2**40)]
        sequence = np.random.SeedSequence([*words, *name.encode()])
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(2))


def inserted(canaries: CanarySet) -> Iterable[Any]:
    """Those that could have been memorized: controls, and what was held out, were never trained on."""
    return [canary for canary in canaries if canary.copies]
