"""`weights_sha256`: which weights a report is about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_PART = 2**24
"""Bytes that are copied to the CPU at once."""


def weights_sha256(weights: nn.Module | Mapping[str, Any]) -> str:
    """The SHA-256 of the weights of a model, in hexadecimal digits.

    It is that of, for each tensor of the `state_dict` in the order of their names: its name, type and shape as one line
    of UTF-8, such as `embed.weight float32 [14, 8]`, and its values as bytes, in rows, the lowest byte first. So it
    depends neither on the device nor on the format of the file, and anyone who has the weights gets it again.

    Args:
        weights: A module, or its `state_dict`, such as the one in a checkpoint of Lightning.

    Example:
        >>> weights_sha256({"bias": torch.zeros(2), "scale": torch.ones(1)})[:16]
        '2ec3c81abd244b59'
    """
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name in sorted(name for name, value in state.items() if isinstance(value, Tensor)):
        tensor = state[name].detach()
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        flat = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        for start in range(0, flat.numel(), _PART):
            digest.update(flat[start : start + _PART].cpu().numpy().tobytes())
    return digest.hexdigest()
