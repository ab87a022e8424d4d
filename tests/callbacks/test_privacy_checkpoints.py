"""What modules put into a checkpoint by themselves: refused, by its name, if it knows the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.saved_state import saved_values
from tests.callbacks.privacy_setups import STEPS, Data, Module, privacy, trainer


class Layer(nn.Module):
    """Keeps something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {"losses": [], "batches": 0}

    def get_extra_state(self) -> dict[str, Any]:
        return {"losses": list(self.seen["losses"]), "batches": self.seen["batches"]}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


class WithExtraState(Module):  # type: ignore[misc, valid-type]
    leaks = True

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.layer.seen["batches"] += 1
        if self.leaks:
            self.layer.seen["losses"].append(float(loss.detach()))
        return loss


def test_extra_state(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"'layer\._extra_state': .* depend on what is in the batch"):
        trainer(tmp_path, privacy()).fit(WithExtraState(), Data())
    module, callback = WithExtraState(), privacy()
    module.leaks = False
    trainer(tmp_path, callback).fit(module, Data())
    assert module.layer.seen == {"batches": 2 * STEPS, "losses": []}  # the repetitions have left nothing


def test_a_metric_whose_state_is_saved(tmp_path: Path) -> None:
    class Measured(Module):  # type: ignore[misc, valid-type]
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()
            self.mean.persistent(persistent)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.mean.update(loss.detach())
            return loss

    with pytest.raises(FitError, match=r"'mean\.mean_value'"):
        trainer(tmp_path, privacy()).fit(Measured(True), Data())
    callback = privacy()
    trainer(tmp_path, callback).fit(Measured(False), Data())  # as torchmetrics has it
    assert callback.steps == 2 * STEPS


def test_hyperparameters(tmp_path: Path) -> None:
    class Noting(Module):  # type: ignore[misc, valid-type]
        def __init__(self, best: float = 100.0) -> None:
            super().__init__()
            self.save_hyperparameters()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.hparams["best"] = float(loss.detach())
            return loss

    with pytest.raises(FitError, match=r"'hyper_parameters\.best': .* depend on what is in the batch"):
        trainer(tmp_path, privacy(), logger=CSVLogger(tmp_path)).fit(Noting(), Data())


class Saving(Module):  # type: ignore[misc, valid-type]
    """Puts an attribute into its checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[float] = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["noted"] = list(self.noted)


class SavesLosses(Saving):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.noted.append(float(loss.detach()))
        return loss


class SavesSteps(Saving):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.noted.append(self.global_step)
        return super().training_step(batch, batch_idx)


def test_what_the_module_itself_puts_into_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"'checkpoint\.noted': .* depend on what is in the batch"):
        trainer(tmp_path, privacy()).fit(SavesLosses(), Data())
    module, callback = SavesSteps(), privacy()
    saving = ModelCheckpoint(tmp_path, filename="last")
    trainer(tmp_path, callback, saving, enable_checkpointing=True).fit(module, Data())
    assert module.noted == list(range(2 * STEPS))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["noted"] == module.noted
    vouched = privacy(post_processing=["checkpoint.noted"])
    trainer(tmp_path, vouched).fit(SavesLosses(), Data())
    assert vouched.steps == 2 * STEPS


class SavesMeans(Saving):
    """Of an epoch, at its end."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.seen.append(float(loss.detach()))
        return loss

    def on_train_epoch_end(self) -> None:
        self.noted.append(sum(self.seen))
        self.seen.clear()


class SavesElsewhere(SavesMeans):
    """In a hook that is not repeated."""

    def on_train_epoch_end(self) -> None:
        pass

    def on_validation_end(self) -> None:
        super().on_train_epoch_end()


class SavesWeights(Saving):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["head"] = {name: value.clone() for name, value in self.net.out.state_dict().items()}
        checkpoint["steps"] = self.global_step


def test_means_of_an_epoch_in_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"'checkpoint\.noted': .* depend on what is in the batch"):
        trainer(tmp_path, privacy()).fit(SavesMeans(), Data())
    with pytest.raises(FitError, match=r"'checkpoint\.noted': .* could not be shown"):
        trainer(tmp_path, privacy()).fit(SavesElsewhere(), Data())
    callback = privacy()
    trainer(tmp_path, callback, max_epochs=4).fit(SavesWeights(), Data())
    assert callback.steps == 4 * STEPS


def test_saved_values_are_what_a_checkpoint_has_beside_parameters() -> None:
    module = WithExtraState()
    assert list(saved_values(module)) == ["layer._extra_state"]
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert saved_values(tied) == {}
