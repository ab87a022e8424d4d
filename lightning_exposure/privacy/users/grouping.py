"""Examples that belong together: the gradient of a user is the sum of those of his records.

All that clipping has to know of a user's gradient is in the factors of his records' gradients. A gradient is a sum over
time of outer products, and a sum does not care whose steps they are: a user is one example whose steps are those of his
records, one record after the other. So the norms, and the bounds on what rounding does to them, hold as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Rows
from lightning_exposure.privacy.clipping.norms import MeasuredNorms

Measure = Callable[..., MeasuredNorms]


class Grouped(int):
    """A number of examples that knows how many of them belong to each user, one user after the other.

    It is a number, so that whoever counts examples goes on doing so; only what clips, and what proves it, has to ask
    who belongs together.

    Attributes:
        groups: How many examples each user has, in the order of the batch.

    Example:
        >>> batch = Grouped([2, 1, 3])
        >>> batch, batch.groups, units_of(batch), units_of(6)
        (6, (2, 1, 3), 3, 6)
    """

    groups: tuple[int, ...]

    def __new__(cls, groups: Sequence[int]) -> Grouped:
        """So many examples."""
        made = super().__new__(cls, sum(groups))
        made.groups = tuple(groups)
        return made

    def __getnewargs__(self) -> tuple[tuple[int, ...]]:  # type: ignore[override]
        """What a copy is made of."""
        return (self.groups,)


def groups_of(examples: int) -> tuple[int, ...] | None:
    """How many examples each user has; None if every example is on its own."""
    return examples.groups if isinstance(examples, Grouped) else None


def units_of(examples: int) -> int:
    """How many are clipped each by itself: users, or examples."""
    return len(examples.groups) if isinstance(examples, Grouped) else examples


def spans_of(examples: int) -> list[range]:
    """Where the examples of each user are, or each example.

    >>> spans_of(Grouped([2, 1])), spans_of(2)
    ([range(0, 2), range(2, 3)], [range(0, 1), range(1, 2)])
    """
    groups = groups_of(examples)
    if groups is None:
        return [range(place, place + 1) for place in range(examples)]
    ends = torch.tensor(groups, dtype=torch.long).cumsum(0).tolist()
    return [range(end - size, end) for size, end in zip(groups, ends, strict=True)]


def for_each_example(values: Tensor, examples: int) -> Tensor:
    """What is known of each user, in the last dimension, for each of his examples.

    >>> for_each_example(torch.tensor([0.5, 1.0]), Grouped([2, 1]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    groups = groups_of(examples)
    if groups is None:
        return values
    return values.repeat_interleave(torch.tensor(groups, device=values.device), dim=-1)


def measured_by_user(
    measure: Measure, gradients: Sequence[Sequence[Gradient]], limit: float, groups: Sequence[int]
) -> MeasuredNorms:
    """The norms of the users over all parameters, safe from rounding.

    Users with about as many records are measured together: what fills up the places of those with fewer takes no more
    room than the records themselves.

    Args:
        measure: `norms.measure`.
        gradients: For each parameter the merged parts of its per-example gradients.
        limit: The norm that users are clipped to.
        groups: How many examples each user has.
    """
    sizes = torch.tensor(groups, dtype=torch.long)
    ends = sizes.cumsum(0)
    classes = (2 * sizes - 1).double().log2().floor().long()  # 1, 2, 3 to 4, 5 to 8, and so on
    norms: Tensor | None = None
    apart: Tensor | None = None
    for kind in sorted(set(classes.tolist())):
        users = (classes == kind).nonzero().flatten()
        joined = _Joined(sizes[users], (ends - sizes)[users], alone=len(users) == len(sizes))
        found = measure([[joined.of(part) for part in parts] for parts in gradients], limit, summed=gradients)
        if norms is None or apart is None:
            norms = found.norms.new_zeros(len(sizes))
            apart = found.apart.new_zeros(len(found.apart), len(sizes))
        norms[users.to(norms.device)] = found.norms
        apart[:, users.to(apart.device)] = found.apart
    assert norms is not None
    assert apart is not None
    return MeasuredNorms(norms, apart)


class _Joined:
    """Makes one example of all that a user has.

    Args:
        sizes: How many examples each user has.
        starts: Where the first of them is.
        alone: Whether these users are the whole batch, in its order.
    """

    def __init__(self, sizes: Tensor, starts: Tensor, *, alone: bool) -> None:
        self._users, self._most = len(sizes), int(sizes.max())
        slots = torch.arange(self._most)
        self._there = slots < sizes[:, None]
        self._records = (starts[:, None] + slots)[self._there]
        # Then nothing has to be moved, and nothing filled up.
        self._as_it_is = alone and bool(self._there.all())
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, part: Gradient) -> Gradient:
        """The gradients of the users."""
        if isinstance(part, Products):
            return Products(self._steps(part.left), self._steps(part.right))
        if isinstance(part, Rows):
            return Rows(self._steps(part.indices), self._steps(part.values), part.rows)
        # A sum of whole gradients is one of products with 1, a step for each record.
        values = part.values.flatten(1)[:, None]
        return Products(self._steps(values), self._steps(values.new_ones(len(values), 1, 1)))

    def _steps(self, values: Tensor) -> Tensor:
        """`(examples, time, ...)` as `(users, most * time, ...)`; zeros where a user has no more examples."""
        # The same object if it is the same: then its Gram matrix is made once.
        known = self._made.get(id(values))
        if known is not None and known[0] is values:
            return known[1]
        shape = (self._users, self._most * values.shape[1], *values.shape[2:])
        if self._as_it_is:
            made = values.reshape(shape)
        else:
            made = values.new_zeros(self._users, self._most, *values.shape[1:])
            made[self._there.to(values.device)] = values[self._records.to(values.device)]
            made = made.view(shape)
        self._made[id(values)] = (values, made)
        return made
