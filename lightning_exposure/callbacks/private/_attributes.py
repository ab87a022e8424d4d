"""Plain attributes and buffers of a module, as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

_LARGEST = 2**20
"""Tensors with more numbers are not copied: tables and masks, which nothing counts in."""


class Attributes:
    """The numbers, texts and small tensors that a module and its parts have as attributes; metrics are left alone.

    Args:
        module: Whose they are. Its parameters are none of them.

    Example:
        >>> module = nn.Linear(1, 1)
        >>> module.calls = 1
        >>> module.register_buffer("steps", torch.tensor(1))
        >>> before = Attributes(module)
        >>> module.calls += 1
        >>> module.steps += 1
        >>> before.restore()
        >>> module.calls, int(module.steps)
        (1, 1)
    """

    def __init__(self, module: nn.Module) -> None:
        self._held: list[dict[str, Any]] = [held for part in _parts(module) for held in (vars(part), part._buffers)]
        self._plain = [{name: value for name, value in held.items() if _is_plain(value)} for held in self._held]
        self._tensors = [
            {name: (value, value.detach().clone()) for name, value in held.items() if _is_small(value)}
            for held in self._held
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put them back as they were."""
        for held, plain, tensors in zip(self._held, self._plain, self._tensors, strict=True):
            held.update(plain)
            for name, (value, content) in tensors.items():
                if value.shape != content.shape or not torch.equal(value, content):
                    value.resize_(content.shape).copy_(content)
                held[name] = value


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """A module and its parts, without metrics and what these are made of."""
    if not isinstance(module, Metric | MetricCollection):
        yield module
        for part in module.children():
            yield from _parts(part)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _is_small(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.numel() <= _LARGEST
