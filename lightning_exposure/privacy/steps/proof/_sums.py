"""Is the sum of a step that of its examples, each clipped by its own norm?

A sum that is short enough need not be one of clipped examples: the batch may have been clipped as a whole, or every
example by what all have in common. So the sum is made once more, out of the examples' gradients as they were before
clipping. For little of the time: some norms are recomputed by brute force (all of them, in a small model), and the sum
is compared in random directions, in which the gradients of a linear map need not be formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Rows, Whole
from lightning_exposure.privacy.clipping.norms import squares_of_formed
from lightning_exposure.privacy.clipping.rounding import wide
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.users.grouping import groups_of, spans_of

_DIRECTIONS = 4
_NUMBERS = 2**22
"""About how many numbers of gradients are formed for the norms; those of one example in any case."""
_CHUNK = 2**20
_ROUNDING = {True: 0.05, False: 2e-3}
"""By which part a norm or a sum may be off, in half precision and otherwise: twice what clipping itself allows for."""

Gradients = Mapping[nn.Parameter, Sequence[Gradient]]


class SumOfExamples:
    """What the clipped sum of a batch has to be, seen before it is clipped.

    Args:
        gradients: For each parameter the parts of its per-example gradients.
        examples: How many examples there are; `Grouped`, if what is clipped are users.
        scale: What the loss has divided every example's gradient by.
        luck: Chooses examples and directions; private.
        most: Of how many examples of a batch the norms are recomputed, at most; None: of all, if the model is small.
        share: Which part of its batch these are.
    """

    def __init__(
        self,
        gradients: Gradients,
        examples: int,
        scale: float,
        luck: np.random.Generator,
        *,
        most: int | None = None,
        share: float = 1.0,
    ) -> None:
        spans, self._scale = spans_of(examples), scale
        groups = groups_of(examples)
        self._units, self._who = len(spans), "examples" if groups is None else "users"
        self._generator = torch.Generator().manual_seed(int(luck.integers(2**62)))
        self._half = any(
            part.dtype in (torch.bfloat16, torch.float16) for parts in gradients.values() for part in parts
        )
        each = sum(parameter.numel() + sum(map(_held, parts)) for parameter, parts in gradients.items())
        few = int(_NUMBERS * self._units // max(1, each * examples))
        count = min(self._units, max(1, math.ceil(share * (few if most is None else min(few, most)))))
        self._chosen = torch.from_numpy(luck.permutation(self._units)[:count].copy())
        self._norms = _norms(gradients, [spans[place] for place in self._chosen.tolist()]) * scale
        self._directions: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self._along: dict[nn.Parameter, Tensor] = {}
        for parameter, parts in gradients.items():
            left, right = self._directions[parameter] = self._random_directions(parts[0])
            along = torch.stack([_along(part, left, right) for part in parts]).sum(0)
            self._along[parameter] = along if groups is None else _by_user(along, groups)

    def check(self, sums: Mapping[nn.Parameter, Tensor], norms: Tensor, max_grad_norm: float) -> None:
        """Refuse another sum than that of examples, each clipped by its own norm.

        Args:
            sums: The clipped sum of each parameter.
            norms: By which norms the examples were clipped.
            max_grad_norm: To what.

        Raises:
            FitError: It is another one.
        """
        if len(norms) != self._units:
            raise FitError(f"The step clipped {len(norms)} gradients of {self._units} {self._who}. {STOPPED}")
        tolerance, norms = _ROUNDING[self._half], wide(norms).cpu()
        used = norms[self._chosen]
        wrong = ~((used - self._norms).abs() <= tolerance * self._norms.clamp(min=max_grad_norm))
        if self._units and bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            one = "an example" if self._who == "examples" else "a user"
            raise FitError(
                f"The step was not clipped: {one} whose gradient has a norm of {float(self._norms[place]):.4g} "
                f"was clipped as if it were {float(used[place]):.4g}. {STOPPED}"
            )
        weights = (max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        allowed = tolerance * float((weights * norms).sum()) + 1e-12
        for parameter, total in sums.items():
            expected, seen = self._expected(parameter, weights * self._scale), self._seen(parameter, total)
            if not bool(((expected - seen).abs() <= allowed).all()):
                raise FitError(
                    "The step was not clipped: its sum is another one than that of its "
                    f"{self._units} {self._who}, each clipped to max_grad_norm={max_grad_norm:g} by its own norm. "
                    f"{STOPPED}"
                )

    def _expected(self, parameter: nn.Parameter, weights: Tensor) -> Tensor:
        if parameter not in self._along:  # it had no part in the batch
            return torch.zeros(_DIRECTIONS, dtype=torch.float64)
        return weights @ self._along[parameter]

    def _seen(self, parameter: nn.Parameter, total: Tensor) -> Tensor:
        if parameter not in self._directions:
            return wide(torch.linalg.vector_norm(total)).cpu().expand(_DIRECTIONS)
        left, right = self._directions[parameter]
        matrix = total.reshape(len(left), len(right))
        step = max(1, _CHUNK // max(1, len(right)))
        found = torch.zeros(_DIRECTIONS, dtype=torch.float64)
        for begin in range(0, len(left), step):
            rows = wide(matrix[begin : begin + step])
            found += ((rows @ right.to(rows)) * left[begin : begin + step].to(rows)).sum(0).cpu()
        return found

    def _random_directions(self, part: Gradient) -> tuple[Tensor, Tensor]:
        """Matrices of rank one as their two factors, in the shape in which the gradient is a matrix."""
        if isinstance(part, Products):
            sizes = (part.left.shape[2], part.right.shape[2])
        elif isinstance(part, Rows):
            sizes = (part.rows, part.values.shape[2])
        else:
            sizes = (part.values[0].numel() if len(part.values) else 0, 1)
        left, right = (torch.randn(size, _DIRECTIONS, generator=self._generator, dtype=torch.float64) for size in sizes)
        return left, right if sizes[1] > 1 else torch.ones_like(right)


def _norms(gradients: Gradients, chosen: Sequence[range]) -> Tensor:
    """Of some examples, or of users with several, from their gradients themselves, in double precision."""
    if not gradients or not len(chosen):
        return torch.zeros(len(chosen), dtype=torch.float64)
    # One parameter after the other: the copies of all would take as much memory as the batch.
    squares = [_squares(parts, chosen) for parts in gradients.values()]
    return torch.stack(squares).sum(0).sqrt()


def _squares(parts: Sequence[Gradient], chosen: Sequence[range]) -> Tensor:
    if all(len(span) == 1 for span in chosen):
        examples = torch.tensor([span.start for span in chosen])
        return squares_of_formed([[part.of(examples) for part in parts]]).values[0].cpu()
    found = [squares_of_formed([[_added_up(part.of(torch.tensor(span))) for part in parts]]) for span in chosen]
    return torch.cat([one.values[0].cpu() for one in found])


def _added_up(part: Gradient) -> Gradient:
    """The sum of the gradients of all examples, as that of one."""
    if isinstance(part, Whole):
        return Whole(part.values.sum(0, keepdim=True))
    if isinstance(part, Rows):
        return Rows(part.indices.reshape(1, -1), part.values.flatten(0, 1)[None], part.rows)
    return Products(part.left.flatten(0, 1)[None], part.right.flatten(0, 1)[None])


def _held(part: Gradient) -> int:
    """How many numbers an example's gradient is made of."""
    factors = (part.left, part.right) if isinstance(part, Products) else (part.values,)
    return sum(factor[0].numel() for factor in factors if len(factor))


