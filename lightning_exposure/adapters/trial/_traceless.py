"""Trying a module out without leaving a trace: its attributes, its buffers and the random numbers are as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightning_exposure._torch import own_buffers, writes_to
from lightning_exposure.adapters.protocol import device_of, evaluating


@contextmanager
def without_trace(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards nothing that a forward may have changed is different.

    A forward may draw random numbers, count its calls, or keep a cache that grows with what it reads, in buffers and
    in attributes that belong together: both are put back.
    """
    device = device_of(module)
    drawn = [device.index or 0] if device.type == "cuda" else []
    attributes = [(part, dict(vars(part))) for part in module.modules()]
    buffers = [
        (part, name, buffer, None if buffer is None else buffer.detach().clone())
        for part in module.modules()
        for name, buffer in own_buffers(part).items()
    ]
    versions = [_version(buffer) for _, _, buffer, _ in buffers]
    with torch.random.fork_rng(devices=drawn, enabled=device.type in ("cpu", "cuda")):
        try:
            with evaluating(module):
                yield
        finally:
            for part, before in attributes:
                _put_back(part, before)
            for (part, name, buffer, content), version in zip(buffers, versions, strict=True):
                own_buffers(part)[name] = buffer
                if buffer is not None and content is not None and _version(buffer) != version:
                    with torch.no_grad():
                        buffer.copy_(content)


def _put_back(part: nn.Module, before: dict[str, object]) -> None:
    """The attributes of a module as they were; tensors and containers that were changed in place are not looked at."""
    now = vars(part)
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _version(tensor: Tensor | None) -> int:
    """How often a tensor was written to; inference tensors do not say."""
    return 0 if tensor is None or tensor.is_inference() else writes_to(tensor)
