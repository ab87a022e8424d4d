"""The norms of per-example gradients from their factors, each with a bound on what rounding did to it.

`squares_of` is the quick way, `squares_of_formed` the sure one; `measure` takes the first, and the second where the
bound says so. What the bounds rest on is in `rounding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Rows, Whole
from lightning_exposure.privacy.clipping.rounding import (
    COMFORTABLE,
    growth,
    lengths,
    lengths_growth,
    outer_sum,
    pairs,
    terms_of,
    tiny,
    wide,
)

_Parts = Sequence[Sequence[Gradient]]
TOLERANCE = 1e-3
"""What is added to a norm for the sake of rounding, at most, as a part of the norm or of the clipping norm."""

STATED = 2e-5
"""By how much a contribution may exceed the norm it is clipped to, as a part of it."""

_CHUNK = 2**22
"""How many numbers of per-example gradients are made at once, where they have to be made."""

_SMALL = 24
"""Up to so many steps, the products of all pairs are added up at once: that is quicker than row by row."""


class Squares(NamedTuple):
    """Squared norms of the examples' gradients, `(parameters, batch)`, in double precision.

    Attributes:
        values: What was computed.
        errors: By how much that can be off.
        reach: At least `sum_t |l_t| |r_t|`: how long the gradient would be if its steps all pointed in one direction.
        largest: The square of the longest factor.
    """

    values: Tensor
    errors: Tensor
    reach: Tensor
    largest: Tensor


class MeasuredNorms(NamedTuple):
    """What clipping has to know.

    Attributes:
        norms: What each example adds to the sum at weight 1, at most, but for `STATED`: `(batch,)`, in double
            precision.
        apart: For each parameter the examples whose sum has to be made in double precision, `(parameters, batch)`.
    """

    norms: Tensor
    apart: Tensor


# --- the quick way --------------------------------------------------------------------------------------------------


def squares_of(gradients: Sequence[Sequence[Gradient]]) -> Squares:
    """The squared norms of each example's gradients, given the merged parts of each parameter's."""
    ways: dict[Callable[[Sequence[Any]], Squares], list[int]] = {}
    for number, parts in enumerate(gradients):
        ways.setdefault(_way_of(parts), []).append(number)
    found = [way([gradients[number] for number in numbers]) for way, numbers in ways.items()]
    # In the order of the parameters again.
    order = torch.tensor([number for numbers in ways.values() for number in numbers]).argsort()
    return Squares(*(torch.cat(columns)[order.to(columns[0].device)] for columns in zip(*found, strict=True)))


def _way_of(parts: Sequence[Gradient]) -> Callable[[Sequence[Any]], Squares]:
    if len(parts) == 2:
        return _of_both
    (part,) = parts
    if isinstance(part, Whole):
        return _of_whole
    if not part.pairs_are_cheaper:
        return _by_chunks
    return _from_pairs if isinstance(part, Products) else _from_pairs_of_rows


def _of_whole(gradients: Sequence[Sequence[Whole]]) -> Squares:
    norms = torch.stack([lengths(part.values) for (part,) in gradients])
    kinds = [part.dtype for (part,) in gradients]
    sizes = [part.values[0].numel() for (part,) in gradients]
    growths = [lengths_growth(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    off = norms.new_tensor(growths)[:, None] * norms
    least = [(size * tiny(kind)) ** 0.5 for size, kind in zip(sizes, kinds, strict=True)]
    return _from_norms(norms, off + norms.new_tensor(least)[:, None], norms, norms.square())


def _from_norms(norms: Tensor, off: Tensor, reach: Tensor, largest: Tensor) -> Squares:
    """Of norms that are off by so much."""
    return Squares(norms.square(), (2 * norms + off) * off, reach, largest)


class _Grams:
    """The inner products of all pairs of steps of some factors; once for each, as the maps of an LSTM share one.

    Attributes:
        matrices: `(batch, time, time)` each.
    """

    def __init__(self, factors: Sequence[Tensor]) -> None:
        self._numbers = {id(factor): number for number, factor in enumerate({id(f): f for f in factors}.values())}
        self._factors = list({id(f): f for f in factors}.values())
        self.matrices = [pairs(factor, factor) for factor in self._factors]

    def number(self, factor: Tensor) -> int:
        """Which of them belongs to a factor."""
        return self._numbers[id(factor)]

    def bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        """Traces, Frobenius norms, and the latter with all that rounding can have hidden; `(factors, batch)` each."""
        trace = wide(torch.stack([matrix.diagonal(dim1=1, dim2=2).sum(1) for matrix in self.matrices]))
        frobenius = wide(torch.stack([_frobenius(matrix) for matrix in self.matrices]))
        least = [factor[0].numel() * tiny(factor.dtype) for factor in self._factors]
        growths = [growth(terms_of(factor.shape[2]), factor.dtype) for factor in self._factors]
        trace += trace.new_tensor(least)[:, None]
        bound = frobenius + trace * trace.new_tensor(growths)[:, None] + trace.new_tensor(least)[:, None]
        return trace, frobenius, bound


def _from_pairs(gradients: Sequence[Sequence[Products]]) -> Squares:
    parts = [part for (part,) in gradients]
    grams = _Grams([factor for part in parts for factor in (part.left, part.right)])
    lefts, rights = ([grams.number(getattr(part, side)) for part in parts] for side in ("left", "right"))
    values = [_sum_of(grams.matrices[one] * grams.matrices[other]) for one, other in zip(lefts, rights, strict=True)]
    trace, frobenius, bound = grams.bounds()
    sums, least = _growth_of_sums(parts, [part.left.shape[1] for part in parts], trace)
    return Squares(
        # Rounding can leave a square a little below zero.
        wide(torch.stack(values)).clamp(min=0),
        # |P^ A^ - P A| <= dP |A^| + (|P^| + dP) dA = (|P^| + dP) (|A^| + dA) - |P^| |A^|
        bound[lefts] * bound[rights] - (1 - sums) * frobenius[lefts] * frobenius[rights] + least,
        (trace[lefts] * trace[rights]).sqrt(),
        torch.maximum(trace[lefts], trace[rights]),
    )


def _from_pairs_of_rows(gradients: Sequence[Sequence[Rows]]) -> Squares:
    parts = [part for (part,) in gradients]
    grams = _Grams([part.values for part in parts])
    matrices = [grams.matrices[grams.number(part.values)] for part in parts]
    alike = [part.indices[:, :, None] == part.indices[:, None, :] for part in parts]
    values = [_sum_of(matrix * same) for matrix, same in zip(matrices, alike, strict=True)]
    # How long the gradient would be if what is added to one row all pointed in one direction.
    norms = [matrix.diagonal(dim1=1, dim2=2).sqrt() for matrix in matrices]
    ones = [torch.bmm(same.to(norm), norm[:, :, None])[:, :, 0] for same, norm in zip(alike, norms, strict=True)]
    reach = wide(torch.stack([(norm * one).sum(1).sqrt() for norm, one in zip(norms, ones, strict=True)]))
    trace, frobenius, bound = grams.bounds()
    numbers = [grams.number(part.values) for part in parts]
    same = wide(torch.stack([one.sum((1, 2)) for one in alike])).sqrt()
    sums, least = _growth_of_sums(parts, [part.values.shape[1] for part in parts], trace)
    errors = (bound[numbers] - (1 - sums) * frobenius[numbers]) * same + least
    hidden = [part.values.shape[1] * (part.values[0].numel() * tiny(part.dtype)) ** 0.5 for part in parts]
    return Squares(
        wide(torch.stack(values)).clamp(min=0), errors, reach + reach.new_tensor(hidden)[:, None], trace[numbers]
    )


def _growth_of_sums(parts: Sequence[Products | Rows], steps: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """By how much `_sum_of` can be off: as a part of the absolute values, and for products that are too small."""
    terms = [count**2 if count <= _SMALL else count for count in steps]
    growths = [growth(count + 2, part.dtype) for count, part in zip(terms, parts, strict=True)]
    least = [count**2 * tiny(part.dtype) for count, part in zip(steps, parts, strict=True)]
    return like.new_tensor(growths)[:, None], like.new_tensor(least)[:, None]


def _sum_of(matrices: Tensor) -> Tensor:
    """The sum of each matrix."""
    if matrices.shape[1] <= _SMALL:
        return matrices.flatten(1).sum(1)
    return wide(matrices.sum(2)).sum(1)


def _frobenius(matrices: Tensor) -> Tensor:
    # `MARGIN` covers what rounding does to up to 2^18 squares.
    if matrices[0].numel() <= 2**18:
        found: Tensor = torch.linalg.vector_norm(matrices.flatten(1), dim=1)
    else:
        found = torch.linalg.vector_norm(wide(torch.linalg.vector_norm(matrices, dim=2)), dim=1)
    return found


def _by_chunks(gradients: Sequence[Sequence[Products | Rows]]) -> Squares:
    """From the gradients themselves, of a few examples at a time."""
    found = []
    for (part,) in gradients:
        factor = part.left if isinstance(part, Products) else part.values
        step = max(1, _CHUNK // max(1, part.numbers))
        norms = torch.cat([lengths(part.whole(i, i + step)) for i in range(0, len(factor), step)])
        terms = terms_of(factor.shape[1]) if isinstance(part, Products) else factor.shape[1]
        reach, largest = _reach_of(part)
        found.append(_from_norms(norms, _off(norms, reach, terms, part.numbers, part.dtype), reach, largest))
    return _stacked(found)


def _reach_of(part: Products | Rows) -> tuple[Tensor, Tensor]:
    if isinstance(part, Products):
        left, right = _row_norms(part.left), _row_norms(part.right)
        return (left * right).sum(1), torch.maximum(left.square().sum(1), right.square().sum(1))
    norms = _row_norms(part.values)
    table = norms.new_zeros(len(norms), part.rows)
    return table.scatter_add_(1, part.indices.to(norms.device), norms).norm(dim=1), norms.square().sum(1)


def _row_norms(factor: Tensor) -> Tensor:
    """The norm of each step, `(batch, time)`."""
    least = factor.shape[2] * tiny(factor.dtype)
    norms: Tensor = torch.linalg.vector_norm(factor, dim=2)
    return (wide(norms).square() + least).sqrt()


def _off(norms: Tensor, reach: Tensor, terms: int, numbers: int, dtype: torch.dtype) -> Tensor:
    """By how much the norm of gradients can be off that were made of so many terms."""
    least: float = terms * (numbers * tiny(dtype)) ** 0.5
    return growth(terms, dtype) * reach + lengths_growth(numbers, dtype) * norms + least


def _stacked(found: Sequence[Squares]) -> Squares:
    return Squares(*map(torch.stack, zip(*found, strict=True)))


def _of_both(gradients: Sequence[tuple[Products, Rows]]) -> Squares:
    """Of a table that is also a linear map: |p + r|^2 = |p|^2 + |r|^2 + 2 p r."""
    found = []
    for products, rows in gradients:
        values, errors, reach, largest = squares_of([[products], [rows]])
        inner, error = _inner(products, rows)
        value = (values.sum(0) + 2 * inner).clamp(min=0)
        found.append(Squares(value, errors.sum(0) + 2 * error, reach.sum(0), largest.amax(0)))
    return _stacked(found)


def _inner(products: Products, rows: Rows) -> tuple[Tensor, Tensor]:
    """The inner product of each example's two gradients of a table that is also a linear map, and its error."""
    # The row that step s looked up meets, in the product of step t, the entry of that row times the right factor.
    columns = rows.indices[:, None, :].expand(-1, products.left.shape[1], -1)
    entries = products.left.gather(2, columns)
    values = wide((entries * pairs(products.right, rows.values)).sum(2)).sum(1)
    entries = wide(entries.abs_())
    largest = torch.bmm(entries, _row_norms(rows.values)[:, :, None])[:, :, 0] * _row_norms(products.right)
    _, steps, size = rows.values.shape
    dtype = torch.promote_types(products.dtype, rows.dtype)
    error = growth(terms_of(size) + steps + 2, dtype) * largest.sum(1)
    # A product that is too small counts as often as its entry is met.
    return values, error + tiny(dtype) * (size * entries.sum((1, 2)) + entries[0].numel())


