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
    StepMetrics,
    batches_taken,
    given_loader,
    logged_in_training,
    logged_in_validation,
    metrics_hidden,
    received,
    set_logged_hyperparameters,
    set_outputs_loss,
    set_trainer,
    silent_logger,
    splits_data,
    steps_made,
    takes_batch_index,
    takes_iterator,
    train_on,
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


def test_the_loader_that_was_given_to_fit_can_be_found_before_it_is_read(tmp_path: Path) -> None:
    found = []

    class Looking(pl.Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            found.append(given_loader(trainer))

    loader: Any = DataLoader(torch.ones(2, 1))
    trainer(tmp_path, Looking()).fit(Module(), loader)
    trainer(tmp_path, Looking()).fit(WithData())
    assert found == [loader, None]
    assert given_loader(trainer(tmp_path)) is None


class WithData(Module):
    def train_dataloader(self) -> Any:
        return DataLoader(torch.ones(2, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_trainer_knows_whether_it_was_asked_to_split_the_data(wanted: bool, tmp_path: Path) -> None:
    assert splits_data(trainer(tmp_path, use_distributed_sampler=wanted)) is wanted


def test_the_fit_loop_counts_the_batches_of_an_epoch(tmp_path: Path) -> None:
    seen: list[int] = []
    module = Module(lambda module, _: seen.append(batches_taken(module.trainer)))
    trainer(tmp_path, max_epochs=2).fit(module, loader())
    assert seen == [1, 2, 3] * 2


def test_the_fit_loop_counts_the_batches_of_a_module_that_makes_its_steps_itself(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Twice(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(2):
                self.optimizers().step()  # type: ignore[union-attr]

        def on_train_batch_end(self, *_: Any) -> None:
            seen.append((self.trainer.global_step, steps_made(self.trainer)))

    trainer(tmp_path, max_epochs=2).fit(Twice(lambda *_: None), loader())
    assert seen == [(2 * batches, batches) for batches in range(1, 7)]


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


def test_a_batch_of_the_loader_becomes_what_the_trainer_makes_of_it(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    run = trainer(tmp_path, max_steps=1, precision="64-true")
    run.fit(Module(lambda module, _: seen.append(received(module.trainer, torch.tensor([3.0])))), loader())
    assert seen == [torch.tensor([8.0])]
    assert seen[0].dtype == torch.float64


@pytest.mark.filterwarnings("ignore:(You are using|Found) `?(the )?`?dataloader_iter`")
def test_a_training_step_is_given_the_iterator_if_it_asks_for_it() -> None:
    class Fetching(pl.LightningModule):
        def training_step(self, dataloader_iter: Any) -> None: ...

    assert takes_iterator(Fetching().training_step)
    assert not takes_iterator(Module().training_step)


class AnotherPass(Module):
    """Trains on a second batch in every step, and lets a visitor be around that."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        def closure() -> Any:
            metrics = StepMetrics(self.trainer)
            with metrics.counted(1):
                first = optimizer_closure()
            with metrics.another_pass(torch.ones(3, 1)), metrics.counted(3):
                self.second = train_on(self.trainer, torch.full((3, 1), 2.0), batch_idx)
            with metrics.unheard():
                train_on(self.trainer, torch.full((3, 1), 1e6), batch_idx)
            metrics.finish()
            self.grad = self.layer.weight.grad.clone()
            set_outputs_loss(optimizer_closure, torch.tensor(7.0))
            return first

        super().optimizer_step(epoch, batch_idx, optimizer, closure)


def test_a_step_can_have_several_passes_that_log_one_value(tmp_path: Path) -> None:
    outputs: list[float] = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, given: Any, batch: Any, batch_idx: int) -> None:
            outputs.append(float(given["loss"]))

    module, run = AnotherPass(), trainer(tmp_path, Look(), max_steps=1)
    torch.nn.init.zeros_(module.layer.weight)
    torch.nn.init.ones_(module.layer.bias)
    run.fit(module, loader())
    assert float(module.second) == 1.0
    # The mean gradients of the loader's 1, which the hooks make 4, of 2, and of what is logged nowhere.
    assert float(module.grad) == 4 + 2 + 1e6
    assert outputs == [7.0]
    assert {float(run.callback_metrics[f"loss_{when}"]) for when in ("step", "epoch")} == {1.0}


def test_values_of_a_step_are_weighed(tmp_path: Path) -> None:
    class Logging(AnotherPass):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.log("mean", batch.mean(), on_step=True, on_epoch=True)
            self.log("largest", batch.mean(), on_step=True, reduce_fx="max")
            self.log("sum", batch.mean(), on_step=True, reduce_fx="sum")
            return super().training_step(batch, batch_idx)

    run = trainer(tmp_path, max_steps=1)
    run.fit(Logging(), loader())
    found = {name: float(value) for name, value in run.callback_metrics.items()}
    assert found["mean_step"] == found["mean_epoch"] == (1 * 4 + 3 * 2) / 4
    assert (found["largest"], found["sum"]) == (4, 6)


def test_a_loss_that_is_a_sum_is_added_up_and_other_means_are_not(tmp_path: Path) -> None:
    class Summing(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.layer(batch).sum()
            self.log("sum", loss, on_step=True, on_epoch=True)
            self.log("mean", batch.mean(), on_step=True, on_epoch=True)
            return loss

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            def closure() -> Any:
                metrics = StepMetrics(self.trainer)
                with metrics.counted(1):
                    losses = [optimizer_closure()]
                with metrics.another_pass(torch.ones(3, 1)), metrics.counted(3):
                    losses.append(train_on(self.trainer, torch.full((3, 1), 2.0), batch_idx))
                metrics.finish(losses)
                self.losses = [float(loss) for loss in losses]
                assert "update_metrics" not in vars(self.trainer.fit_loop.epoch_loop._results)
                return losses[0]

            super().optimizer_step(epoch, batch_idx, optimizer, closure)

    module, run = Summing(), trainer(tmp_path, max_steps=1)
    run.fit(module, loader())
    found = {name: float(value) for name, value in run.callback_metrics.items()}
    assert found["sum_step"] == found["sum_epoch"] == pytest.approx(sum(module.losses), rel=1e-6)
    assert found["mean_step"] == found["mean_epoch"] == (1 * 4 + 3 * 2) / 4


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
