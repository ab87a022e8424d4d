"""The same for training steps that make their backward passes and their steps themselves (manual optimization)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from lightning_exposure.errors import FitError, MixingError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.support import mixes_examples
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates
from lightning_exposure.privacy.steps.proof.mixing import MixingProbe
from lightning_exposure.privacy.steps.proof.reruns.examples import Examples
from lightning_exposure.privacy.steps.proof.reruns.randomness import RowRandomness
from lightning_exposure.privacy.users.grouping import Grouped, groups_of

_FEW = 2
"""Among so many, an example has to have the gradient that it has among many; some layers refuse a single one."""

Steps = Callable[[Any, float], None]
"""Runs a training step up to the step of the private optimizer, which it does not make; losses times a number."""


class SteppedExamples(Examples):
    """Looks at the gradient that the private optimizer would step along.

    An example of a batch is a record with all that is computed for it: the generated record beside it in the loss of a
    discriminator, too. Random numbers belong to rows, so that the same record alone has the same one beside it.

    Args:
        clipping: Of the private part, attached.
        steps: Runs a training step.
        coordinates: Which numbers are looked at.
        whole: The module that the private part belongs to.
    """

    def __init__(self, clipping: Clipping, steps: Steps, coordinates: Coordinates, whole: nn.Module) -> None:
        super().__init__(clipping, lambda batch: None, coordinates, whole)
        self._steps = steps
        self._rows = 1

    def inside(self, batch: Any, examples: int, **options: Any) -> Any:
        """The gradients of the first examples in a batch, as clipping sees them."""
        self._rows = max(self._rows, examples)
        return super().inside(batch, examples, **options)

    def _forward(self, batch: Any) -> None:
        self._backward(batch)

    def _backward(self, batch: Any, times: float = 1.0) -> None:
        with RowRandomness(self._rows):
            self._steps(batch, times)

    def _plain_gradients(
        self, batch: Any, parameters: Sequence[nn.Parameter], times: float = 1.0
    ) -> Sequence[Tensor | None]:
        for parameter in self._whole.parameters():
            parameter.grad = None  # put back afterwards
        self._backward(batch, times)
        return [parameter.grad for parameter in parameters]


class SteppedProbe(MixingProbe):
    """As its base class; but what an example draws at random is the same in every batch, so that it counts."""

    def _choose(self, rows: Any, examples: int, *, whole: bool) -> Any:
        pair = super()._choose(rows, examples, whole=whole)
        groups = groups_of(pair.look)
        # Alone, an example has the random numbers of the first row.
        return replace(pair, look=1 if groups is None else Grouped(groups[:1]))

    def _look(self, pair: Any) -> str | None:
        try:
            problem = super()._look(pair)
        except FitError:
            raise
        except Exception:  # it cannot be run on a single example
            self._compare_numbers(pair)
            raise
        self._compare_numbers(pair)
        return problem

    def _compare_numbers(self, pair: Any) -> None:
        """The same example among many others and among few."""
        if len(pair.first) > _FEW:
            many, few = self._inside(pair)[0], self._inside(pair.part(_FEW))[0]
            if not many.random and self._differ(many, few) and not self._is_rounding(pair, 0, many, few):
                self._refuse_number(pair, many)

    def _refuse(self, pair: Any, place: int, inside: Any, alone: Any) -> str | None:
        problem = super()._refuse(pair, place, inside, alone)
        if problem is not None:
            self._refuse_number(pair, inside)
        return problem

    def _refuse_number(self, pair: Any, seen: Any) -> None:
        if self._differ(seen, self._inside(pair)[0]):
            return  # it is never the same: nothing can be told
        mixing = [name for name, part in self._module.named_modules() if mixes_examples(part)]
        who = f"{', '.join(map(repr, mixing))} (statistics over the batch)" if mixing else "the training step"
        raise MixingError(
            f"The gradient of an example depends on how many others there are: {who} makes something else of the "
            f"records that are generated beside them. {STOPPED} Let every generated record be computed by itself: use "
            "nn.GroupNorm or nn.LayerNorm in a generator, or set its batch statistics to eval mode; and draw as many "
            "random numbers for each of them."
        )
