"""Hugging Face models as they are in real private training runs: nothing is given to them but tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure.errors import MixingError, ModelError
from lightning_exposure.privacy import PoissonLoader, generators, per_example_loss
from tests.callbacks.privacy_setups import privacy, trainer, weights
from tests.privacy.huggingface_models import bert, gemma, gpt2, logits_of, texts

RECORDS, BATCH = 40, 10
STEPS = RECORDS // BATCH
MODELS: dict[str, Callable[[float], Any]] = {"GPT-2": gpt2, "BERT": bert, "Gemma": gemma}


class Module(L.LightningModule):
    """The usual module around a Hugging Face model."""

    def __init__(self, make: Callable[[float], Any], dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = make(dropout)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch[0])

    def loss(self, tokens: Tensor) -> Tensor:
        return per_example_loss(logits_of(self.model, tokens), tokens)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loader() -> Any:
    return DataLoader(TensorDataset(texts(RECORDS)), batch_size=BATCH)


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return loader()


@pytest.mark.parametrize("parts", [None, 4], ids=["whole batches", "parts"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_step_is_proven(make: Callable[[float], Any], parts: int | None, tmp_path: Path, capsys: Any) -> None:
    callback = privacy(verify_steps=100, max_physical_batch_size=parts)
    module = Module(make, dropout=0.1)
    before = weights(module)
    trainer(tmp_path, callback).fit(module, Data())
    assert callback.steps == 2 * STEPS
    assert "could not be seen" not in capsys.readouterr().err
    trained = {name for name, value in module.named_parameters() if not torch.equal(value, before[name])}
    assert trained == dict(module.named_parameters()).keys()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_with_wide_clipping_and_no_noise_it_is_plain_training(make: Callable[[float], Any], tmp_path: Path) -> None:
    module, plain = Module(make), Module(make)
    callback = privacy(noise_multiplier=0, max_grad_norm=1e6)
    trainer(tmp_path, callback, max_epochs=1).fit(module, Data())
    optimizer = plain.configure_optimizers()
    for (batch,) in PoissonLoader(loader(), generator=lambda: generators(3, steps=0).sampling):
        optimizer.zero_grad()
        # The mean is over the number of records that is expected, not over those that were drawn.
        (plain.loss(batch) * len(batch) / BATCH).backward()
        optimizer.step()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("taken", "error", "message"),
    [
        (lambda found: found[:1], ModelError, "gradients came back for one of them alone"),
        (lambda found: found.mean(0, keepdim=True), MixingError, "depends on"),
    ],
    ids=["the first", "the mean"],
)
def test_positions_of_one_example_for_all_of_them_are_refused(
    taken: Callable[[Tensor], Tensor], error: type[Exception], message: str, tmp_path: Path
) -> None:
    # What all examples have in common may be broadcast; what is taken from their copies mixes them.
    module = Module(gpt2)
    module.model.transformer.wpe.register_forward_hook(lambda layer, inputs, outputs: taken(outputs))
    with pytest.raises(error, match=message):
        trainer(tmp_path, privacy()).fit(module, Data())
