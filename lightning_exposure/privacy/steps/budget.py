"""`Budget`: how much privacy a training run may spend, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_exposure._checks import check_delta, number, refusal
from lightning_exposure.errors import ArgumentError, FitError
from lightning_exposure.privacy.steps.accounting import (
    AccountantName,
    History,
    check_accountant,
    epsilon,
    noise_for,
    spent,
    steps_within,
    with_steps,
)

_NO_LIMIT = 2**40

_MOSTLY = 0.95
"""Of a target, the part after which it counts as spent: with the rest, there would be noise and little else."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A noise, or an epsilon to arrive at; and perhaps an epsilon at which to stop.

    Attributes:
        delta: The probability with which epsilon need not hold.
        noise_multiplier: The noise of every step; or
        target_epsilon: the epsilon after the last step.
        max_epsilon: What must not be exceeded.
        accountant: "prv" or "rdp".

    Raises:
        ArgumentError: A value is out of its range, or they contradict each other.

    Example:
        >>> budget = Budget(target_epsilon=3.0, delta=1e-6, accountant="rdp")
        >>> noise = budget.noise([], sample_rate=0.1, steps=20)
        >>> 2.97 < budget.epsilon([(noise, 0.1, 20)]) <= 3.0
        True
    """

    delta: float
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    max_epsilon: float | None = None
    accountant: AccountantName = "prv"

    def __post_init__(self) -> None:
        """Refuse what cannot be; numbers of other libraries become Python's own."""
        noise, target, largest = self.noise_multiplier, self.target_epsilon, self.max_epsilon
        if (noise is None) == (target is None):
            raise ArgumentError(
                f"noise_multiplier is {noise!r} and target_epsilon is {target!r}; expected exactly one of them. The "
                "other follows from it."
            )
        if noise is not None:
            object.__setattr__(self, "noise_multiplier", number("noise_multiplier", noise, at_least=0))
        for name, value in (("target_epsilon", target), ("max_epsilon", largest)):
            if value is not None:
                object.__setattr__(self, name, number(name, value, above=0))
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_accountant(self.accountant)
        if largest is not None and noise == 0:
            raise refusal(
                "max_epsilon",
                largest,
                "None with noise_multiplier=0",
                "Without noise epsilon is infinite from the first step on.",
            )
        if largest is not None and target is not None and largest < target:
            raise refusal(
                "max_epsilon",
                largest,
                f"at least target_epsilon, {target!r}",
                "Training would stop before its end: give the smaller one as target_epsilon.",
            )

    def epsilon(self, history: History) -> float:
        """What a history has spent."""
        return epsilon(history, self.delta, self.accountant)

    def noise(self, history: History, sample_rate: float, steps: float, known: float | None = None) -> float:
        """The noise multiplier for the steps to come.

        Args:
            history: The steps before.
            sample_rate: The probability with which a record is in a batch.
            steps: How many steps are planned; may be infinite.
            known: A noise multiplier that was found before. It is kept if it is enough for the plan.

        Raises:
            FitError: It depends on the number of steps, and that is not known; or the target is spent.
            ArgumentError: No noise is enough.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.target_epsilon is not None
        if steps == math.inf:
            raise FitError(
                f"target_epsilon is {self.target_epsilon}, but this training run has no end; expected one, because the "
                "noise depends on how many steps there will be. Give the Trainer max_epochs or max_steps; or give a "
                "noise_multiplier, with max_epsilon."
            )
        if known is not None:
            after = with_steps(history, known, sample_rate, int(steps))
            if self.epsilon(after) <= self.target_epsilon:
                return known
        before = self.epsilon(history)
        if before > _MOSTLY * self.target_epsilon:
            raise FitError(
                f"target_epsilon is {self.target_epsilon}, and {before:.4g} is spent by the steps so far; expected "
                "more to be left. Give a larger target_epsilon, or train this module no further."
            )
        return noise_for(self.target_epsilon, self.delta, sample_rate, int(steps), self.accountant, history=history)

    def limit(self, history: History, sample_rate: float, noise: float, steps: float) -> float:
        """How many of some planned steps are within `max_epsilon`; infinitely many if all are."""
        if self.max_epsilon is None:
            return math.inf
        found = steps_within(
            self.max_epsilon,
            self.delta,
            sample_rate,
            noise,
            self.accountant,
            history=history,
            at_most=_NO_LIMIT if steps == math.inf else int(steps),
        )
        return math.inf if found == steps else found

    def outlook(self, history: History, sample_rate: float, noise: float, steps: float, limit: float) -> str:
        """What the steps to come will spend, for people."""
        if noise == 0:
            return "Clipping alone gives no epsilon: without noise it is infinite."
        if min(steps, limit) == math.inf:
            return "No end is set, and epsilon grows with every step."
        count = int(min(steps, limit))
        after = spent(with_steps(history, noise, sample_rate, count), self.delta, self.accountant)
        note = "" if after.accountant == self.accountant else f", by the {after.accountant} accountant"
        plan = f"{count} steps are planned" if steps <= limit else f"The budget allows for {count} steps"
        return f"{plan}: epsilon {after.epsilon:.4g} at delta {self.delta:g} after the last one{note}."
