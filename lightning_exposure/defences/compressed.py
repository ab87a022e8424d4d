"""How small a model or a text becomes when it is compressed: a model that is smaller cannot hold all of the text."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_exposure._checks import choice, refusal

Compressor = Literal["lzma", "bz2"]

_COMPRESSORS: Mapping[Compressor, Callable[[bytes], bytes]] = MappingProxyType(
    {"lzma": lambda content: lzma.compress(content, preset=6), "bz2": lambda content: bz2.compress(content, 9)}
)

_CODES = 256
"""So many values a byte can tell apart."""
_WHOLE = MappingProxyType({2: torch.int16, 4: torch.int32, 8: torch.int64})
"""Whole numbers by their size in bytes: two numbers are the same if their bytes are."""


def compressed_size(content: nn.Module | str | bytes | Iterable[str], compressor: Compressor = "lzma") -> int:
    """The size in bytes of a model, or of a text, when it is compressed without loss.

    "The Secret Sharer" (6.6) puts the two side by side: 600 KB of model against 1.7 MB of text. What is smaller than
    the text cannot have memorized all of it, and memorizes secrets all the same.

    Of a model, its parameters and the buffers that a checkpoint keeps are counted, tied ones once; names and shapes
    are not. A tensor with at most 256 different values, such as `quantize` makes, is written as one byte a weight
    and a table of the values. The bytes of any other are sorted by their place in the number, because the first ones
    are alike.

    Args:
        content: A module; a text, or several, in UTF-8; or bytes.
        compressor: "lzma" (xz, preset 6) or "bz2" (level 9), both of Python's standard library.

    Raises:
        ArgumentError: It is none of these.

    Example:
        >>> compressed_size("all work and no play " * 1000) < 200
        True
        >>> from lightning_exposure.defences import quantize
        >>> model = nn.Linear(100, 100)
        >>> compressed_size(quantize(model)) < 0.4 * compressed_size(model)
        True
    """
    compress = _COMPRESSORS[choice("compressor", compressor, _COMPRESSORS)]
    return len(compress(_as_bytes(content)))


def _as_bytes(content: object) -> bytes:
    if isinstance(content, nn.Module):
        return b"".join(map(packed, _kept(content)))
    if isinstance(content, bytes):
        return content
    texts = [content] if isinstance(content, str) else list(content) if isinstance(content, Iterable) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise refusal("content", content, "a module, a text, texts or bytes", "Read a file first.", with_type=True)
    return "\n".join(texts).encode("utf-8", "surrogatepass")


def _kept(module: nn.Module) -> list[Tensor]:
    """What a checkpoint keeps of a module, each tensor once."""
    kept = set(module.state_dict())
    named = [*module.named_parameters(), *((name, it) for name, it in module.named_buffers() if name in kept)]
    return [tensor.detach().cpu() for _, tensor in named]


def packed(tensor: Tensor) -> bytes:
    """A tensor as bytes that compress well, from which it can be made again if type and shape are known."""
    flat = tensor.detach().cpu().contiguous().flatten()
    size = flat.element_size()
    content = bytearray(2)
    if size in _WHOLE and len(flat) > _CODES:
        values, codes = torch.unique(flat.view(_WHOLE[size]), return_inverse=True)
        if len(values) <= _CODES:
            content = bytearray(len(values).to_bytes(2, "little"))
            content += values.numpy().tobytes()
            return bytes(content + codes.to(torch.uint8).numpy().tobytes())
    return bytes(content + flat.view(torch.uint8).view(-1, size).T.contiguous().numpy().tobytes())
