"""Random numbers that belong to rows: the same for the first examples of a batch, however many there are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RowRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, what PyTorch draws depends on which draw it is, and on the row; not on how many rows there are.

    A model that draws noise for every example cannot otherwise be compared among batches of different sizes: neither
    are the numbers of a row the same, nor those of later draws. Nothing is taken from any generator.

    What has fewer than `rows` rows is drawn with that many, and cut.

    Args:
        rows: The number of examples in the largest batch to be compared.
        seed: Of all draws.

    Example:
        >>> with RowRandomness(rows=4):
        ...     many, labels = torch.randn(4, 3), torch.randint(9, (2,))
        >>> with RowRandomness(rows=4):
        ...     few, again = torch.randn(1, 3), torch.randint(9, (2,))
        >>> torch.equal(many[:1], few), torch.equal(labels, again)
        (True, True)
    """

    def __init__(self, rows: int, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._seed, self._draws = rows, seed, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch for whatever is done with tensors."""
        options = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        self._draws += 1
        common = torch.default_generator
        before = common.get_state()
        common.manual_seed(self._seed + self._draws)
        if options.get("generator") is not None:
            device = options["generator"].device
            options["generator"] = torch.Generator(device).manual_seed(self._seed + self._draws)
        try:
            return self._drawn(func, list(args), options)
        finally:
            common.set_state(before)

    def _drawn(self, func: Any, args: list[Any], options: dict[str, Any]) -> Any:
        shape = next((_shape(value) for value in args if _shape(value)), ())
        if not shape or shape[0] >= self._rows:
            return func(*args, **options)
        found = func(*(self._padded(value, shape[0]) for value in args), **options)
        if not func._schema.is_mutable:
            return found[: shape[0]] if isinstance(found, Tensor) else tuple(part[: shape[0]] for part in found)
        args[0].copy_(found[: shape[0]])
        return args[0]

    def _padded(self, value: Any, rows: int) -> Any:
        """The same with more rows: a tensor, or a shape."""
        if not _shape(value) or _shape(value)[0] != rows:
            return value
        if not isinstance(value, Tensor):
            return [self._rows, *value[1:]]
        return torch.cat([value, value[:1].expand(self._rows - rows, *value.shape[1:])])


def _shape(value: Any) -> tuple[int, ...]:
    """Of a tensor, or of what is asked for as a list of numbers; nothing, if there are no rows."""
    if isinstance(value, Tensor):
        return tuple(value.shape) if len(value.shape) and len(value) else ()
    sizes = value if isinstance(value, list | tuple) else ()
    return tuple(sizes) if sizes and all(isinstance(size, int) and size > 0 for size in sizes) else ()