# --- the sure way ---------------------------------------------------------------------------------------------------


def squares_of_formed(gradients: Sequence[Sequence[Gradient]]) -> Squares:
    """The same from the gradients themselves, a few rows at a time: no bound is smaller, and none takes longer."""
    return _stacked([_of_formed(parts) for parts in gradients])


def _of_formed(parts: Sequence[Gradient]) -> Squares:
    if isinstance(parts[0], Whole):
        return Squares(*(column[0] for column in squares_of([parts])))
    products = next((part for part in parts if isinstance(part, Products)), None)
    rows = next((part for part in parts if isinstance(part, Rows)), None)
    if products is None and rows is not None:
        found, indices = torch.unique(rows.indices, return_inverse=True)
        rows = Rows(indices, rows.values, len(found))
    both = [part for part in (products, rows) if part is not None]
    reaches, largest = zip(*(_reach_of(part) for part in both), strict=True)
    reach = torch.stack(reaches).sum(0)
    norms = torch.stack([_formed_norm(products, rows, example) for example in range(len(reach))])
    terms = 1 + sum(terms_of(p.left.shape[1]) if isinstance(p, Products) else p.values.shape[1] for p in both)
    off = _off(norms, reach, terms, both[0].numbers, both[0].dtype)
    return _from_norms(norms, off, reach, torch.stack(largest).amax(0))


