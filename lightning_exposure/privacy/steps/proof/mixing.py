"""Do the examples of a batch have a part in each other's gradients?

Clipping the gradient of each example protects it only if the gradient is that of the example. If a loss, a layer or a
state lets examples see each other, what is clipped as one example's is made of several. It shows: in a healthy model
an example's gradient is the same whatever the other examples are, to the last digits; in a mixing one it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lightning_exposure.errors import FitError, MixingError
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.steps.proof._naming import shown_others, who_mixes
from lightning_exposure.privacy.steps.proof.reruns.examples import Examples, Seen
from lightning_exposure.privacy.steps.proof.reruns.rows import BatchRows
from lightning_exposure.privacy.users.grouping import Grouped, groups_of, spans_of, units_of

_MANY = 16
"""From so many examples on, a part of a batch has four of them, otherwise two."""
_LOOK, _LEAST = 3, 8
"""How many examples are looked at in a whole batch, and from which size on; otherwise one."""
_HARMLESS = 1e-6
"""Which part of max_grad_norm does no harm, however large it is beside the gradient."""
_NOTHING = 1e-4
"""Which part of a gradient may be rounding alone, in a layer that has hardly any."""
_NUDGES = 3
_SAME = 1e-3
"""Which part of the tolerance is left where the very same batch is run again, and only a state is another one."""

_IRREPRODUCIBLE = (
    "the model draws random numbers that are not the same when a batch is run again, so that the gradients of an "
    "example among others cannot be compared"
)


@dataclass(frozen=True)
class _Pair:
    """Two batches of the same shape, whose first examples are the same.

    Attributes:
        rows: Where the examples are taken from.
        first: Their places in it.
        second: The same, with others in the place of those that are not looked at.
        look: How many are, as `Grouped`, if they are users with all their examples.
    """

    rows: BatchRows
    first: list[int]
    second: list[int]
    look: int

    def part(self, count: int) -> _Pair:
        """The same with fewer examples, of which one is looked at, or one user."""
        size, one = len(self.first), len(self.span(0))
        few = [*range(one), *range(max(one, size - count + 1), size)]
        look = 1 if groups_of(self.look) is None else Grouped([one])
        return _Pair(self.rows, [self.first[k] for k in few], [self.second[k] for k in few], look)

    def span(self, place: int) -> range:
        """Where the examples are of one that is looked at."""
        return spans_of(self.look)[place]

    def alone(self, place: int) -> list[int]:
        """The places of one that is looked at."""
        return [self.first[k] for k in self.span(place)]

    def repeated(self, place: int) -> list[int]:
        """A batch of the same shape that has nothing in it but one that is looked at."""
        span, own = self.span(place), self.alone(place)
        return [own[(k - span.start) % len(span)] for k in range(len(self.first))]

    @property
    def examples(self) -> int:
        """How many there are, each of those that are not looked at by itself."""
        groups = groups_of(self.look)
        return len(self.first) if groups is None else Grouped([*groups, *[1] * (len(self.first) - self.look)])


class MixingProbe:
    """Runs a batch or a part of it again, and refuses examples that mix or are not clipped.

    Args:
        examples: Runs training steps.
        module: What is trained, to say who mixes.
        loss_reduction: What the loss is said to be over the examples, "mean" or "sum".
        max_grad_norm: Gives what each example is clipped to.
        tolerance: By which part of its norm a gradient may be off: rounding.
        precision: By which part numbers may be off in a forward pass.
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
        max_grad_norm: Callable[[], float],
        tolerance: float,
        precision: float,
        luck: np.random.Generator,
    ) -> None:
        self._examples, self._module = examples, module
        self._loss_reduction, self._norm_now = loss_reduction, max_grad_norm
        self._tolerance, self._precision, self._luck = tolerance, precision, luck
        self.rows = 0

    @staticmethod
    def cost(examples: int, *, whole: bool = False) -> int:
        """How many examples are run again to look at a batch, if the model draws no random numbers."""
        each = max(groups_of(examples) or (1,))
        if whole:
            return examples + (_looked_at(examples) + 1) * each
        return (3 if examples >= _MANY else 1) + 3 * each

    def check(self, batch: Any, examples: int, *, whole: bool = False) -> str | None:
        """Look at examples of a batch.

        Args:
            batch: What the training step is given.
            examples: How many examples it has, at least 2.
            whole: Whether they are looked at among all others, or among a few of them.

        Returns:
            What could not be looked at, and why; None if everything could.

        Raises:
            MixingError: Examples mix.
            FitError: An example is not clipped.
        """
        rows = BatchRows(batch, examples)
        if not rows.found:
            return (
                f"no examples were found in the batch ({type(batch).__name__}), because nothing in it is as long as "
                f"there are examples ({examples})"
            )
        with self._examples.session():
            try:
                return self._look(self._choose(rows, examples, whole=whole))
            except FitError:
                raise
            except Exception as problem:
                # A step that cannot be run on a part of its batch.
                return self._look_at_whole_batches(rows, examples, problem)

    def _look(self, pair: _Pair) -> str | None:
        problem = None
        with self._examples.without_dropout():
            found = self._inside(pair)
            for place, inside in enumerate(found):
                only, size = pair.rows.take(pair.alone(place)), len(pair.span(place))
                alone = self._examples.alone(only, times=size if self._loss_reduction == "mean" else 1)
                self.rows += size
                if not inside.random and self._differ(inside, alone):
                    problem = self._refuse(pair, place, inside, alone) or problem
                elif not place:
                    self._check_clipping(only, alone, 1 if groups_of(pair.look) is None else Grouped([size]))
        if found[0].random:
            # With the same random numbers and the same shape, every row gets the same ones.
            problem = self._compare(pair) or problem
        if found[0].changed:
            problem = self._check_state(pair.part(4)) or problem
        return problem

    def _look_at_whole_batches(self, rows: BatchRows, examples: int, problem: Exception) -> str:
        pair = self._choose(rows, examples, whole=True)
        found = self._compare(pair)
        if self._inside(pair)[0].changed:
            found = self._check_state(pair) or found
        return found or (
            "the training step cannot be run on a part of its batch, so that single examples could not be clipped "
            f"again ({type(problem).__name__}: {problem})"
        )

    def _choose(self, rows: BatchRows, examples: int, *, whole: bool) -> _Pair:
        """Examples, those beside them, and others in their place."""
        spans = spans_of(examples)
        order = [spans[place] for place in self._luck.permutation(len(spans))]
        look = _looked_at(examples) if whole else 1
        chosen, rest = ([place for span in part for place in span] for part in (order[:look], order[look:]))
        if whole:
            beside, instead = rest, (rest[: len(rest) // 2] * 3)[: len(rest)]
        else:
            count = 3 if examples >= _MANY else 1
            beside, instead = rest[:count], rest[count : 2 * count]
        instead += chosen[:1] * (len(beside) - len(instead))
        looked_at = look if groups_of(examples) is None else Grouped([len(span) for span in order[:look]])
        return _Pair(rows, chosen + beside, chosen + instead, looked_at)

    @property
    def _norm(self) -> float:
        return self._norm_now()

    def _differ(self, one: Seen, other: Seen, tolerance: float | None = None) -> bool:
        return one.differs_from(other, tolerance or self._tolerance, _HARMLESS * self._norm)

    def _inside(
        self, pair: _Pair, places: Sequence[int] | None = None, after: Sequence[int] | None = None
    ) -> list[Seen]:
        """The examples that are looked at, among the first others or at some places."""
        places = pair.first if places is None else places
        self.rows += len(places)
        before = None if after is None else pair.rows.take(after)
        return self._examples.inside(pair.rows.take(places), pair.examples, look=units_of(pair.look), after=before)

    def _compare(self, pair: _Pair) -> str | None:
        """The same examples among others, with the same random numbers."""
        found, others = self._inside(pair), self._inside(pair, pair.second)
        for place, (seen, other) in enumerate(zip(found, others, strict=True)):
            if not self._differ(seen, other):
                continue
            if self._differ(seen, self._inside(pair)[place]) or seen.randomness != other.randomness:
                return _IRREPRODUCIBLE
            if not self._is_rounding(pair, place, seen, other):
                raise self._mixing(pair, place, seen, other, pair.second)
        return None

    def _is_rounding(self, pair: _Pair, place: int, one: Seen, other: Seen) -> bool:
        """Whether two gradients are as near to each other as rounding in a forward pass would bring them.

        What is left of a loss that is nearly zero is made of it, and so is the gradient.
        """
        apart = one.distance(other)
        for seed in range(_NUDGES):
            with self._examples.nudged(self._precision, seed):
                nudged = self._inside(pair)[place]
            if one.distance(nudged) >= apart:
                return True
        return False

    def _check_state(self, pair: _Pair) -> str | None:
        """The same batch after others: is a state carried over that holds data?"""

        def run(before: list[int]) -> Seen:
            return self._inside(pair, after=before[::-1])[0]

        one, other = run(pair.first), run(pair.second)
        if not self._differ(one, other, _SAME * self._tolerance):
            return None
        again = run(pair.first)
        if self._differ(one, again):
            return "the model is not the same when a batch is run again, so that its state cannot be compared"
        # By very little only if nothing else moves the last digits.
        if self._differ(one, other) or not self._differ(one, again, _SAME * self._tolerance):
            raise MixingError(
                "The gradient of an example depends on the batch before its own: the module carries a state over from "
                "one batch to the next, such as hidden states, a queue or running statistics, in which other examples "
                f"have a part. {STOPPED} Begin every batch with a fresh state."
            )
        return None

    def _refuse(self, pair: _Pair, place: int, inside: Seen, alone: Seen) -> str | None:
        """An example alone has another gradient than among others, and nothing seems to be random."""
        if self._differ(inside, self._inside(pair)[place]):
            return _IRREPRODUCIBLE
        if self._is_rounding(pair, place, inside, alone):
            return None
        count, ratio = len(pair.first), inside.norm / alone.norm if alone.norm else float("inf")
        for second in (pair.second, pair.repeated(place)):
            other = self._inside(pair, second)[place]
            if self._differ(inside, other):
                raise self._mixing(pair, place, inside, other, second)
        times = count / len(pair.span(place))
        is_sum = self._loss_reduction == "mean" and abs(ratio / times - 1) < 0.1
        is_mean = self._loss_reduction == "sum" and abs(ratio * times - 1) < 0.1
        if is_sum or is_mean:
            found, remedy = ("sum", "sum") if is_sum else ("mean", "mean")
            raise MixingError(
                f"loss_reduction is {self._loss_reduction!r}, but the loss is the {found} over the examples of a "
                f"batch: the same example has {ratio:.3g} times the gradient in a batch of {count}. {STOPPED} Use "
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

    def _mixing(self, pair: _Pair, place: int, one: Seen, other: Seen, second: Sequence[int]) -> MixingError:
        batches = (pair.rows.take(pair.first), pair.rows.take(second))
        named_by = (who_mixes(self._module, self._examples, *batches, len(second), row) for row in pair.span(place))
        where = next((name for name in named_by if name is not None), None)
        apart = [name for name in one.parts if self._differ(one.within([name]), other.within([name]))]
        apart = apart if len(apart) < sum(norm > 0 for norm in one.norms.values()) else []
        alone = shown_others(self._examples.module, apart)
        if where is None and alone:
            return MixingError(
                "The gradient of an example depends on the other examples of its batch, though nothing that the "
                f"layers return does, and only in {alone}: it is given the examples in another "
                "order than the other layers, or something that they share, or the loss compares what it returns for "
                f"different examples. {STOPPED} Sort no batch before it is packed: pack_padded_sequence(..., "
                "enforce_sorted=False). Look up positions[None], and not positions of shape (time,): in a batch of as "
                "many examples, they would be one of each."
            )
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
            "losses between examples are not possible; nn.LayerNorm and nn.GroupNorm are. Instead of sorting for "
            "packed sequences, use pack_padded_sequence(..., enforce_sorted=False)."
        )

    def _check_clipping(self, batch: Any, alone: Seen, examples: int) -> None:
        """What the example gives to the sum, by brute force: its gradient, longer than the limit, and cut to it."""
        if not alone.norm:
            return
        times = 10 * self._norm / alone.norm
        clipped = self._examples.clipped(batch, examples, times=times)
        self.rows += examples
        if self._is_clipped(clipped, alone):
            return
        scale = examples if self._loss_reduction == "mean" else 1
        if alone.random and self._examples.alone(batch, times=scale).differs_from(alone, self._tolerance):
            return
        raise FitError(
            f"The step was not clipped: an example whose gradient has a norm of {alone.norm * times:.4g} by itself "
            f"gives {clipped.norm:.4g} to the sum, or in another direction; expected max_grad_norm={self._norm:.4g}. "
            f"{STOPPED}"
        )

    def _is_clipped(self, clipped: Seen, alone: Seen) -> bool:
        """Whether an example gives to the sum its own gradient, cut to its limit in each block of parameters."""
        blocks = self._examples.blocks
        limit = self._norm / len(blocks) ** 0.5
        for names in blocks:
            one, other = clipped.within(names), alone.within(names)
            # Shorter does no harm: what rounding may have hidden is taken off.
            if not one.norm <= limit * (1 + self._tolerance):
                return False
            # What is next to nothing beside the other layers is rounding, and points anywhere.
            seen = len(blocks) == 1 or other.norm > _NOTHING * alone.norm
            if seen and not one.is_parallel_to(other, self._tolerance):
                return False
        return True


def _looked_at(examples: int) -> int:
    return _LOOK if units_of(examples) >= _LEAST else 1
