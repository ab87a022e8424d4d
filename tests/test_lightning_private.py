"""What we use of Lightning's private parts is still there, and still means what we take it for; one test each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from lightning_exposure._lightning import (
    AVERAGING_HOOKS,
    MODEL_STATES,
    TRAINER_LINKS,
    batches_taken,
    logged_in_training,
    logged_in_validation,
    metrics_hidden,
    set_logged_hyperparameters,
    set_trainer,
    silent_logger,
    splits_data,
    takes_batch_index,
    transferred,
)


class Module(pl.LightningModule):
    """Logs in both loops, and lets a visitor look around in its training step."""

    def __init__(self, visit: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.visit = visit

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.visit is not None:
            self.visit(self, batch_idx)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("score", self.layer(batch).mean())

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch + 1

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch * 2

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Any]:
    return DataLoader(torch.ones(3, 1), batch_size=1)  # type: ignore[arg-type]


def trainer(folder: Path, *others: Any, **options: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet |= {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "devices": 1}
    return pl.Trainer(default_root_dir=folder, callbacks=list(others), **(quiet | options))


@pytest.mark.parametrize("wanted", [True, False])
def test_the_trainer_knows_whether_it_was_asked_to_split_the_data(wanted: bool, tmp_path: Path) -> None:
    assert splits_data(trainer(tmp_path, use_distributed_sampler=wanted)) is wanted


def test_the_fit_loop_counts_the_batches_of_an_epoch(tmp_path: Path) -> None:
    seen: list[int] = []
    module = Module(lambda module, _: seen.append(batches_taken(module.trainer)))
    trainer(tmp_path, max_epochs=2).fit(module, loader())
    assert seen == [1, 2, 3] * 2


def test_a_batch_goes_through_the_transfer_hooks(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    run = trainer(tmp_path, max_steps=1)
    run.fit(Module(lambda module, _: seen.append(transferred(module, torch.tensor([3.0])))), loader())
    assert seen == [torch.tensor([8.0])]


def test_a_training_step_is_given_the_batch_index_if_it_asks_for_it() -> None:
    class Named(pl.LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None: ...

    class Otherwise(pl.LightningModule):
        def training_step(self, batch: Any, number: int) -> None: ...

    class Without(pl.LightningModule):
        def training_step(self, batch: Any) -> None: ...

    assert [takes_batch_index(kind().training_step) for kind in (Named, Otherwise, Without)] == [True, True, False]


def test_a_module_knows_its_trainer_by_the_attributes_that_are_named(tmp_path: Path) -> None:
    module = Module()
    assert set(TRAINER_LINKS) <= set(vars(module))
    trainer(tmp_path).fit(module, loader())
    assert vars(module)[TRAINER_LINKS[0]] is module.trainer


def test_a_copy_can_be_given_another_trainer(tmp_path: Path) -> None:
    module = Module()
    run = trainer(tmp_path)
    run.fit(module, loader())
    twin, other = copy.deepcopy(module), object()
    assert set_trainer(twin, other) == [twin]
    assert twin.trainer is other
    assert module.trainer is run


def test_the_silent_logger_takes_everything() -> None:
    logger = silent_logger()
    logger.log_metrics({"a": 1.0}, step=1)
    logger.log_hyperparams({"a": 1.0})
    logger.experiment.add_image("a", 1)


def test_metrics_are_kept_apart_by_the_loop_that_logged_them(tmp_path: Path) -> None:
    seen: list[tuple[set[str], set[str]]] = []

    class Look(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            seen.append((logged_in_training(trainer), logged_in_validation(trainer)))
            assert {"loss_step", "loss_epoch"} <= set(trainer.callback_metrics)

    trainer(tmp_path, Look(), num_sanity_val_steps=0).fit(Module(), loader(), [loader(), loader()])
    ((training, validation),) = seen
    assert training == {"loss", "loss_step", "loss_epoch"}
    assert {"score/dataloader_idx_0", "score/dataloader_idx_1"} <= validation
    assert not any(name.startswith("loss") for name in validation)


def test_loggers_can_be_given_other_hyperparameters(tmp_path: Path) -> None:
    class WithSettings(Module):
        def __init__(self, secret: str) -> None:
            super().__init__()
            self.save_hyperparameters()

    class Hide(pl.Callback):
        def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
            set_logged_hyperparameters(pl_module, {"secret": "hidden"})

    module = WithSettings("1234")
    trainer(tmp_path, Hide(), logger=CSVLogger(tmp_path), log_every_n_steps=1).fit(module, loader())
    assert [path.read_text() for path in tmp_path.glob("**/hparams.yaml")] == ["secret: hidden\n"]
    assert module.hparams["secret"] == "1234"


def test_metrics_can_be_hidden_for_a_while(tmp_path: Path) -> None:
    seen: list[list[set[str]]] = []

    def look(module: Any, batch_idx: int) -> None:
        run = module.trainer
        with metrics_hidden(run, {"loss_step"}):
            seen.append([set(run.callback_metrics), set(run.logged_metrics), set(run.progress_bar_metrics)])
        seen.append([set(run.callback_metrics)])

    trainer(tmp_path, log_every_n_steps=1).fit(Module(look), loader())
    hidden, shown = seen[-2:]
    assert not any("loss_step" in names for names in hidden)
    assert "loss" in hidden[0]
    assert "loss_step" in shown[0]


@pytest.mark.parametrize("kind", AVERAGING_HOOKS)
def test_callbacks_that_average_weights_do_it_in_the_hooks_that_are_named(kind: str) -> None:
    if not hasattr(callbacks, kind):
        pytest.skip(f"this Lightning has no {kind}")
    averaging = getattr(callbacks, kind)
    assert set(AVERAGING_HOOKS[kind]) <= {name for name in vars(averaging) if name.startswith("on_")}


def test_averages_put_the_last_weights_into_the_second_place_of_a_checkpoint(tmp_path: Path) -> None:
    if not hasattr(callbacks, "WeightAveraging"):
        pytest.skip("this Lightning has no WeightAveraging")
    saved: list[set[str]] = []

    class Look(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / "both.ckpt")
            saved.append(set(torch.load(tmp_path / "both.ckpt", weights_only=True)))

    trainer(tmp_path, Look(), callbacks.WeightAveraging()).fit(Module(), loader())
    assert set(MODEL_STATES) <= saved[0]
