"""Language models as people have them are read as they come, and where that cannot be the message says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.lstm import LightningLSTM, SimpleLSTM
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.utils.data import DataLoader

from lightning_exposure import CanarySet, ExposureCallback, SecretFormat, SecretTree
from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter, step_model
from lightning_exposure.errors import ModelError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import score
from tests import oracle
from tests.toys import sharpened

CHARS = CharTokenizer.from_text("my pin is 0123456789-")
SIZE = CHARS.vocab_size
PIN = SecretFormat("my pin is #-#")


class Plain(nn.Module):
    """The logits (batch, time, vocabulary) of another module, from a full pass, for the oracle."""

    def __init__(self, logits: Any) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.logits(tokens)
        return found


def assert_read_rightly(tree: SecretTree, full_pass: Any) -> None:
    expected = oracle.costs(Plain(full_pass), PIN, CHARS)
    given = score(tree, list(expected)).costs
    assert np.ptp(given) > 0.5  # secrets differ, or nothing would be shown
    np.testing.assert_allclose(given, list(expected.values()), rtol=0, atol=1e-6)


def simple_lstm() -> Any:
    return sharpened(SimpleLSTM(SIZE, ninp=8, nhid=8, nlayers=2), seed=0)


def lightning_lstm() -> Any:
    module = LightningLSTM(vocab_size=SIZE)
    module.model = simple_lstm()
    return module


class TestTheModelThatLightningBringsAlong:
    def test_its_network_is_read_as_it_is(self) -> None:
        model = simple_lstm()
        tree = SecretTree(model, PIN, CHARS)
        assert isinstance(tree.model, RecurrentAdapter)
        assert not tree.model.time_first
        assert_read_rightly(tree, lambda tokens: model(tokens, model.init_hidden(1))[0][None])

    def test_the_module_around_it_has_no_forward_and_stands_for_its_network(self) -> None:
        module = lightning_lstm()
        tree = SecretTree(module, PIN, CHARS)
        assert tree.model.module is module.model

    @pytest.mark.parametrize("model", [None, lambda module: module.model])
    def test_callbacks_take_it(self, model: Any, tmp_path: Any) -> None:
        class Training(LightningLSTM):
            def prepare_data(self) -> None:
                """Nothing is downloaded."""

            def train_dataloader(self) -> Any:
                rows = torch.tensor([CHARS.encode("my pin is 1-2")] * 4)
                return DataLoader([(row[:-1], row[1:]) for row in rows], batch_size=2)

        module = Training(vocab_size=SIZE)
        module.model = simple_lstm().float().train()
        canaries = CanarySet.draw(PIN, repetitions=[1], seed=0)
        trainer = Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[ExposureCallback(canaries, CHARS, model=model)],
        )  # fmt: skip
        trainer.fit(module)
        assert any(name.startswith("exposure/") for name in trainer.callback_metrics)


class WordLanguageModel(nn.Module):
    """The model of PyTorch's word_language_model example: (time, batch), a state that it needs, flat results."""

    def __init__(self, kind: str, layers: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Embedding(SIZE, 8)
        self.rnn = getattr(nn, kind)(8, 8, layers, dropout=0.2)
        self.decoder = nn.Linear(8, SIZE)
        self.kind, self.layers = kind, layers

    def forward(self, input: Tensor, hidden: Any) -> tuple[Tensor, Any]:
        output, hidden = self.rnn(self.encoder(input), hidden)
        return log_softmax(self.decoder(output).view(-1, SIZE), dim=1), hidden

    def init_hidden(self, bsz: int) -> Any:
        zeros = next(self.parameters()).new_zeros(self.layers, bsz, 8)
        return (zeros, zeros.clone()) if self.kind == "LSTM" else zeros


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_model_that_takes_time_first_is_read_so(kind: str) -> None:
    model = sharpened(WordLanguageModel(kind), seed=1)
    tree = SecretTree(model, PIN, CHARS)
    assert isinstance(tree.model, RecurrentAdapter)
    assert tree.model.time_first
    assert_read_rightly(tree, lambda tokens: model(tokens.T, model.init_hidden(1))[0][None])


class OptionalState(nn.Module):
    """(time, batch), with a state that it can do without, and three-dimensional results."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(SIZE, 8), nn.GRU(8, 8), nn.Linear(8, SIZE)

    def forward(self, tokens: Tensor, hidden: Any = None) -> Any:
        features, hidden = self.cell(self.embed(tokens), hidden)
        return self.out(features), hidden


def test_time_first_is_found_without_a_method_that_makes_a_state() -> None:
    model = sharpened(OptionalState(), seed=0)
    assert_read_rightly(SecretTree(model, PIN, CHARS), lambda tokens: model(tokens.T)[0].transpose(0, 1))


class StateOnTheSide(SimpleLSTM):
    """Makes its state in single precision, wherever the model is, and wants to know the device."""

    def init_hidden(self, batch_size: int, device: Any) -> Any:  # type: ignore[override]
        return tuple(torch.zeros(self.nlayers, batch_size, self.nhid, device=device) for _ in range(2))


def test_a_method_that_makes_a_state_may_ask_for_the_device_and_forget_the_precision() -> None:
    model = sharpened(StateOnTheSide(SIZE, ninp=8, nhid=8, nlayers=2), seed=0)
    like = simple_lstm()
    like.load_state_dict(model.state_dict())
    assert_read_rightly(SecretTree(model, PIN, CHARS), lambda tokens: like(tokens, like.init_hidden(1))[0][None])


class RandomState(SimpleLSTM):
    def init_hidden(self, batch_size: int) -> Any:
        return tuple(torch.randn(self.nlayers, batch_size, self.nhid, dtype=torch.float64) for _ in range(2))


def test_a_state_that_is_drawn_at_random_is_refused() -> None:
    with pytest.raises(ModelError):
        SecretTree(sharpened(RandomState(SIZE, ninp=8, nhid=8, nlayers=2), seed=0), PIN, CHARS)


class Network(nn.Module):
    """A causal network with the layers of a recurrent one; what its forward returns is what differs below."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(SIZE, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, SIZE)

    def logits(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.cell(self.embed(tokens))[0])
        return logits


class NanoGPT(Network):
    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        assert idx.shape[1] <= 64
        if targets is not None:
            logits = self.logits(idx)
            return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())
        return self.logits(idx)[:, [-1], :], None


