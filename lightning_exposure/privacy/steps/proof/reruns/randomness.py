"""Random numbers that belong to rows: the same for the first examples of a batch, however many there are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_OF_CLASSES = ("multinomial", "_sample_dirichlet")
"""What these draw goes along the last dimension as a whole."""
_BROADCAST = ("normal", "bernoulli", "bernoulli_", "binomial")
"""What these are given may be of fewer dimensions than what they draw."""


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
        name = func.overloadpacket.__name__
        if not float(_given(func, args, options, "dropout_p", 1.0)):
            return func(*args, **options)  # attention that draws nothing; its masks need not be of rows
        if name in _BROADCAST:
            args = _broadcast(args)
        if func is torch.ops.aten.multinomial.default and _given(func, args, options, "replacement", False):
            # One sample alone is drawn in another way than the first of several.
            wanted = args[1]
            return self._of_rows(func, [args[0], max(wanted, self._rows), *args[2:]], options)[..., :wanted]
        return self._of_rows(func, args, options)

    def _of_rows(self, func: Any, args: list[Any], options: dict[str, Any]) -> Any:
        """What is drawn for the first rows, if it is drawn for all."""
        shape = next((_shape(value) for value in args if _shape(value)), ())
        # Along a single dimension of classes there are no rows.
        fewest = 2 if func.overloadpacket.__name__ in _OF_CLASSES else 1
        if len(shape) < fewest or shape[0] >= self._rows:
            return func(*args, **options)
        positional = [argument.name for argument in func._schema.arguments][: len(args)]
        given = {**dict(zip(positional, args, strict=True)), **options}
        padded = {name: self._padded(value, shape) for name, value in given.items()}
        found = func(*(padded[name] for name in positional), **{name: padded[name] for name in options})
        written: list[tuple[Tensor, Tensor]] = []
        for argument in func._schema.arguments:
            if argument.is_write and padded[argument.name] is not given[argument.name]:
                given[argument.name].copy_(padded[argument.name][: shape[0]])
                written.append((given[argument.name], padded[argument.name]))
        parts = [_cut(part, shape[0], written) for part in (found if isinstance(found, tuple) else (found,))]
        return tuple(parts) if isinstance(found, tuple) else parts[0]

    def _padded(self, value: Any, shape: tuple[int, ...]) -> Any:
        """The same with more rows: a tensor, or a shape; anything else as it is."""
        own, rows = _shape(value), shape[0]
        if len(own) != len(shape) or own[0] != rows:
            return value
        if not isinstance(value, Tensor):
            return [self._rows, *value[1:]]
        return torch.cat([value, value[:1].expand(self._rows - rows, *value.shape[1:])])


def _given(func: Any, args: list[Any], options: dict[str, Any], name: str, default: Any) -> Any:
    """The argument of a name, however it was given; the default of the function, or that one if it has none."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else options.get(name, argument.default_value)
    return default


def _broadcast(args: list[Any]) -> list[Any]:
    """Tensors of one shape: what belongs to a column, or to all, is no row."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
    return [value.expand(shape) if isinstance(value, Tensor) and value.shape != shape else value for value in args]


def _cut(found: Any, rows: int, written: list[tuple[Tensor, Tensor]]) -> Any:
    """The first rows of what was drawn; or the tensor that it was to be written into."""
    for own, other in written:
        if found is other:
            return own
    return found[:rows] if isinstance(found, Tensor) else found


def _shape(value: Any) -> tuple[int, ...]:
    """Of a tensor, or of what is asked for as a list of numbers; nothing, if there are no rows."""
    if isinstance(value, Tensor):
        return tuple(value.shape) if len(value.shape) and len(value) else ()
    sizes = value if isinstance(value, list | tuple) else ()
    return tuple(sizes) if sizes and all(isinstance(size, int) and size > 0 for size in sizes) else ()
