"""Per-example gradients of a parameter, kept as the factors they are made of.

The gradient of one example has as many numbers as the parameter; a batch of them seldom fits into the cache, or into
memory. What clipping needs of them is little: their norms, their inner products where a parameter is used twice, and
their weighted sum. All three can be had from the factors.

Every gradient here has the examples in the first dimension of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_exposure.privacy.clipping.rounding import outer_sum, wide


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

    @property
    def dtype(self) -> torch.dtype:
        """In which precision it is."""
        return torch.promote_types(self.left.dtype, self.right.dtype)

    def of(self, examples: Tensor) -> Products:
        """The gradients of some of the examples, in double precision."""
        return Products(*(wide(factor[examples.to(factor.device)]) for factor in (self.left, self.right)))

    def whole(self, begin: int = 0, end: int | None = None) -> Tensor:
        """The gradients themselves, `(batch, rows, columns)`, of some of the examples."""
        return outer_sum(self.left[begin:end], self.right[begin:end])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        left, right, factors = self.left, self.right, weights.to(self.left)[:, None, None]
        if left.shape[2] < right.shape[2]:
            left = left * factors
        else:
            right = right * factors
        # One product over all examples and steps; in the order in which the larger factor lies in memory.
        larger = left if left.shape[2] > right.shape[2] else right
        if larger.stride(0) < larger.stride(1):
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        return outer_sum(left.reshape(-1, left.shape[2]), right.reshape(-1, right.shape[2]))


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

    @property
    def dtype(self) -> torch.dtype:
        """In which precision it is."""
        return self.values.dtype

    def of(self, examples: Tensor) -> Rows:
        """The gradients of some of the examples, in double precision."""
        values = wide(self.values[examples.to(self.values.device)])
        return Rows(self.indices[examples.to(self.indices.device)].to(values.device), values, self.rows)

    def whole(self, begin: int = 0, end: int | None = None) -> Tensor:
        """The gradients themselves, `(batch, rows, columns)`, of some of the examples."""
        values = self.values[begin:end]
        table = values.new_zeros(len(values), self.rows, values.shape[2])
        return table.scatter_add_(1, self.indices[begin:end, :, None].expand_as(values), values)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        values = (self.values * weights.to(self.values)[:, None, None]).flatten(0, 1)
        return values.new_zeros(self.rows, values.shape[1]).index_add_(0, self.indices.flatten(), values)


@dataclass(frozen=True, eq=False)
class Whole:
    """The gradients themselves, `(batch, *shape)`: where they are small, or where nothing better is known."""

    values: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """In which precision it is."""
        return self.values.dtype

    def of(self, examples: Tensor) -> Whole:
        """The gradients of some of the examples, in double precision."""
        return Whole(wide(self.values[examples.to(self.values.device)]))

    def whole(self) -> Tensor:
        """The gradients themselves."""
        return self.values

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over the examples, each times its weight."""
        total = outer_sum(weights.to(self.values)[:, None], self.values.flatten(1))
        return total.view(self.values.shape[1:])


Gradient = Products | Rows | Whole


def only(gradient: Gradient, places: range) -> Gradient:
    """The gradients of some examples that stand side by side, in a batch of their own."""
    held: dict[str, Any] = {
        name: value[places.start : places.stop] for name, value in vars(gradient).items() if isinstance(value, Tensor)
    }
    return replace(gradient, **held)


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


def weighted_sum(gradients: Sequence[Gradient], weights: Tensor, apart: Tensor, total: Tensor) -> Tensor:
    """The sum over the examples of one parameter's gradients, each times its weight.

    Args:
        gradients: All that add up to the gradient of the parameter.
        weights: Of the examples.
        apart: Which of them have to be summed in double precision.
        total: What the sum is added to, of the shape of the parameter.
    """
    for part in gradients:
        total += part.weighted_sum(weights.masked_fill(apart, 0.0)).view_as(total)
    alone = apart.nonzero().flatten()
    if len(alone):
        # Rounded when all parts are added up, because they may cancel.
        first, *others = (part.of(alone).weighted_sum(weights[alone]).view_as(total) for part in gradients)
        total += sum(others, first).to(total.device)
    return total
