"""The Transformer is the one of PyTorch, made of layers that can be trained privately."""

from __future__ import annotations

import torch
from torch import nn

from lightning_exposure.modules.transformer import TransformerLayer, TransformerNetwork

SIZE, HEADS, TIME = 8, 2, 5


def a_pair(dropout: float = 0.0) -> tuple[TransformerLayer, nn.TransformerEncoderLayer]:
    """A layer of ours, and one of PyTorch with the same weights."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(SIZE, HEADS, 4 * SIZE, dropout, "gelu", batch_first=True, norm_first=True)
    ours = TransformerLayer(SIZE, num_heads=HEADS, dropout=dropout)
    names = {
        "attention_norm": "norm1",
        "attention.inputs": "self_attn.in_proj",
        "attention.outputs": "self_attn.out_proj",
        "norm": "norm2",
        "widen": "linear1",
        "narrow": "linear2",
    }
    weights = theirs.state_dict()
    for name in ours.state_dict():
        place, _, kind = name.rpartition(".")
        joint = "_" if place == "attention.inputs" else "."
        ours.get_parameter(name).data.copy_(weights[f"{names[place]}{joint}{kind}"])
    return ours.double(), theirs.double()


def test_a_layer_computes_what_that_of_pytorch_computes() -> None:
    ours, theirs = a_pair()
    signal = torch.randn(3, TIME, SIZE, dtype=torch.float64)
    ahead = nn.Transformer.generate_square_subsequent_mask(TIME, dtype=torch.float64)
    torch.testing.assert_close(ours(signal), theirs(signal, src_mask=ahead, is_causal=True))


def test_dropout_is_for_training_only() -> None:
    ours, _ = a_pair(dropout=0.5)
    signal = torch.randn(3, TIME, SIZE, dtype=torch.float64)
    assert not torch.equal(ours(signal), ours(signal))
    ours.eval()
    assert torch.equal(ours(signal), ours(signal))


def test_attention_weights_are_dropped_too() -> None:
    ours, _ = a_pair(dropout=0.5)
    signal = torch.randn(3, TIME, SIZE, dtype=torch.float64)
    assert not torch.equal(ours.attention(signal), ours.attention(signal))


def test_no_two_layers_begin_alike() -> None:
    torch.manual_seed(0)
    first, second, _ = TransformerNetwork(9, hidden_size=SIZE, num_heads=HEADS, num_layers=2).layers
    assert not torch.equal(first.attention.inputs.weight, second.attention.inputs.weight)  # type: ignore[union-attr]


def test_learned_positions_are_weights_and_sinusoids_are_not() -> None:
    sizes = {"hidden_size": SIZE, "num_heads": HEADS, "max_length": TIME}
    learned = TransformerNetwork(9, positions="learned", **sizes)
    sinusoidal = TransformerNetwork(9, positions="sinusoidal", **sizes)
    assert set(learned.state_dict()) - set(sinusoidal.state_dict()) == {"positions.weight"}
    for network in (learned, sinusoidal):
        logits = network(torch.zeros(2, TIME, dtype=torch.long))
        assert torch.equal(logits[0], logits[1])
        # Without positions all steps would look alike, as all tokens are the same.
        assert not torch.allclose(logits[0, 1], logits[0, 2], atol=1e-4)
