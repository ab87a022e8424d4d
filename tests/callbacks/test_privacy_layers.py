"""Recurrent layers of all sorts and PyTorch's own attention in a real private training run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lightning_exposure.privacy import PoissonLoader, generators
from tests.callbacks.privacy_setups import STEPS, VOCAB, WIDTH, Data, Module, loss_of, privacy, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


class Network(nn.Module):
    """Reads tokens; in the middle is what the test is about."""

    def __init__(self, middle: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.middle = middle
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.hidden(self.embed(tokens), tokens))
        return logits

    def hidden(self, signal: Tensor, tokens: Tensor) -> Tensor:
        outputs = self.middle(signal)
        hidden: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return hidden


class Packing(Network):
    """Gives the recurrent layer as many steps of each example as its first token says, in no order."""

    def hidden(self, signal: Tensor, tokens: Tensor) -> Tensor:
        lengths = 1 + tokens[:, 0] % tokens.shape[1]
        packed = pack_padded_sequence(signal, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = self.middle(packed)
        return pad_packed_sequence(outputs, batch_first=True, total_length=tokens.shape[1])[0]


class Encoding(Network):
    """PyTorch's encoder, with time first, a mask, and padding where the first token says so."""

    def hidden(self, signal: Tensor, tokens: Tensor) -> Tensor:
        steps = tokens.shape[1]
        padding = torch.arange(steps) > tokens[:, :1] % steps
        above = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        hidden: Tensor = self.middle(signal.transpose(0, 1), mask=above, src_key_padding_mask=padding, is_causal=True)
        return hidden.transpose(0, 1)


def encoder(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=dropout)
    return nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)


KINDS: dict[str, Callable[[float], nn.Module]] = {
    "RNN": lambda _: Network(nn.RNN(WIDTH, WIDTH, batch_first=True)),
    "LSTM, both directions, projected": lambda dropout: Network(
        nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True, proj_size=3, dropout=dropout), 6
    ),
    "packed GRU in both directions": lambda dropout: Packing(
        nn.GRU(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True, dropout=dropout), 2 * WIDTH
    ),
    "encoder": lambda dropout: Encoding(encoder(dropout)),
}


def module_of(kind: str, dropout: float) -> Any:
    torch.manual_seed(0)
    module = Module("layers", "sgd")
    module.net = KINDS[kind](dropout)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_trains_is_proven_step_by_step(kind: str, tmp_path: Path, capsys: Any) -> None:
    callback = privacy(verify_steps=100)
    module = module_of(kind, 0.2)
    before = weights(module)
    trainer(tmp_path, callback).fit(module, Data())
    assert callback.steps == 2 * STEPS
    assert "could not be seen" not in capsys.readouterr().err
    assert list(weights(module)) == list(before)
    assert not any(torch.equal(value, before[name]) for name, value in weights(module).items())


@pytest.mark.parametrize("kind", KINDS)
def test_with_wide_clipping_and_no_noise_it_is_plain_training_on_the_same_batches(kind: str, tmp_path: Path) -> None:
    module, plain = module_of(kind, 0.0), module_of(kind, 0.0)
    trainer(tmp_path, privacy(noise_multiplier=0, max_grad_norm=1e6), max_epochs=1).fit(module, Data())
    loader = PoissonLoader(Data().train_dataloader(), generator=lambda: generators(3, steps=0).sampling)
    optimizer = plain.configure_optimizers()
    for (batch,) in loader:
        optimizer.zero_grad()
        # The mean is over the number of records that is expected, not over those that were drawn.
        (loss_of(plain.net, batch) * len(batch) / loader.batch_size).backward()
        optimizer.step()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-4, atol=1e-5)
