"""`DifferentialPrivacy` beside canaries, measurements of them, and other callbacks that look at the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, SecretFormat
from lightning_exposure.data import CanaryDataModule, TextDataModule
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization import CharTokenizer
from tests.callbacks.privacy_setups import DATA, Data, Module, loss_of, privacy, same, trainer, weights

TEXT = "the quick brown fox jumps over the lazy dog 0123456789 "
CHARS = CharTokenizer.from_text(TEXT, "my pin is ")
CANARIES = CanarySet.draw(SecretFormat("my pin is ####"), repetitions=[1, 20], seed=0)


def encode(text: str) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(CHARS.encode((text + TEXT)[:15]))
    return ids[:-1], ids[1:]


def canary_data() -> CanaryDataModule:
    items = [encode((TEXT * 2)[start:]) for start in range(len(TEXT))]
    pairs = TensorDataset(torch.stack([a for a, _ in items]), torch.stack([b for _, b in items]))
    return CanaryDataModule(DataLoader(pairs, batch_size=15, shuffle=True), CANARIES, encode)


def language_model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel("lstm", vocab_size=CHARS.vocab_size, hidden_size=8, embedding_size=8, num_layers=1)


def test_canaries_are_sampled_as_other_records_and_measured_meanwhile(tmp_path: Path) -> None:
    data, plain, callback = canary_data(), canary_data(), privacy()
    exposure = ExposureCallback(CANARIES, CHARS, references=10)
    attack = ExtractionCallback(CANARIES, CHARS, verbose=False)
    module, reference = language_model(), language_model()
    run = trainer(tmp_path, exposure, callback, attack, max_epochs=3)
    run.fit(module, data)
    assert callback.history == [(0.7, 1 / 6, 18)]  # 55 windows and 21 copies, in batches of 15
    assert data.ledger.epochs == [0, 1, 2]
    assert 30 <= data.ledger.total[CANARIES[1].id] <= 90
    assert {"exposure/max", "privacy/epsilon"} <= set(run.callback_metrics)
    # Measuring changes nothing: the weights are those of a training run without measurements.
    trainer(tmp_path, privacy(), max_epochs=3).fit(reference, plain)
    assert same(weights(module), weights(reference))
    assert plain.ledger == data.ledger


def test_a_text_data_module(tmp_path: Path) -> None:
    data = TextDataModule(TEXT * 20, window=16, batch_size=8, canaries=CANARIES)
    data.setup()
    callback = privacy()
    model = LanguageModel("transformer", vocab_size=data.tokenizer.vocab_size, hidden_size=8, num_heads=2)
    trainer(tmp_path, callback, max_epochs=1).fit(model, data)
    assert callback.steps == len(data.train_dataloader())


class Nosy(L.Callback):
    """Runs the model in training mode with gradients on, whenever it can; and looks at gradients."""

    def __init__(self) -> None:
        self.gradients: list[Any] = []

    def _run(self, pl_module: Any) -> None:
        loss_of(pl_module.net, DATA[:5])

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        self._run(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        self._run(pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.gradients += [value.grad for value in pl_module.parameters()]


@pytest.mark.parametrize("kind", ["lstm", "layers"])
def test_a_callback_that_runs_the_model_meanwhile_changes_nothing_and_sees_no_private_data(
    kind: str, tmp_path: Path
) -> None:
    module, reference, nosy = Module(kind), Module(kind), Nosy()
    trainer(tmp_path, nosy, privacy()).fit(module, Data())
    trainer(tmp_path, privacy()).fit(reference, Data())
    assert same(weights(module), weights(reference))
    assert nosy.gradients
    assert all(gradient is None for gradient in nosy.gradients)
