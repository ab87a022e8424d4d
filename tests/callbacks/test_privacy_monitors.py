"""A learning rate that follows what the training loop logged is refused, whatever the name of the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from lightning_exposure.errors import FitError
from tests.callbacks.privacy_setups import STEPS, Data, Module, privacy, trainer


class Following(Module):  # type: ignore[misc, valid-type]
    """Its learning rate follows a metric."""

    monitor = "val_loss"
    interval = "epoch"

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = {"scheduler": ReduceLROnPlateau(optimizer, patience=0), "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": schedule | {"interval": self.interval}}


class TrainLoss(Following):
    monitor = "train_loss"


class Disguised(Following):
    """Logs the training loss under a name that looks like another."""

    monitor = "validation/error"

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log(self.monitor, loss.detach())
        return loss


class DisguisedByStep(Disguised):
    interval = "step"


class Forked(Following):
    monitor = "error_epoch"

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("error", loss.detach(), on_step=True, on_epoch=True)
        return loss


class LoggedInBoth(Following):
    """The one that counts is the one that was logged last."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("val_loss", loss.detach())
        return loss


class AtTheEndOfAnEpoch(Following):
    monitor = "score"

    def on_train_epoch_end(self) -> None:
        self.log("score", float(self.trainer.global_step))


class WrittenByHand(Following):
    """Puts the training loss where Lightning looks for metrics."""

    monitor = "score"

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.trainer.callback_metrics["score"] = loss.detach()
        return loss

    def on_train_epoch_end(self) -> None:
        self.trainer._logger_connector._callback_metrics["score"] = torch.tensor(1.0)


class AsLists(Disguised):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": ReduceLROnPlateau(optimizer), "monitor": self.monitor}]


class BySetting(Disguised):
    """A schedule of its own kind, which says that it takes a metric."""

    def configure_optimizers(self) -> Any:
        class Own(StepLR):
            def step(self, metrics: Any = None, epoch: Any = None) -> None:
                super().step()

        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = {"scheduler": Own(optimizer, 1), "reduce_on_plateau": True, "monitor": self.monitor}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class FromACallback(L.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        pl_module.log("noted", 1.0)


class Noted(Following):
    monitor = "noted"


@pytest.mark.parametrize(
    "kind",
    [
        TrainLoss,
        Disguised,
        DisguisedByStep,
        Forked,
        LoggedInBoth,
        AtTheEndOfAnEpoch,
        WrittenByHand,
        AsLists,
        BySetting,
        Noted,
    ],
)
def test_a_learning_rate_that_follows_the_training_loop_is_refused(kind: Any, tmp_path: Path) -> None:
    module = kind(optimizer="sgd")
    others = [FromACallback()] if kind is Noted else []
    run = trainer(tmp_path, privacy(), *others)
    rates: list[float] = []
    with pytest.raises(FitError, match=rf"\w+ monitors '{kind.monitor}', which was .*: the learning rate, .* would"):
        run.fit(module, Data())
    rates.append(run.optimizers[0].param_groups[0]["lr"])
    assert run.global_step <= STEPS  # before a schedule has stepped along it
    assert rates[0] in (0.5, 0.1)
    assert "lr_scheduler_step" not in vars(module)


class Renamed(Following):
    """A name that has "train" in it, and is one of validation data."""

    monitor = "constrained_error"

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("constrained_error", 1.0, on_step=True, on_epoch=True)


class SeveralLoaders(Following):
    monitor = "val_loss/dataloader_idx_1"

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)


class TwoSets(Data):
    def val_dataloader(self) -> Any:
        return [super().val_dataloader(), super().val_dataloader()]


class Epsilon(Following):
    monitor = "privacy/epsilon"


@pytest.mark.parametrize(
    ("kind", "data"), [(Following, Data), (Renamed, Data), (SeveralLoaders, TwoSets), (Epsilon, Data)]
)
def test_a_learning_rate_may_follow_validation_data(kind: Any, data: Any, tmp_path: Path) -> None:
    module = kind(optimizer="sgd")
    run = trainer(tmp_path, privacy(), max_epochs=3)
    run.fit(module, data())
    assert run.global_step == 3 * STEPS
    assert run.lr_scheduler_configs[0].scheduler.last_epoch == 3
    assert "lr_scheduler_step" not in vars(module)


@pytest.mark.parametrize(
    "make", [lambda name: EarlyStopping(name, patience=5), lambda name: ModelCheckpoint(monitor=name)]
)
@pytest.mark.parametrize("name", ["train_loss", "val_loss"])
def test_callbacks_that_choose_by_the_training_loss_are_announced(
    make: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chooser = make(name)
    checkpoints = isinstance(chooser, ModelCheckpoint)
    trainer(tmp_path, privacy(), chooser, enable_checkpointing=checkpoints, logger=False).fit(Module(), Data())
    said = f"{type(chooser).__name__} monitors 'train_loss', which the training loop logs: epsilon covers all the"
    assert capsys.readouterr().err.count(said) == (name == "train_loss")


class Divisors(L.Callback):
    """Writes down what the private optimizer divides by."""

    def __init__(self) -> None:
        self.found: set[float] = set()

    def on_train_batch_start(self, trainer: Any, *others: Any) -> None:
        self.found.add(trainer.optimizers[0].expected_batch_size)


@pytest.mark.parametrize("records", [50, 59, 60])
def test_sums_are_divided_by_the_batch_size_that_was_asked_for(records: int, tmp_path: Path) -> None:
    divisors = Divisors()
    trainer(tmp_path, privacy(), divisors, max_epochs=1).fit(Module(), Data(records=records, batch_size=15))
    assert divisors.found == {15}
