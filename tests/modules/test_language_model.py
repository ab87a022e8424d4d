"""The reference models: causal, steppable, trainable, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter, step_model
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.exposure import measure_exposure
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tree import SecretTree
from tests.data.helpers import LIGHTNING_WARNINGS, make_trainer

pytestmark = LIGHTNING_WARNINGS

ARCHITECTURES = ["lstm", "gru", "cnn", "wavenet", "transformer"]
VOCABULARY = 11
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "embedding_size": 12, "num_layers": 3, "max_length": 24}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are read fastest by one thread, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(architecture: str, **settings: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(architecture, **{**SMALL, **settings})


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    output = model(tokens)
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    return logits


VARIANTS = [(name, {}) for name in ARCHITECTURES] + [
    ("transformer", {"positions": "sinusoidal"}),
    ("lstm", {"num_layers": 1, "dropout": 0.5}),
    ("wavenet", {"num_layers": 8, "kernel_size": 2}),
    ("cnn", {"kernel_size": 1}),
]


@pytest.mark.parametrize(("architecture", "settings"), VARIANTS)
def test_a_later_token_never_changes_an_earlier_prediction(architecture: str, settings: dict[str, Any]) -> None:
    model = make(architecture, **settings).eval()
    tokens = torch.randint(0, VOCABULARY, (3, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = logits_of(model, tokens)
        assert logits.shape == (3, 24, VOCABULARY)
        for place in range(24):
            changed = tokens.clone()
            changed[:, place] = (changed[:, place] + 1) % VOCABULARY
            after = logits_of(model, changed)
            torch.testing.assert_close(after[:, :place], logits[:, :place])
            # and the token itself does matter
            assert not torch.allclose(after[:, place], logits[:, place])


@pytest.mark.parametrize(("architecture", "settings"), VARIANTS)
def test_reading_step_by_step_is_reading_at_once(architecture: str, settings: dict[str, Any]) -> None:
    model = make(architecture, **settings).eval()
    adapter = step_model(model)
    assert isinstance(adapter, RecurrentAdapter if architecture in ("lstm", "gru") else StatelessAdapter)
    tokens = torch.randint(0, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = logits_of(model, tokens)
        logits, state = adapter.start(tokens[0, :5].tolist())
        torch.testing.assert_close(logits, whole[:, 4])
        for place in range(5, 20):
            logits, state = adapter.step(state, tokens[:, place])
            torch.testing.assert_close(logits, whole[:, place])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_lowers_the_loss_and_a_checkpoint_keeps_the_model(architecture: str, tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog\n" * 60
    data = TextDataModule(text, window=16, batch_size=16, val_fraction=0.2)
    data.setup()
    model = make(architecture, vocab_size=data.tokenizer.vocab_size, lr=0.01)
    losses: list[float] = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            losses.append(float(trainer.callback_metrics["train_loss"]))

    trainer = make_trainer(pl, tmp_path, max_epochs=3, callbacks=[Watch()])
    trainer.fit(model, data)
    assert losses[-1] < losses[0] - 0.5
    metrics = trainer.callback_metrics
    for stage in ("train", "val"):
        assert float(metrics[f"{stage}_bpc"]) == pytest.approx(float(metrics[f"{stage}_loss"]) / 0.6931472, rel=1e-5)
    trainer.test(model, DataLoader(data.train_dataloader().dataset, batch_size=8), verbose=False)
    assert {"test_loss", "test_bpc"} <= set(trainer.callback_metrics)

    path = tmp_path / "model.ckpt"
    trainer.save_checkpoint(path)
    again = LanguageModel.load_from_checkpoint(path)
    assert again.hparams == model.hparams
    tokens = torch.randint(0, data.tokenizer.vocab_size, (2, 16))
    with torch.no_grad():
        assert torch.equal(logits_of(again.eval(), tokens), logits_of(model.eval(), tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_logged_loss_is_the_mean_of_nats_per_token(architecture: str, tmp_path: Path) -> None:
    model = make(architecture)
    tokens = torch.randint(0, VOCABULARY, (6, 17), generator=torch.Generator().manual_seed(2))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4)  # batches of 4 and 2
    (metrics,) = make_trainer(pl, tmp_path).validate(model, loader, verbose=False)
    with torch.no_grad():
        log_probabilities = torch.log_softmax(logits_of(model.eval(), inputs).double(), -1)
    wanted = -log_probabilities.gather(2, targets[..., None]).mean()
    assert metrics["val_loss"] == pytest.approx(float(wanted), rel=1e-5)


def test_the_defaults_are_those_of_the_paper() -> None:
    model = LanguageModel(vocab_size=50)
    network: Any = model.network
    assert isinstance(network.layers, nn.LSTM)
    assert (network.layers.num_layers, network.layers.hidden_size) == (2, 200)
    optimizer = model.configure_optimizers()
    assert type(optimizer) is torch.optim.RMSprop
    assert optimizer.defaults["lr"] == 0.001


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rmsprop", torch.optim.RMSprop),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("adagrad", torch.optim.Adagrad),
        ("adadelta", torch.optim.Adadelta),
        ("nadam", torch.optim.NAdam),
        ("radam", torch.optim.RAdam),
    ],
)
def test_the_optimizer_is_the_one_that_was_asked_for(name: str, kind: type) -> None:
    model = make("gru", optimizer=name, lr=0.25, weight_decay=0.125, momentum=0.5)
    optimizer = model.configure_optimizers()
    assert type(optimizer) is kind
    assert optimizer.defaults["lr"] == 0.25
    assert optimizer.defaults["weight_decay"] == 0.125
    if name in ("sgd", "rmsprop"):
        assert optimizer.defaults["momentum"] == 0.5
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == sum(
        p.numel() for p in model.parameters()
    )


@pytest.mark.parametrize(
    ("scheduler", "settings", "wanted"),
    [
        (None, {}, [1.0, 1.0, 1.0, 1.0]),
        ("step", {"step_size": 1, "gamma": 0.1}, [1.0, 1.0, 0.1, 0.1]),
        ("linear-warmup", {"warmup_steps": 3}, [1 / 3, 2 / 3, 1.0, 1.0]),
        ("cosine", {}, [1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_learning_rate_follows_the_schedule(
    scheduler: str | None, settings: dict[str, Any], wanted: list[float], tmp_path: Path
) -> None:
    model = make("gru", optimizer="sgd", lr=1.0, scheduler=scheduler, **settings)
    tokens = torch.zeros(8, 5, dtype=torch.long)
    rates: list[float] = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer = make_trainer(pl, tmp_path, max_epochs=2, callbacks=[Watch()], limit_val_batches=0)
    loader = DataLoader(TensorDataset(tokens, tokens), batch_size=4)
    trainer.fit(model, loader, loader)
    assert rates == pytest.approx(wanted, rel=1e-4)


def test_dropout_is_in_every_architecture() -> None:
    for architecture in ARCHITECTURES:
        model = make(architecture, dropout=0.5)
        tokens = torch.zeros(1, 6, dtype=torch.long)
        assert not torch.equal(logits_of(model.train(), tokens), logits_of(model.train(), tokens))
        assert torch.equal(logits_of(model.eval(), tokens), logits_of(model.eval(), tokens))


def test_a_transformer_says_when_a_sequence_is_too_long() -> None:
    model = make("transformer", max_length=6)
    with pytest.raises(ArgumentError, match="tokens is a sequence of 7; expected at most max_length=6"):
        model(torch.zeros(1, 7, dtype=torch.long))


def test_a_state_for_a_model_without_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"state is a Tensor; expected None, .*'cnn' has no state"):
        make("cnn")(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"architecture": "rnn"},
            "architecture is 'rnn'; expected one of 'lstm', 'gru', 'cnn', 'wavenet'",
        ),
        ({"vocab_size": 0}, "vocab_size is 0; expected an integer of at least 1"),
        ({"num_layers": 1.5}, "num_layers is 1.5, of type float; expected an integer"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number of at least 0 and below 1"),
        ({"lr": 0}, "lr is 0; expected a number above 0"),
        ({"lr": True}, "lr is True, of type bool; expected a number above 0"),
        ({"weight_decay": -1}, "weight_decay is -1; expected a number of at least 0"),
        ({"momentum": "much"}, "momentum is 'much', of type str; expected a number of at least 0 and below 1"),
        ({"optimizer": "adan"}, "optimizer is 'adan'; expected one of 'rmsprop', 'adam'"),
        ({"scheduler": "none"}, "scheduler is 'none'; expected one of None, 'cosine', 'step', 'linear-warmup'"),
        ({"positions": "rotary"}, "positions is 'rotary'; expected one of 'learned', 'sinusoidal'"),
        ({"architecture": "transformer", "num_heads": 3}, "num_heads is 3; expected a divisor of hidden_size=200"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LanguageModel(**{"vocab_size": 5, **settings})


def test_secrets_can_be_measured_with_every_architecture() -> None:
    data = TextDataModule("the code is 0123456789\n" * 20, window=8)
    data.setup()
    for architecture in ARCHITECTURES:
        model = make(architecture, vocab_size=data.tokenizer.vocab_size)
        tree = SecretTree(model, SecretFormat("code ##"), data.tokenizer)
        (estimate,) = measure_exposure(tree, ["code 42"], method="exact")
        assert 1 <= estimate.rank <= 100
    short = make("transformer", vocab_size=data.tokenizer.vocab_size, max_length=2)
    with pytest.raises(ModelError, match="max_length=2"):
        SecretTree(short, SecretFormat("code ##"), data.tokenizer)
