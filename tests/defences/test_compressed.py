"""How small a model or a text becomes."""

from __future__ import annotations

import bz2
import lzma

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.defences import compressed_size, quantize
from lightning_exposure.defences.compressed import packed
from lightning_exposure.errors import ArgumentError


def unpacked(content: bytes, kind: torch.dtype) -> Tensor:
    """What `packed` wrote, read the slow way."""
    size, count = torch.empty(0, dtype=kind).element_size(), int.from_bytes(content[:2], "little")
    table, body = content[2 : 2 + count * size], content[2 + count * size :]
    if count:
        rows = [table[code * size : (code + 1) * size] for code in body]
    else:
        number = len(body) // size
        rows = [bytes(body[place * number + row] for place in range(size)) for row in range(number)]
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("few", [False, True])
def test_nothing_is_lost(kind: torch.dtype, few: bool) -> None:
    numbers = torch.randn(40, 20, generator=torch.Generator().manual_seed(0)) * 50
    tensor = (numbers.div(10).round() if few else numbers).to(kind)
    assert torch.equal(unpacked(packed(tensor), kind), tensor.flatten())


def test_a_quantized_model_takes_a_byte_a_weight_or_less() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(200, 200)
    assert 3 * 40_000 < compressed_size(model) < 4 * 40_200
    assert compressed_size(quantize(model)) < 1.05 * 40_200
    assert compressed_size(quantize(model, 16)) < 0.6 * 40_200


def test_tied_weights_count_once_and_buffers_that_are_not_kept_do_not() -> None:
    embed, out = nn.Embedding(100, 50), nn.Linear(50, 100, bias=False)
    apart = compressed_size(nn.Sequential(embed, out))
    out.weight = embed.weight
    tied = nn.Sequential(embed, out)
    assert compressed_size(tied) < 0.6 * apart
    before = compressed_size(tied)
    tied.register_buffer("noise", torch.rand(5000), persistent=False)
    assert compressed_size(tied) == before
    tied.register_buffer("kept", torch.rand(5000))
    assert compressed_size(tied) > before + 10_000


def test_texts() -> None:
    text = "Straße und Weg, " * 100
    assert compressed_size(text) == compressed_size(text.encode()) == len(lzma.compress(text.encode()))
    assert compressed_size(text, "bz2") == len(bz2.compress(text.encode()))
    assert compressed_size(["one", "two"]) == compressed_size("one\ntwo")


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="compressor is 'zip'; expected one of 'lzma', 'bz2'"):
        compressed_size("text", "zip")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="content is 3, of type int; expected a module, a text, texts or bytes"):
        compressed_size(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"content is \[1, 2\]"):
        compressed_size([1, 2])  # type: ignore[list-item]
