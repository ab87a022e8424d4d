r"""How far rounding can carry a norm or a sum from the truth, and products that keep it near.

Clipping promises that nobody adds more than `max_grad_norm` to a step, whatever the example. In numbers with a unit
roundoff of u (6e-8 in single precision) that is a statement about rounding too: an example whose steps nearly cancel
has a small gradient made of large parts, and what is computed of it can be rounding alone.

**The one fact that everything rests on** (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1): a sum
of n products, in any order, with or without fused multiplications, differs from the true one by at most
`growth(n) * sum |a_i| |b_i|`, where `growth(n) = n u / (1 - n u)`. Where results of b sums of n / b products are added,
n / b + b takes the place of n; so long sums are made in blocks here. Products that are too small for the format are
off by at most its smallest normal number each, flushed to zero or not; it is called t.

**Norms from pairs of steps.** The gradient G = sum_s l_s r_s' has |G|^2 = sum_st P_st A_st, where P_st = l_s l_t and
A_st = r_s r_t. Let P^ and A^ be what is computed of them, in R and C products for each entry. By the fact above,
|P^ - P| <= growth(R) |L| |L|' + R t, entry by entry. The matrix |L| |L|' is positive semidefinite, so its Frobenius
norm is at most its trace, which is the trace of P. Hence, in Frobenius norms,

    dP := |P^ - P| <= growth(R) tr(P) + T R t        dA := |A^ - A| <= growth(C) tr(A) + T C t,

and as P^ A^ - P A = (P^ - P) A^ + P (A^ - A), Cauchy and Schwarz bound the error of the squared norm by

    dP |A^| + (|P^| + dP) dA + growth(T + 1) |P^| |A^| + T^2 t;

the last two terms are those of the sum itself, because sum_st |P^_st A^_st| <= |P^| |A^|. The trace takes the place of
a sum over all pairs, and a Frobenius norm that of another one: where steps point in different directions, as they do in
long sequences, this is smaller than `growth * (sum_s |l_s| |r_s|)^2` by the root of their number. For a table that was
looked up, A_st is 1 or 0 and dA = 0. Where such a table is also a linear map, the inner product of the two is bounded
in the same way, by `growth * sum_st |entry_st| |r_t| |v_s|`.

**Norms of gradients that are made.** Each entry of G^ is off by `growth(T) sum_t |l_t| |r_t|`, so that the norm is off
by at most growth(T) S, where S = sum_t |l_t| |r_t| is the sum of the products of the norms. There are no differences in
the sum of its squares. Where the traces are known, S is bounded by sqrt(tr(P) tr(A)).

**The sum that is added to the gradient.** The share of an example in the rounding of the weighted sum is, by the same
fact, at most `growth(n) S` times its weight, where n counts the steps of all examples that are summed with it, plus
two: for the weight, and for adding the result. So an example's contribution is at most weight * (|G| + growth(n) S).

**What follows.** With N^2 the computed square, E its bound and s the share in the sum, N_up = sqrt(N^2 + E) + s is at
least as large as what an example contributes at weight 1; the weight max_grad_norm / N_up keeps it within
max_grad_norm. A contribution may exceed it by 2e-5 of it, so that N_up / (1 + 2e-5) will do, and N itself where the
bound is that small: then results are those of a plain computation. Where N_up is more than 0.1% above N, and that
matters, the example is computed again in double precision (see `measuring`), so that almost nothing is clipped for the
sake of the bound.

All bounds are themselves computed with rounding, which `MARGIN` covers. What the rounding of a *sum* of many examples
does is no contribution of one of them, and stays: some 1e-7 of the length of the sum.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

MARGIN = 1.02
"""By how much bounds are made larger, because they are computed with rounding themselves."""

COMFORTABLE = 1e15
"""Rows longer than this are left to double precision: their weights could become too small for single precision."""

_BLOCK = 512
"""How many products are added up at once."""

_SQUARES = 1024
"""How many squares are added up at once, in single precision."""


def growth(terms: int, dtype: torch.dtype) -> float:
    """How much a sum of so many products can be off, relative to the sum of their absolute values.

    Example:
        >>> growth(1000, torch.float32) < 1e-4 < growth(10_000, torch.float32)
        True
    """
    part = terms * torch.finfo(dtype).eps / 2
    return MARGIN * part / (1 - part) if part < 0.5 else math.inf


def tiny(dtype: torch.dtype) -> float:
    """By how much a product can be off that is too small for a format."""
    return float(torch.finfo(dtype).tiny)


def terms_of(size: int) -> int:
    """How many terms count for a sum over a dimension of a size, if it is made by `pairs` or `outer_sum`.

    >>> terms_of(100), terms_of(1000), terms_of(100_000)
    (100, 502, 707)
    """
    blocks = max(1, -(-size // _BLOCK))
    return -(-size // blocks) + (blocks if blocks > 1 else 0)


def pairs(left: Tensor, right: Tensor) -> Tensor:
    """The inner products of all pairs of rows, `(batch, rows of left, rows of right)`."""
    parts = [(left[:, :, part], right[:, :, part].transpose(1, 2)) for part in _blocks(left.shape[2])]
    found = torch.bmm(*parts[0])
    for part in parts[1:]:
        found.baddbmm_(*part)
    return found


def outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """The sum over the rows of their outer products: of `(rows, a)` and `(rows, b)`, or of batches of them."""
    parts = [(left[..., part, :].mT, right[..., part, :]) for part in _blocks(left.shape[-2])]
    found = parts[0][0] @ parts[0][1]
    for one, other in parts[1:]:
        if found.dim() == 2:
            found.addmm_(one, other)
        else:
            found.baddbmm_(one, other)
    return found


def lengths(values: Tensor) -> Tensor:
    """The norm over all dimensions but the first, `(batch,)`, in double precision.

    Off by less than 1e-4 of it in single precision, whatever the size.
    """
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    if flat.shape[1] <= _SQUARES:
        return wide(torch.linalg.vector_norm(flat, dim=1))
    even = flat.shape[1] - flat.shape[1] % _SQUARES
    blocks = torch.linalg.vector_norm(flat[:, :even].reshape(len(flat), -1, _SQUARES), dim=2)
    rest = torch.linalg.vector_norm(flat[:, even:], dim=1, keepdim=True)
    joined: Tensor = torch.linalg.vector_norm(wide(torch.cat([blocks, rest], 1)), dim=1)
    return joined


def lengths_growth(numbers: int, dtype: torch.dtype) -> float:
    """By how much `lengths` of so many numbers can be off, relative to the norm."""
    # The root halves it: half of the sum's error, and that of the root itself.
    return growth(min(numbers, _SQUARES) // 2 + 2, dtype)


def wide(values: Tensor) -> Tensor:
    """In double precision; on the CPU, where a device has none."""
    return (values.cpu() if values.device.type == "mps" else values).double()


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute with all digits that a format has: no autocast, and no shortcuts in matrix products (TF32, bfloat16)."""
    with torch.autocast(device.type, enabled=False), contextlib.ExitStack() as undo:
        settings = [getattr(torch.backends, name).matmul for name in ("cuda", "mkldnn") if _has_setting(name)]
        if settings:
            for setting in settings:
                before = setting.fp32_precision
                if before != "ieee":
                    undo.callback(setattr, setting, "fp32_precision", before)
                    setting.fp32_precision = "ieee"
        elif torch.get_float32_matmul_precision() != "highest":
            undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


def _has_setting(backend: str) -> bool:
    # From PyTorch 2.9 on; before, one setting stood for all.
    return hasattr(getattr(getattr(torch.backends, backend), "matmul", None), "fp32_precision")


def _blocks(size: int) -> list[slice]:
    step = max(1, -(-size // max(1, -(-size // _BLOCK))))
    return [slice(begin, begin + step) for begin in range(0, max(size, 1), step)]