def _along(part: Gradient, left: Tensor, right: Tensor) -> Tensor:
    """How far the gradient of each example goes in each direction, `(batch, directions)`."""
    if isinstance(part, Products):
        pairs = zip(_chunks(part.left), _chunks(part.right, like=part.left), strict=True)
        found = [((one @ left.to(one)) * (other @ right.to(other))).sum(1) for one, other in pairs]
    elif isinstance(part, Rows):
        chosen = zip(_chunks(part.values), _split(part.indices, _step(part.values)), strict=True)
        found = [
            ((values @ right.to(values)) * left.to(values)[indices.to(values.device)]).sum(1)
            for values, indices in chosen
        ]
    else:
        found = [values.flatten(1) @ left.to(values) for values in _chunks(part.values)]
    return torch.cat(found).cpu()


def _by_user(values: Tensor, groups: Sequence[int]) -> Tensor:
    """The sums over the examples of each user."""
    owners = torch.arange(len(groups)).repeat_interleave(torch.tensor(groups))
    return values.new_zeros(len(groups), values.shape[1]).index_add_(0, owners, values)


def _step(values: Tensor) -> int:
    return max(1, _CHUNK // max(1, values[0].numel())) if len(values) else 1


def _chunks(values: Tensor, like: Tensor | None = None) -> Iterator[Tensor]:
    """A few examples at a time, in double precision."""
    return (wide(few) for few in _split(values, _step(values if like is None else like)))


def _split(values: Tensor, step: int) -> list[Tensor]:
    return [values[begin : begin + step] for begin in range(0, len(values), step)]
