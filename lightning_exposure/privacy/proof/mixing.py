"""Do the examples of a batch have a part in each other's gradients?

Clipping the gradient of each example protects it only if the gradient is that of the example. If a loss, a layer or a
state lets examples see each other, what is clipped as one example's is made of several. It shows: in a healthy model
an example's gradient is the same whatever the other examples are, to the last digits; in a mixing one it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from lightning_exposure.errors import FitError, MixingError
from lightning_exposure.privacy.proof.error import STOPPED
from lightning_exposure.privacy.proof.examples import Examples, Seen
from lightning_exposure.privacy.proof.naming import who_mixes
from lightning_exposure.privacy.proof.rows import Rows

_MANY = 16
"""From so many examples on, four of them are taken, otherwise two."""


_IRREPRODUCIBLE = (
    "the model draws random numbers that are not the same when a batch is run again, so that the gradients of an "
    "example among others cannot be compared"
)


class MixingProbe:
    """Runs parts of a batch again, and refuses examples that mix or are not clipped.

    Args:
        examples: Runs training steps.
        module: What is trained, to say who mixes.
        loss_reduction: What the loss is said to be over the examples, "mean" or "sum".
        max_grad_norm: What each example is clipped to.
        tolerance: By which part of its norm a gradient may be off: rounding.
        luck: Chooses the examples; private.

    Attributes:
        rows: How many examples were run again so far.
    """

    def __init__(
        self,
        examples: Examples,
        module: nn.Module,
        *,
        loss_reduction: str,
        max_grad_norm: float,
        tolerance: float,
        luck: np.random.Generator,
    ) -> None:
        self._examples, self._module = examples, module
        self._loss_reduction, self._norm = loss_reduction, max_grad_norm
        self._tolerance, self._luck = tolerance, luck
        self.rows = 0

    @staticmethod
    def cost(examples: int) -> int:
        """How many examples are run again to look at a batch, if the model draws no random numbers."""
        return (4 if examples >= _MANY else 2) + 2

    def check(self, batch: Any, examples: int) -> str | None:
        """Look at an example of a batch.

        Args:
            batch: What the training step is given.
            examples: How many examples it has, at least 2.

        Returns:
            What could not be looked at, and why; None if everything could.

        Raises:
            MixingError: Examples mix.
            FitError: An example is not clipped.
        """
        rows = Rows(batch, examples)
        if not rows.found:
            return (
                f"no examples were found in the batch ({type(batch).__name__}), because nothing in it is as long as "
                f"there are examples ({examples})"
            )
        with self._examples.session():
            try:
                return self._look(rows, *self._choose(examples))
            except FitError:
                raise
            except Exception as problem:
                # A step that cannot be run on a part of its batch.
                return self._look_at_whole_batches(rows, examples, problem)

    def _look(self, rows: Rows, chosen: int, others: list[int], instead: list[int]) -> str | None:
        first, second = [chosen, *others], [chosen, *instead]
        with self._examples.without_dropout():
            inside = self._inside(rows, first)
            if not inside.norm:
                return None
            alone = self._examples.alone(rows.take([chosen]))
            self.rows += 1
            if not inside.random and inside.differs_from(alone, self._tolerance):
                return self._refuse(rows, inside, alone, first, second)
            self._check_clipping(rows.take([chosen]), alone)
        problem = None
        if inside.random:
            # With the same random numbers and the same shape, every row gets the same ones.
            problem = self._compare(rows, self._inside(rows, first), first, second)
        if inside.changed:
            problem = self._check_state(rows, first, second) or problem
        return problem

    def _look_at_whole_batches(self, rows: Rows, examples: int, problem: Exception) -> str:
        order = [int(place) for place in self._luck.permutation(examples)]
        second = [order[0], *(int(place) for place in self._luck.choice(order, examples - 1))]
        seen = self._inside(rows, order)
        found = self._compare(rows, seen, order, second)
        if seen.changed:
            found = self._check_state(rows, order, second) or found
        return found or (
            "the training step cannot be run on a part of its batch, so that single examples could not be clipped "
            f"again ({type(problem).__name__}: {problem})"
        )

    def _choose(self, examples: int) -> tuple[int, list[int], list[int]]:
        """An example, those beside it, and others in their place."""
        order = [int(place) for place in self._luck.permutation(examples)]
        count = 3 if examples >= _MANY else 1
        chosen, rest = order[0], order[1:]
        instead = rest[count : 2 * count]
        return chosen, rest[:count], instead + [chosen] * (count - len(instead))

    def _inside(self, rows: Rows, places: Sequence[int], after: Sequence[int] | None = None) -> Seen:
        self.rows += len(places)
        before = None if after is None else rows.take(after)
        return self._examples.inside(rows.take(places), len(places), after=before)

    def _compare(self, rows: Rows, seen: Seen, first: Sequence[int], second: Sequence[int]) -> str | None:
        """The same example among others, with the same random numbers."""
        other = self._inside(rows, second)
        if not seen.differs_from(other, self._tolerance):
            return None
        if seen.differs_from(self._inside(rows, first), self._tolerance) or seen.randomness != other.randomness:
            return _IRREPRODUCIBLE
        raise self._mixing(rows, seen, other, first, second)

    def _check_state(self, rows: Rows, first: Sequence[int], second: Sequence[int]) -> str | None:
        """The same batch after others: is a state carried over that holds data?"""
        one = self._inside(rows, first, after=first[::-1])
        other = self._inside(rows, first, after=second[::-1])
        if one.differs_from(other, self._tolerance):
            if one.differs_from(self._inside(rows, first, after=first[::-1]), self._tolerance):
                return "the model is not the same when a batch is run again, so that its state cannot be compared"
            raise MixingError(
                "The gradient of an example depends on the batch before its own: the module carries a state over from "
                "one batch to the next, such as hidden states, a queue or running statistics, in which other examples "
                f"have a part. {STOPPED} Begin every batch with a fresh state."
            )
        return None

    def _refuse(self, rows: Rows, inside: Seen, alone: Seen, first: Sequence[int], second: Sequence[int]) -> str:
        """An example alone has another gradient than among others, and nothing seems to be random."""
        if inside.differs_from(self._inside(rows, first), self._tolerance):
            return _IRREPRODUCIBLE
        other = self._inside(rows, second)
        if inside.differs_from(other, self._tolerance):
            raise self._mixing(rows, inside, other, first, second)
        count, ratio = len(first), inside.norm / alone.norm if alone.norm else float("inf")
        is_sum = self._loss_reduction == "mean" and abs(ratio / count - 1) < 0.1
        is_mean = self._loss_reduction == "sum" and abs(ratio * count - 1) < 0.1
        if is_sum or is_mean:
            found, remedy = ("sum", "sum") if is_sum else ("mean", "mean")
            raise MixingError(
                f"loss_reduction={self._loss_reduction!r}: but the loss is the {found} over the examples of a batch: "
                f"the same example has {ratio:.3g} times the gradient in a batch of {count}. {STOPPED} Use "
                f"loss_reduction={remedy!r}, or take the {self._loss_reduction} in the loss."
            )
        if not inside.is_parallel_to(alone, self._tolerance):
            # Most likely random numbers after all: always the same ones, but others for other shapes.
            return f"an example has another gradient in a batch of {count} than alone, whatever the others are"
        raise MixingError(
            f"The gradient of an example depends on how many others there are: in a batch of {count} it has "
            f"{ratio:.3g} times the norm that it has alone. {STOPPED} Make the loss a {self._loss_reduction} over the "
            "examples in which each has a part of its own."
        )

    def _mixing(self, rows: Rows, one: Seen, other: Seen, first: Sequence[int], second: Sequence[int]) -> MixingError:
        where = who_mixes(self._module, self._examples, rows.take(first), rows.take(second), len(first))
        if where is None and one.is_parallel_to(other, 1e-3):
            return MixingError(
                "The gradient of an example depends on the other examples of its batch: the loss weighs each example "
                "by something of the others, such as the mean over all tokens that are not padding, or weights that "
                f"are divided by their sum. {STOPPED} Take the mean of each example by itself, and then over the "
                "examples: lightning_exposure.privacy.per_example_loss(logits, labels) does so for the .loss of "
                "Hugging Face models and for cross_entropy with ignore_index."
            )
        named = where or "the loss, which compares examples with each other"
        return MixingError(
            f"The gradient of an example depends on the other examples of its batch. They are mixed by {named}. "
            f"{STOPPED} Let every example be computed by itself: statistics over a batch, sorting, attention or "
            "losses between examples are not possible; nn.LayerNorm and nn.GroupNorm are."
        )

    def _check_clipping(self, batch: Any, alone: Seen) -> None:
        """What the example gives to the sum, by brute force: its gradient, longer than the limit, and cut to it."""
        if not alone.norm:
            return
        times = 10 * self._norm / alone.norm
        clipped = self._examples.clipped(batch, times=times)
        self.rows += 1
        # Shorter does no harm: what rounding may have hidden is taken off.
        if clipped.norm <= self._norm * (1 + self._tolerance) and clipped.is_parallel_to(alone, self._tolerance):
            return
        if alone.random and self._examples.alone(batch).differs_from(alone, self._tolerance):
            return
        raise FitError(
            f"The step was not clipped: an example whose gradient has a norm of {alone.norm * times:.4g} by itself "
            f"gives {clipped.norm:.4g} to the sum, or in another direction; expected max_grad_norm={self._norm:.4g}. "
            f"{STOPPED}"
        )