def _formed_norm(products: Products | None, rows: Rows | None, example: int) -> Tensor:
    if products is not None:
        height, width = products.left.shape[2], products.right.shape[2]
    else:
        assert rows is not None
        height, width = rows.rows, rows.values.shape[2]
    step = max(1, _CHUNK // max(1, width))
    norms = []
    for begin in range(0, height, step):
        end = min(begin + step, height)
        if products is not None:
            table = outer_sum(products.left[example, :, begin:end], products.right[example])
        else:
            table = rows.values.new_zeros(end - begin, width)  # type: ignore[union-attr]
        if rows is not None:
            indices = rows.indices[example]
            inside = (indices >= begin) & (indices < end)
            table.index_add_(0, indices[inside] - begin, rows.values[example][inside])
        norms.append(lengths(table[None])[0])
    found: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return found


# --- which of them --------------------------------------------------------------------------------------------------


def measure(gradients: _Parts, limit: float, *, summed: _Parts | None = None) -> MeasuredNorms:
    """The norms of the examples over all parameters, safe from rounding.

    Args:
        gradients: For each parameter the merged parts of its per-example gradients.
        limit: The norm that they are clipped to. An error that is small beside it does not matter.
        summed: What the weighted sums will be made of, if not of these: the examples that users have.
    """
    sums = _Sums(gradients, limit, summed)
    if bool(sums.troubled.any()):
        sums.again(squares_of)
        sums.again(squares_of_formed)
        sums.take_apart()
    return MeasuredNorms(torch.maximum(sums.norms, sums.upper / (1 + STATED)), sums.apart)


class _Sums:
    """Squares, their errors and the shares in the rounding of the sum, each `(parameters, batch)`."""

    def __init__(self, gradients: _Parts, limit: float, summed: _Parts | None) -> None:
        self._gradients, self._limit = gradients, limit
        self._fewer = 1.0 if summed is None else 2.0  # sums of fewer steps can have more terms, because of the blocks
        self.values, self.errors, reach, largest = squares_of(gradients)
        self.shares = _shares(summed or gradients, reach, largest)
        self.apart = torch.zeros_like(self.values, dtype=torch.bool)

    @property
    def norms(self) -> Tensor:
        return self.values.sum(0).sqrt()

    @property
    def upper(self) -> Tensor:
        return (self.values.sum(0) + self.errors.sum(0)).sqrt() + self.shares.square().sum(0).sqrt()

    @property
    def troubled(self) -> Tensor:
        """Where the bound is too far from the norm, or nothing is known."""
        allowed = TOLERANCE * self.norms.clamp(min=self._limit)
        return ~(self.upper - self.norms <= allowed)

    def again(self, way: Callable[[Sequence[Sequence[Gradient]]], Squares]) -> None:
        """Compute in double precision where the errors are too large."""
        norms = self.norms
        slack = 0.5 * TOLERANCE * norms.clamp(min=self._limit)
        # So that the root of the square with its errors is above the norm by no more than the slack.
        allowed = (2 * norms * slack + slack.square()) / len(self.values)
        wrong = self.troubled & ~((self.errors <= allowed) & (self.values + self.errors).isfinite())
        for number in wrong.any(1).nonzero().flatten().tolist():
            if way is squares_of and self._gradients[number][0].dtype == torch.float64:
                continue  # that is how it was computed
            examples = wrong[number].nonzero().flatten()
            better = way([[part.of(examples) for part in self._gradients[number]]])
            self.values[number, examples] = better.values[0].to(self.values.device)
            self.errors[number, examples] = better.errors[0].to(self.values.device)

    def take_apart(self) -> None:
        """Leave to double precision what takes too large a part in the rounding of the sum."""
        allowed = 0.5 * TOLERANCE * self.norms.clamp(min=self._limit) / len(self.shares) ** 0.5
        self.apart = self.troubled & ~((self.shares <= allowed) & self.shares.isfinite())
        for number in self.apart.any(1).nonzero().flatten().tolist():
            examples = self.apart[number].nonzero().flatten()
            parts = [part.of(examples) for part in self._gradients[number]]
            better = squares_of([parts])
            share = self._fewer * _shares([parts], better.reach, better.largest)[0]
            # In the end it is rounded to the precision of the others.
            last = growth(3, self._gradients[number][0].dtype) * (better.values + better.errors).sqrt()[0]
            self.shares[number, examples] = (share + last).to(self.shares.device)


def _shares(gradients: Sequence[Sequence[Gradient]], reach: Tensor, largest: Tensor) -> Tensor:
    """How much each example adds to the rounding of the weighted sums, at weight 1; infinite if nothing is known."""
    growths = [sum(growth(_terms_of_weighted_sum(part) + 3, part.dtype) for part in parts) for parts in gradients]
    limits = [torch.inf if parts[0].dtype == torch.float64 else COMFORTABLE**2 for parts in gradients]
    found = reach * reach.new_tensor(growths)[:, None]
    return torch.where(largest <= largest.new_tensor(limits)[:, None], found, torch.inf)


def _terms_of_weighted_sum(part: Gradient) -> int:
    if isinstance(part, Products):
        return terms_of(part.left.shape[0] * part.left.shape[1])
    if isinstance(part, Whole):
        return terms_of(len(part.values))
    # As often as the most frequent row was looked up.
    return int(part.indices.flatten().bincount().max()) if part.indices.numel() else 0
