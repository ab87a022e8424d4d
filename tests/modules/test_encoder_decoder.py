"""The encoder-decoder: padding changes nothing, it learns, and its exposure can be measured while it does."""

from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lightning_exposure import CanaryDataModule, CanarySet, ExposureCallback, ExtractionCallback, SecretFormat
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules import EncoderDecoder
from lightning_exposure.secrets.formats.tied import TiedFormats
from lightning_exposure.tokenization import CharTokenizer
from tests.data.helpers import LIGHTNING_WARNINGS, make_trainer

pytestmark = LIGHTNING_WARNINGS

PADDING, START = 0, 1
LETTERS = CharTokenizer("_^" + "abcdefghijklmnopqrstuvwxyz 0123456789")
without_a_trainer = pytest.mark.filterwarnings("ignore:You are trying to `self.log:UserWarning")
attention = pytest.mark.parametrize("attention", [True, False])


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request: Any) -> ModuleType:
    return import_module(request.param)


def make(**settings: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    small = {"vocab_size": 12, "target_vocab_size": 9, "hidden_size": 8, "embedding_size": 6, "num_layers": 2}
    return EncoderDecoder(**{**small, **settings})


def tokens(*rows: list[int]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PADDING)


@attention
def test_padding_changes_no_logit(attention: bool) -> None:
    model = make(attention=attention).eval()
    sources, targets = [[3, 4, 5, 6, 7], [8, 9], [2]], [[2, 3], [4, 5, 6, 7], [8]]
    together = model(tokens(*sources), tokens(*targets))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(tokens(source), tokens(target))[0]
        torch.testing.assert_close(together[row, : len(target)], alone)
        wider = model(torch.tensor([[*source, PADDING, PADDING]]), tokens(target))[0]
        torch.testing.assert_close(wider, alone)


@without_a_trainer
@attention
def test_padding_changes_no_gradient(attention: bool) -> None:
    def gradients(source: Tensor, target: Tensor) -> list[Tensor]:
        model = make(attention=attention)
        model.training_step((source, target), 0).backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    tight = gradients(tokens([3, 4], [5, 6]), tokens([2, 3, 4], [5, 6, 7]))
    padded = gradients(tokens([3, 4, 0, 0], [5, 6, 0, 0]), tokens([2, 3, 4, 0], [5, 6, 7, 0]))
    assert len(tight) == len(padded)
    for one, other in zip(tight, padded, strict=True):
        torch.testing.assert_close(one, other)


@without_a_trainer
def test_an_example_counts_as_much_beside_a_long_one_as_beside_a_short_one() -> None:
    # With a mean over all tokens of the batch it would not, and private training could not clip that away.
    model = make(attention=False)

    def loss(*targets: list[int]) -> float:
        rows = [row + [0] * (5 - len(row)) for row in targets]
        return float(model.training_step((tokens(*([3, 4] for _ in rows)), tokens(*rows)), 0).detach())

    short, long = [2, 3], [4, 5, 6, 7, 8]
    assert loss(short, long) == pytest.approx((loss(short) + loss(long)) / 2, rel=1e-5)


@attention
def test_a_prediction_depends_on_the_source_and_on_nothing_that_comes_later(attention: bool) -> None:
    model = make(attention=attention).eval()
    source, target = tokens([3, 4, 5]), tokens([2, 3, 4, 5])
    logits = model(source, target)
    for place in range(4):
        changed = target.clone()
        changed[0, place] = 8
        after = model(source, changed)
        torch.testing.assert_close(after[:, : place + 1], logits[:, : place + 1])
        assert place == 3 or not torch.allclose(after[:, place + 1], logits[:, place + 1])
    for place in range(3):
        changed = source.clone()
        changed[0, place] = 9
        assert not torch.allclose(model(changed, target), logits)


@attention
def test_decoding_step_by_step_is_decoding_at_once(attention: bool) -> None:
    model = make(attention=attention).eval()
    memory = model.encode(tokens([3, 4, 5], [6, 7]))
    inputs = tokens([START, 2, 3], [START, 4, 5])
    at_once, final = model.decode(inputs, memory)
    state: Any = None
    for place in range(3):
        logits, state = model.decode(inputs[:, place : place + 1], memory, state)
        torch.testing.assert_close(logits[:, 0], at_once[:, place])
    torch.testing.assert_close(state, final)


def test_an_empty_source_is_no_reason_to_fail() -> None:
    assert torch.isfinite(make().eval()(tokens([3, 4], [PADDING]), tokens([2], [3]))).all()


@without_a_trainer
def test_only_real_tokens_are_in_the_loss() -> None:
    model = make().eval()
    source, target = tokens([3, 4], [5]), tokens([2, 3, 4], [5])
    chances = torch.log_softmax(model(source, target), dim=-1)
    nats = [-chances[row, place, target[row, place]] for row, place in ((0, 0), (0, 1), (0, 2), (1, 0))]
    torch.testing.assert_close(model.training_step((source, target), 0), (torch.stack(nats[:3]).mean() + nats[3]) / 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": 1.5}, "hidden_size"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number of at least 0 and below 1"),
        ({"padding_id": 9}, "padding_id is 9; expected a token id below target_vocab_size=9"),
        ({"padding_id": 12, "target_vocab_size": 20}, "padding_id is 12; expected a token id below vocab_size=12"),
        ({"start_id": -1}, "start_id"),
        ({"optimizer": "adan"}, "optimizer is 'adan'; expected one of"),
        ({"scheduler": "sine"}, "scheduler is 'sine'; expected one of"),
        ({"lr": 0}, "lr is 0; expected a number above 0"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make(**settings)


@pytest.mark.parametrize("scheduler", [None, "cosine", "step", "linear-warmup"])
def test_optimizer_and_schedule_are_those_asked_for(scheduler: str | None, tmp_path: Path) -> None:
    model = make(optimizer="sgd", lr=0.5, momentum=0.9, scheduler=scheduler, warmup_steps=4)
    batches = DataLoader([(torch.tensor([3, 4]), torch.tensor([2, 3]))] * 4, batch_size=2)
    trainer = make_trainer(lightning.pytorch, tmp_path, max_epochs=2)
    trainer.fit(model, batches)
    (optimizer,) = trainer.optimizers
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9
    expected = {None: 0.5, "cosine": 0.0, "step": 0.125, "linear-warmup": 0.5}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected[scheduler], abs=1e-6)


# --- a training run -----------------------------------------------------------------------------------------------

TIED = TiedFormats(SecretFormat("my pin is ###", name="source"), SecretFormat("meine pin ist ###"))
SENTENCES = [("a cat", "eine katze"), ("my dog", "mein hund"), ("the pin", "die pin"), ("it is so", "es ist so")]


def example(source: str, target: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(LETTERS.encode(source)), torch.tensor(LETTERS.encode(target))


def collate(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    sources, targets = zip(*examples, strict=True)
    return tuple(pad_sequence(list(side), batch_first=True) for side in (sources, targets))  # type: ignore[return-value]


def test_canaries_in_source_and_target_are_learned_and_measured(pl: ModuleType, tmp_path: Path) -> None:
    canaries = CanarySet.draw(TIED.target, repetitions=[0, 8], seed=0)
    (never, often) = canaries
    asked = LETTERS.encode(TIED.source_of(often.text))
    loader = DataLoader([example(*pair) for pair in SENTENCES] * 2, batch_size=4, collate_fn=collate)
    data = CanaryDataModule(
        loader, canaries, encode=lambda text: example(TIED.source_of(text), text), package=pl.__name__
    )
    torch.manual_seed(0)
    model = EncoderDecoder.under(pl.__name__)(vocab_size=LETTERS.vocab_size, hidden_size=32, embedding_size=16, lr=0.02)
    assert isinstance(model, pl.LightningModule)
    options: Any = {"model": lambda module: Seq2SeqAdapter(module, asked)}
    exposure = ExposureCallback(canaries, LETTERS, **options)
    extraction = ExtractionCallback(canaries, LETTERS, **options)
    trainer = make_trainer(pl, tmp_path, max_epochs=30, callbacks=[exposure, extraction])
    trainer.fit(model, data)
    assert data.ledger.total == {never.id: 0, often.id: 240}
    assert trainer.callback_metrics["train_loss"] < 0.5
    final = exposure.history[-1].estimates
    assert final[often.id].method == "exact"
    assert final[often.id].rank == 1
    assert final[never.id].rank > 1
    (found,) = extraction.extractions.values()
    assert found.optimal
    assert found.candidates[0].text == often.text
    copy = pickle.loads(pickle.dumps(model))
    assert isinstance(copy, pl.LightningModule)
    assert copy.hparams == model.hparams