class LastOnly(Network):
    def forward(self, tokens: Tensor) -> Any:
        return self.logits(tokens)[:, -1]


class InADict(Network):
    def forward(self, tokens: Tensor) -> Any:
        return {"loss": None, "logits": self.logits(tokens)}


class LossFirst(Network):
    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        return torch.tensor(0.0), self.logits(tokens)


class NoLossFirst(Network):
    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        return None, self.logits(tokens)


class Flat(Network):
    def forward(self, tokens: Tensor) -> Any:
        return self.logits(tokens).view(-1, SIZE)


class Contiguous(Network):
    def forward(self, tokens: Tensor) -> Any:
        features = self.embed(tokens.view(-1)).view(*tokens.shape, -1)
        return self.out(self.cell(features)[0])


class LitGPT(Network):
    """forward(idx, input_pos=None, ...), a maximal length, logits alone."""

    max_seq_length = 64

    def forward(self, idx: Tensor, input_pos: Tensor | None = None, lm_head_chunk_size: int = 0) -> Any:
        if idx.size(1) > self.max_seq_length:
            raise ValueError("too long")
        return self.logits(idx)


class XTransformers(Network):
    """forward(x, return_embeddings=False, ..., **kwargs)."""

    def forward(self, x: Tensor, return_embeddings: bool = False, mems: Any = None, **kwargs: Any) -> Any:
        return self.cell(self.embed(x))[0] if return_embeddings else self.logits(x)


@pytest.mark.parametrize(
    "kind",
    [NanoGPT, LastOnly, InADict, LossFirst, NoLossFirst, Flat, Contiguous, LitGPT, XTransformers],
)
def test_what_forwards_return(kind: type[Network]) -> None:
    model = sharpened(kind(), seed=0)
    tree = SecretTree(model, PIN, CHARS)
    assert isinstance(tree.model, StatelessAdapter)
    assert_read_rightly(tree, model.logits)


