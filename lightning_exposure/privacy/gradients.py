"""Per-example gradients of a parameter, kept as the factors they are made of.

The gradient of one example has as many numbers as the parameter; a batch of them seldom fits into the cache, or into
memory. What clipping needs of them is little: their norms, their inner products where a parameter is used twice, and
their weighted sum. All three can be had from the factors.

Every gradient here has the examples in the first dimension of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 2**22
"""How many numbers of per-example gradients are made at once, where they have to be made."""


@dataclass(frozen=True, eq=False)
class Products:
    """A matrix that is a sum over time of outer products: the gradient of a linear map.

    Attributes:
        left: `(batch, time, rows)`; for a linear layer the gradients of its outputs.
        right: `(batch, time, columns)`; for a linear layer its inputs.
    """

    left: Tensor
    right: Tensor

    @property
    def numbers(self) -> int:
        """How many numbers the gradient of one example has."""
        return self.left.shape[2] * self.right.shape[2]

    @property
    def pairs_are_cheaper(self) -> bool:
        """Whether the products of all pairs of steps take fewer operations than the gradients themselves."""
        return self.left.shape[1] * (self.left.shape[2] + self.right.shape[2]) <= self.numbers

    def whole(self, begin: int = 0, end: int | None = None) -> Tensor:
        """The gradients themselves, `(batch, rows, columns)`, of some of the examples."""
        return torch.bmm(self.left[begin:end].transpose(1, 2), self.right[begin:end])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        left, right = self.left, self.right
        if left.shape[2] < right.shape[2]:
            left = left * weights[:, None, None]
        else:
            right = right * weights[:, None, None]
        # One product over all examples and steps; in the order in which the larger factor lies in memory.
        larger = left if left.shape[2] > right.shape[2] else right
        if larger.stride(0) < larger.stride(1):
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        return left.reshape(-1, left.shape[2]).t() @ right.reshape(-1, right.shape[2])


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix with few rows that are not zero: the gradient of a table that was looked up.

    Attributes:
        indices: Which rows, `(batch, time)`.
        values: What is added to them, `(batch, time, columns)`.
        rows: How many rows the table has.
    """

    indices: Tensor
    values: Tensor
    rows: int

    @property
    def numbers(self) -> int:
        """How many numbers the gradient of one example has."""
        return self.rows * self.values.shape[2]

    @property
    def pairs_are_cheaper(self) -> bool:
        """Whether the products of all pairs of steps are smaller than the gradients themselves."""
        return 2 * self.values.shape[1] ** 2 <= self.numbers

    def whole(self, begin: int = 0, end: int | None = None) -> Tensor:
        """The gradients themselves, `(batch, rows, columns)`, of some of the examples."""
        values = self.values[begin:end]
        table = values.new_zeros(len(values), self.rows, values.shape[2])
        return table.scatter_add_(1, self.indices[begin:end, :, None].expand_as(values), values)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        values = (self.values * weights[:, None, None]).flatten(0, 1)
        return values.new_zeros(self.rows, values.shape[1]).index_add_(0, self.indices.flatten(), values)


@dataclass(frozen=True, eq=False)
class Whole:
    """The gradients themselves, `(batch, *shape)`: where they are small, or where nothing better is known."""

    values: Tensor

    def whole(self) -> Tensor:
        """The gradients themselves."""
        return self.values

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        return (weights @ self.values.flatten(1)).view(self.values.shape[1:])


Gradient = Products | Rows | Whole


class Grams:
    """Remembers the Gram matrices of factors, because the two maps of an LSTM layer share a factor."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, factor: Tensor) -> Tensor:
        """The inner products of all pairs of steps, `(batch, time, time)`."""
        if id(factor) not in self._known:
            # The factor is kept beside its matrix, so that its id is not given away meanwhile.
            self._known[id(factor)] = (factor, torch.bmm(factor, factor.transpose(1, 2)))
        return self._known[id(factor)][1]


def merged(gradients: Sequence[Gradient], shape: torch.Size) -> list[Gradient]:
    """The same gradients in as few parts as possible: at most one of products and one of rows, or the whole.

    What is used several times is used in several steps, and a sum over time does not care which steps are neighbours.

    Args:
        gradients: All that add up to the gradient of one parameter.
        shape: Of that parameter.
    """
    products = [part for part in gradients if isinstance(part, Products)]
    rows = [part for part in gradients if isinstance(part, Rows)]
    whole = [part for part in gradients if isinstance(part, Whole)]
    parts: list[Gradient] = []
    if len(products) > 1:
        parts.append(Products(*(torch.cat([getattr(p, name) for p in products], 1) for name in ("left", "right"))))
    else:
        parts += products
    if len(rows) > 1:
        indices, values = (torch.cat([getattr(r, name) for r in rows], 1) for name in ("indices", "values"))
        parts.append(Rows(indices, values, rows[0].rows))
    else:
        parts += rows
    if whole:
        first, *others = (part.whole().view(-1, *shape) for part in (*whole, *parts))
        parts = [Whole(sum(others, first))]
    return parts


def squared_norms(gradients: Sequence[Gradient], grams: Grams) -> Tensor:
    """The squared norm of each example's gradient, `(batch,)`, whose merged parts are given."""
    if len(gradients) == 2:
        products, rows = gradients
        assert isinstance(products, Products)
        assert isinstance(rows, Rows)
        alone = squared_norms([products], grams) + squared_norms([rows], grams)
        return (alone + 2 * _inner(products, rows)).clamp(min=0)
    (gradient,) = gradients
    if isinstance(gradient, Whole):
        return gradient.values.flatten(1).square().sum(1)
    if not gradient.pairs_are_cheaper:
        return _by_chunks(gradient)
    if isinstance(gradient, Products):
        alike = grams.of(gradient.right)
        pairs = grams.of(gradient.left)
    else:
        alike = gradient.indices[:, :, None] == gradient.indices[:, None, :]
        pairs = grams.of(gradient.values)
    # Rounding can leave a square a little below zero.
    return (pairs * alike).sum((1, 2)).clamp(min=0)


def _by_chunks(gradient: Products | Rows) -> Tensor:
    """The squared norms from the gradients themselves, of a few examples at a time."""
    batch = len(gradient.left if isinstance(gradient, Products) else gradient.values)
    step = max(1, _CHUNK // max(1, gradient.numbers))
    return torch.cat([gradient.whole(i, i + step).square().sum((1, 2)) for i in range(0, batch, step)])


def _inner(products: Products, rows: Rows) -> Tensor:
    """The inner product of each example's two gradients of a table that is also a linear map, `(batch,)`."""
    # The row that step s looked up meets, in the product of step t, the entry of that row times the right factor.
    columns = rows.indices[:, None, :].expand(-1, products.left.shape[1], -1)
    entries = products.left.gather(2, columns)
    return (entries * torch.bmm(products.right, rows.values.transpose(1, 2))).sum((1, 2))
