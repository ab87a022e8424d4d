"""`quantize`: after training, each weight becomes one of a few values."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import choice, flag, instance, whole_number
from lightning_exposure.errors import ArgumentError, ModelError

Floats = NDArray[np.float64]
Per = Literal["model", "tensor"]
Module = TypeVar("Module", bound=nn.Module)

_MARK = "_quantization"
_ROUNDS = 200
"""Where the levels are settled sooner, no more rounds are made; beyond it they hardly move."""
_FITTED = 2**22
"""Levels are fitted to no more weights than this, evenly picked; every weight is rounded."""


@dataclass(frozen=True)
class Quantization:
    """What `quantize` did to a module.

    Attributes:
        levels: How many values were allowed.
        per: Whether to the whole model or to each tensor.
        distinct: How many values there are: in the whole model, or in the tensor that has the most.
        weights: How many weights were rounded, those that are tied counted once.
        rms_change: The root of the mean square by which weights were moved.
        largest_change: The most that a weight was moved by.
    """

    levels: int
    per: Per
    distinct: int
    weights: int
    rms_change: float
    largest_change: float

    def holds_for(self, module: nn.Module) -> bool:
        """Whether a module has no more different weights than this says: it was not trained any further."""
        counts, seen = [0], set[float]()
        for _, weight in _weights(module):
            values = torch.unique(weight.detach()).double().tolist()
            counts.append(len(values))
            seen.update(values)
        return (len(seen) if self.per == "model" else max(counts)) <= self.distinct

    def to_dict(self) -> dict[str, Any]:
        """As an entry of `RunRecord.defences`."""
        return {"name": "quantization", **asdict(self)}


def quantize(module: Module, levels: int = 256, *, per: Per = "model", inplace: bool = False) -> Module:
    """A module in which each weight is one of a few values, as in Appendix D of "The Secret Sharer".

    The values are those that move the weights least in the mean square, by Lloyd's algorithm (k-means on a line); each
    weight becomes the one that is nearest. Zero stays zero. All floating-point parameters are rounded, trained or
    frozen; weights that are tied stay tied; buffers stay as they are. The type stays what it is: it is the number of
    values that shrinks, and `compressed_size` shows what that saves. Of a layer with a parametrization (weight norm)
    the parameters that it is made of are rounded.

    Args:
        module: Any module; LightningModules, Hugging Face models and PEFT's among them.
        levels: How many values, at least 2. A byte tells 256 apart.
        per: "model": one set of values for the whole model. "tensor": each parameter has a set of its own, which is
            closer to the weights, above all where tensors differ in scale.
        inplace: Whether to change the module itself. Else it is left alone, and a copy is changed.

    Returns:
        The copy, or the module itself; `quantization_of` tells what was done to it.

    Raises:
        ArgumentError: An argument is out of range, or the module cannot be copied.
        ModelError: The module has no weights, or one that is not finite.

    Example:
        >>> layer = nn.Linear(100, 100)
        >>> rounded = quantize(layer, levels=16)
        >>> len(torch.cat([rounded.weight.flatten(), rounded.bias]).unique()), quantization_of(rounded).distinct
        (16, 16)
        >>> quantization_of(layer) is None
        True
    """
    remedy = "Give the model itself; a LightningModule is one."
    instance("module", module, nn.Module, "an nn.Module", remedy)
    whole_number("levels", levels, at_least=2, remedy="256 is what a byte can tell apart.")
    choice("per", per, ("model", "tensor"))
    chosen = module if flag("inplace", inplace) else _copied(module)
    weights = dict(_weights(chosen))
    if not weights:
        raise ModelError(f"{type(module).__name__} has no floating-point parameters; expected weights to quantize.")
    groups = [weights] if per == "model" else [{name: weight} for name, weight in weights.items()]
    rounded = [_round(list(group.values()), levels) for group in groups]
    count = sum(weight.numel() for weight in weights.values())
    done = Quantization(
        levels=levels,
        per=per,
        distinct=max(group.distinct for group in rounded),
        weights=count,
        rms_change=(sum(group.squares for group in rounded) / count) ** 0.5,
        largest_change=max(group.most for group in rounded),
    )
    setattr(chosen, _MARK, done)
    return chosen


def quantization_of(module: nn.Module) -> Quantization | None:
    """What `quantize` did to a module; None if it did nothing, or if the weights were changed since then."""
    found: Quantization | None = getattr(module, _MARK, None)
    return found if found is not None and found.holds_for(module) else None


def levels_of(tensors: list[Tensor], count: int) -> Floats:
    """At most `count` values, in increasing order, that are near to the numbers in some tensors.

    They can be written in the type of every tensor. Numbers with so few different values stay as they are.

    >>> levels_of([torch.tensor([0.0, 1.0, 1.0, 4.0])], 3).tolist()
    [0.0, 1.0, 4.0]
    """
    few = _distinct(tensors, count)
    if few is not None:
        return few
    step = max(1, -(-sum(tensor.numel() for tensor in tensors) // _FITTED))
    parts = [tensor.detach().flatten().double().cpu().numpy() for tensor in tensors]
    ends = [value for part in parts if len(part) for value in (part.min(), part.max())]
    ordered = np.sort(np.concatenate([*(part[::step] for part in parts), ends]))
    levels = _fitted(ordered, count)
    if any(bool((part == 0.0).any()) for part in parts):
        levels[np.abs(levels).argmin()] = 0.0
    return np.unique(_representable(levels, tensors))


def nearest(values: Floats, levels: Floats) -> Floats:
    """For each value the level that is nearest to it; of two that are as near, the smaller one.

    >>> nearest(np.array([0.1, 0.5, 0.9]), np.array([0.0, 1.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    found: Floats = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2.0, values, side="left")]
    return found


class _Rounded(NamedTuple):
    """What rounding did to some tensors: the number of values, the sum of the squared changes, the largest change."""

    distinct: int
    squares: float
    most: float


def _round(tensors: list[Tensor], count: int) -> _Rounded:
    """Round tensors, in place, to at most `count` values."""
    levels = levels_of(tensors, count)
    used, squares, most = set[float](), 0.0, 0.0
    with torch.no_grad():
        for tensor in tensors:
            before = tensor.detach().double().cpu().numpy()
            after = nearest(before, levels)
            change = np.abs(after - before)
            squares += float(np.square(change).sum())
            most = max(most, float(change.max()))
            used.update(np.unique(after).tolist())
            tensor.copy_(torch.from_numpy(after))
    return _Rounded(len(used), squares, most)


def _fitted(ordered: Floats, count: int) -> Floats:
    """Lloyd's algorithm on numbers in increasing order, of which more than `count` differ."""
    levels = _beginning(ordered, count)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    squares = np.concatenate([[0.0], np.cumsum(np.square(ordered))])
    for _ in range(_ROUNDS):
        edges = _edges(ordered, levels)
        sizes = np.diff(edges)
        means = np.diff(sums[edges])[sizes > 0] / sizes[sizes > 0]
        if len(means) < count:  # a level that nothing is near to goes to where most is lost
            lost = np.diff(squares[edges])[sizes > 0] - sizes[sizes > 0] * np.square(means)
            worst = np.argsort(lost)[::-1][: count - len(means)]
            means = np.concatenate([means, ordered[edges[:-1][sizes > 0][worst]]])
        means = np.sort(means)
        if np.array_equal(means, levels):
            break
        levels = means
    return levels


def _edges(ordered: Floats, levels: Floats) -> NDArray[np.int64]:
    """Where the numbers that are nearest to each level begin, and where the last of them end."""
    inside = np.searchsorted(ordered, (levels[1:] + levels[:-1]) / 2.0, side="right")
    return np.concatenate([[0], inside, [len(ordered)]])


def _beginning(ordered: Floats, count: int) -> Floats:
    """Levels as dense as the cube root of the density of the numbers: the best if there were very many levels."""
    cells = np.quantile(ordered, np.linspace(0.0, 1.0, 16 * count + 1))
    weights = np.cumsum(np.concatenate([[0.0], np.diff(cells) ** (2.0 / 3.0)]))
    found: Floats = np.interp((np.arange(count) + 0.5) / count * weights[-1], weights, cells)
    return found


def _distinct(tensors: list[Tensor], count: int) -> Floats | None:
    """The different values in some tensors, if they are no more than `count`."""
    found = np.empty(0)
    for tensor in tensors:
        found = np.union1d(found, torch.unique(tensor.detach().double()).cpu().numpy())
        if len(found) > count:
            return None
    return found


def _representable(levels: Floats, tensors: list[Tensor]) -> Floats:
    """Levels as all types of the tensors can write them."""
    kinds = sorted({tensor.dtype for tensor in tensors}, key=lambda kind: torch.finfo(kind).eps)
    written = torch.from_numpy(levels)
    for kind in kinds:
        written = written.to(kind)
    found: Floats = written.double().numpy()
    if not np.isfinite(found).all():
        raise ModelError(
            f"the weights have the types {', '.join(map(str, kinds))}, and values that not all of them can write; "
            "expected one set of values for all. Use per='tensor'."
        )
    return found


def _weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The floating-point parameters, each once."""
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        if not bool(torch.isfinite(parameter.detach()).all()):
            raise ModelError(
                f"{name} has weights that are infinite or NaN; expected finite ones. Look at the training (a loss that "
                "became NaN?) before quantizing."
            )
        yield name, parameter


def _copied(module: Module) -> Module:
    try:
        return deepcopy(module)
    except Exception as error:
        raise ArgumentError(
            f"module is {type(module).__name__}, which cannot be copied ({error}); expected one that can, or "
            "inplace=True, which changes the module itself."
        ) from error