class LastAndState(Network):
    """A recurrent network that only looks at its last features."""

    def forward(self, tokens: Tensor, hidden: Any = None) -> Any:
        features, hidden = self.cell(self.embed(tokens), hidden)
        return self.out(features[:, -1]), hidden


def test_the_last_logits_of_a_recurrent_network_will_do() -> None:
    model = sharpened(LastAndState(), seed=0)
    tree = SecretTree(model, PIN, CHARS)
    assert isinstance(tree.model, RecurrentAdapter)
    assert_read_rightly(tree, model.logits)


def test_last_logits_are_known_when_there_are_as_many_tokens_as_in_the_vocabulary() -> None:
    model = LastOnly()
    adapter = step_model(model)
    for length in range(SIZE - 1, SIZE + 2):
        assert adapter.start([1] * length)[0].shape == (1, SIZE)


class TestWhereNothingCanBeChosen:
    def test_a_module_with_two_networks_and_no_forward_names_them(self) -> None:
        class Two(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.student, self.teacher = Flat(), Flat()

        with pytest.raises(ModelError, match=r"no forward of its own, and holds student, teacher.*module\.student"):
            step_model(Two())

    def test_layers_without_a_forward_are_no_network(self) -> None:
        class Loose(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.out = nn.Embedding(SIZE, 8), nn.Linear(8, SIZE)

        with pytest.raises(ModelError, match=r"no forward of its own, and holds embed, out.*model=lambda module: mod"):
            step_model(Loose())

    def test_a_forward_for_batches_names_the_part(self) -> None:
        class Batches(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = Flat()

            def forward(self, batch: Any) -> Any:
                return self.net(batch["input_ids"])

        with pytest.raises(ModelError, match=r"failed on token ids.*model=lambda module: module\.net"):
            step_model(Batches())

    def test_a_forward_that_returns_a_loss_names_the_part(self) -> None:
        class Wrapper(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = LitGPT()

            def forward(self, tokens: Tensor) -> Any:
                return cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        with pytest.raises(ModelError, match=r"without logits.*model=lambda module: module\.net\."):
            step_model(Wrapper())
        assert step_model(Wrapper().net).module


class Counted(Network):
    """Notes how many tokens each call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[int, ...]] = []

    def forward(self, tokens: Tensor, hidden: Any = None) -> Any:
        self.read.append(tuple(tokens.shape))
        features, hidden = self.cell(self.embed(tokens), hidden)
        return self.out(features), hidden


class Decoding(CharTokenizer):
    """Counts the characters that it decodes."""

    decoded = 0

    def decode(self, ids: Any, /) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


def test_a_long_prompt_is_read_a_few_times_and_decoded_a_few_dozen_times() -> None:
    prompt = "my pin is " * 2400
    model, tokenizer = Counted(), Decoding(CHARS.vocabulary)
    tree = SecretTree(model, SecretFormat(prompt + "####"), tokenizer)
    score(tree, [prompt + "1234", prompt + "1299"])
    whole = sum(rows * tokens >= len(prompt) for rows, tokens in model.read)
    assert whole <= 12
    assert tokenizer.decoded <= 200 * len(prompt)


class Shifting(LightningModule):
    """Shifts its input inside of forward, and trains well with that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = LitGPT()
        self.steps = 0

    def forward(self, tokens: Tensor) -> Any:
        return self.net(torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1))

    def training_step(self, tokens: Tensor) -> Tensor:
        self.steps += 1
        return cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())

    def train_dataloader(self) -> Any:
        return DataLoader([torch.tensor(CHARS.encode("my pin is 1-2"))] * 4)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_callback_refuses_before_the_first_step_of_training(tmp_path: Any) -> None:
    module = Shifting()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[ExposureCallback(CanarySet.draw(PIN, repetitions=[1], seed=0), CHARS)],
    )  # fmt: skip
    with pytest.raises(ModelError, match="Shifting shifts its input"):
        trainer.fit(module)
    assert module.steps == 0
