"""`DifferentialPrivacy` in ordinary training runs: data, optimizers, schedules, loggers and other callbacks go on."""

from __future__ import annotations

import csv
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
import wandb
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.privacy import PoissonLoader, epsilon
from tests.callbacks.privacy_setups import (
    BATCH,
    DATA,
    RATE,
    RECORDS,
    STEPS,
    VOCAB,
    Data,
    Module,
    averaging_callback,
    loss_of,
    module_class,
    privacy,
    same,
    trainer,
    weights,
)
from tests.callbacks.test_wandb import read_back

# PyTorch, about schedules of an optimizer that is inside another one: SWA makes one while it trains.
SWA_WARNING = "ignore:(Detected call of `lr_scheduler|Seems like `optimizer.step)"


def hooks_of(module: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(part, kind)) for part in module.modules() for kind in kinds)


# ---- one line, and nothing else -------------------------------------------------------------------------------


def test_one_line_makes_a_training_private(tmp_path: Path, capsys: Any) -> None:
    callback, module = privacy(accountant="prv"), Module()
    run = trainer(tmp_path, callback)
    run.fit(module, Data())
    assert callback.history == [(0.7, RATE, 2 * STEPS)]
    assert callback.epsilon == epsilon(callback.history, 1e-5)
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(callback.epsilon)
    # Batches vary in size, as Poisson sampling makes them.
    assert len(module.seen) == 2 * STEPS
    assert len(set(module.seen)) > 2
    said = capsys.readouterr().err
    assert said.count("Private training: noise multiplier 0.7, clipping norm 0.5, sample rate 0.25") == 1
    assert f"about 15 of {RECORDS} records a step" in said
    assert f"8 steps are planned: epsilon {callback.epsilon:.4g} at delta 1e-05 after the last one." in said
    assert "Epsilon is per record; what occurs k times in the data is covered as a group only" in said


def test_the_module_is_the_same_object_with_the_same_names_and_no_hooks_left(tmp_path: Path) -> None:
    module, data = Module("lstm"), Data()
    parts, names, attributes = list(module.modules()), list(module.state_dict()), set(vars(module.net.middle))
    trainer(tmp_path, privacy()).fit(module, data)
    assert list(module.modules()) == parts
    assert list(module.state_dict()) == names
    assert set(vars(module.net.middle)) == attributes
    assert hooks_of(module) == 0
    assert not any(vars(value) for value in module.parameters())
    assert "train_dataloader" not in vars(data)
    assert type(data.train_dataloader()) is DataLoader


def test_the_loader_may_come_from_the_module_itself(tmp_path: Path) -> None:
    class WithData(Module):  # type: ignore[misc, valid-type]
        def train_dataloader(self) -> Any:
            return Data().train_dataloader()

    module, reference = WithData(), Module()
    trainer(tmp_path, privacy()).fit(module)
    trainer(tmp_path, privacy()).fit(reference, Data())
    assert same(weights(module), weights(reference))
    assert "train_dataloader" not in vars(module)


def test_a_bare_loader_is_wrapped_by_the_user(tmp_path: Path) -> None:
    module, reference = Module(), Module()
    trainer(tmp_path, privacy()).fit(module, PoissonLoader(Data().train_dataloader()))
    trainer(tmp_path, privacy()).fit(reference, Data())
    assert same(weights(module), weights(reference))


def test_workers_make_no_difference(tmp_path: Path) -> None:
    module, reference = Module(), Module()
    trainer(tmp_path, privacy()).fit(module, Data(num_workers=2, persistent_workers=True))
    trainer(tmp_path, privacy()).fit(reference, Data())
    assert same(weights(module), weights(reference))


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_either_lightning(package: str, tmp_path: Path) -> None:
    pl = import_module(package)
    module, callback = module_class(pl)(), privacy()

    class PackageData(pl.LightningDataModule):  # type: ignore[misc, name-defined]
        train_dataloader = Data.train_dataloader
        records, batch_size, options = RECORDS, BATCH, {}

    trainer(tmp_path, callback, package=pl).fit(module, PackageData())
    assert callback.history == [(0.7, RATE, 2 * STEPS)]
    reference = Module()
    trainer(tmp_path, privacy()).fit(reference, Data())
    assert same(weights(module), weights(reference))


# ---- empty batches --------------------------------------------------------------------------------------------


class DictData(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": DATA[index], "name": f"record {index}"}


class DictModule(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Module().net
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        loss = loss_of(self.net, batch["tokens"])
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_empty_batches_are_steps_of_noise_alone(tmp_path: Path) -> None:
    """With four records and a rate of 1/4, a third of the batches is empty; user code never sees one."""
    module, callback = DictModule(), privacy(verify_steps=100)
    trainer(tmp_path, callback, max_epochs=10).fit(module, PoissonLoader(DataLoader(DictData(), batch_size=1)))
    assert callback.steps == 40
    assert all(math.isfinite(loss) for loss in module.losses)
    frozen, still = DictModule(), privacy(noise_multiplier=0, seed=0)
    # Without noise the weights stay where they are while the batches are empty, whatever the model is shown.
    before, empty = weights(frozen), []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
            empty.append(same(before, weights(pl_module)))
            before.update(weights(pl_module))

    trainer(tmp_path, still, Watch(), max_epochs=10).fit(frozen, PoissonLoader(DataLoader(DictData(), batch_size=1)))
    assert 4 <= sum(empty) <= 22


# ---- what Lightning offers besides ----------------------------------------------------------------------------


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_schedules_go_on(interval: str, tmp_path: Path) -> None:
    class Scheduled(Module):  # type: ignore[misc, valid-type]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}

    run = trainer(tmp_path, privacy())
    run.fit(Scheduled(), Data())
    assert run.optimizers[0].param_groups[0]["lr"] == 0.5 ** (2 * STEPS if interval == "step" else 2)


def test_a_warm_up_in_the_modules_own_optimizer_step_is_no_alarm(tmp_path: Path) -> None:
    class Warm(Module):  # type: ignore[misc, valid-type]
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (self.trainer.global_step + 1)
            optimizer.step(closure=closure)

    callback = privacy()
    trainer(tmp_path, callback).fit(Warm(), Data())
    assert callback.steps == 2 * STEPS


@pytest.mark.parametrize("limit", [3, 0.5])
def test_limited_batches_are_the_only_ones_that_count(limit: float, tmp_path: Path) -> None:
    callback = privacy()
    trainer(tmp_path, callback, limit_train_batches=limit).fit(Module(), Data())
    assert callback.history == [(0.7, RATE, 2 * (3 if limit == 3 else STEPS // 2))]


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.parametrize("settings", [{"precision": "bf16-mixed"}, {"precision": "64-true"}, {"fast_dev_run": 2}])
def test_precision_and_a_quick_trial(settings: dict[str, Any], tmp_path: Path) -> None:
    callback, module = privacy(), Module("layers")
    # Without oneDNN, whose kernels for bfloat16 need instructions that not every virtual machine has.
    with torch.backends.mkldnn.flags(enabled="precision" not in settings):
        trainer(tmp_path, callback, **settings).fit(module, Data())
    assert callback.steps == (2 if "fast_dev_run" in settings else 2 * STEPS)
    assert all(torch.isfinite(value).all() for value in module.parameters())


@pytest.mark.filterwarnings(SWA_WARNING)
@pytest.mark.parametrize("kind", ["stochastic", "averaged"])
def test_weight_averaging_goes_on(kind: str, tmp_path: Path) -> None:
    is_stochastic = kind == "stochastic"
    averaging = StochasticWeightAveraging(0.05, swa_epoch_start=1) if is_stochastic else averaging_callback()()
    module, reference, callback = Module(), Module(), privacy()
    for order in ([averaging, callback], [callback, averaging]):
        trainer(tmp_path, *order, max_epochs=3).fit(module, Data())
        assert callback.steps >= 3 * STEPS
    trainer(tmp_path, privacy(), max_epochs=3).fit(reference, Data())
    assert not same(weights(module), weights(reference))
    assert hooks_of(module) == 0


@pytest.mark.parametrize(
    ("options", "epochs", "best_steps"),
    [({"limit_val_batches": 0}, 2, STEPS), ({}, 2, STEPS), ({"val_check_interval": 0.5}, 1, STEPS // 2)],
)
def test_epsilon_can_be_monitored(options: dict[str, Any], epochs: int, best_steps: int, tmp_path: Path) -> None:
    """With a validation within an epoch, callbacks look right after it; otherwise at the end of the epoch."""
    best = ModelCheckpoint(tmp_path, monitor="privacy/epsilon", mode="min", save_top_k=1)
    stop = EarlyStopping("privacy/epsilon", patience=1, mode="min")
    run = trainer(tmp_path, privacy(), best, stop, enable_checkpointing=True, max_epochs=5, **options)
    run.fit(Module(), Data())
    assert run.current_epoch == epochs  # it got no better
    assert float(best.best_model_score or 0) == pytest.approx(epsilon([(0.7, RATE, best_steps)], 1e-5, "rdp"))


def test_epsilon_is_logged_once_an_epoch(tmp_path: Path) -> None:
    run = trainer(tmp_path, privacy(), logger=CSVLogger(tmp_path), max_epochs=3)
    run.fit(Module(), Data())
    with open(Path(run.logger.log_dir) / "metrics.csv", newline="") as file:
        found = [row["privacy/epsilon"] for row in csv.DictReader(file) if row["privacy/epsilon"]]
    wanted = [epsilon([(0.7, RATE, STEPS * count)], 1e-5, "rdp") for count in (1, 2, 3)]
    assert [float(value) for value in found] == pytest.approx(wanted)


def test_epsilon_is_in_a_run_of_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    noises = (0.7, 0.0)  # a number, and infinity; one run for both, because starting one takes seconds
    try:
        logger = WandbLogger(project="test", save_dir=tmp_path, offline=True)
        for noise in noises:
            trainer(tmp_path, privacy(noise_multiplier=noise), logger=logger).fit(Module(), Data())
    finally:
        wandb.finish()
        wandb.teardown()  # it waits until the run file is written, which finishing the run alone does not always
    logged = read_back(tmp_path)["privacy/epsilon"]
    assert [float(value) for value in logged] == pytest.approx(
        [epsilon([(noise, RATE, STEPS * count)], 1e-5, "rdp") for noise in noises for count in (1, 2)]
    )


def test_clipping_only_has_an_infinite_epsilon_and_says_so_once(tmp_path: Path, capsys: Any) -> None:
    callback = privacy(noise_multiplier=0)
    run = trainer(tmp_path, callback, logger=CSVLogger(tmp_path))
    run.fit(Module(), Data())
    assert callback.epsilon == math.inf == float(run.callback_metrics["privacy/epsilon"])
    assert capsys.readouterr().err.count("Clipping alone gives no epsilon: without noise it is infinite.") == 1


# ---- unusual modules --------------------------------------------------------------------------------------------


def test_tied_weights_and_a_model_that_is_made_late(tmp_path: Path) -> None:
    class Late(Module):  # type: ignore[misc, valid-type]
        def configure_model(self) -> None:
            self.net.out = nn.Linear(self.net.out.in_features, VOCAB)
            self.net.out.weight = self.net.embed.weight

    module, callback = Late(), privacy()
    trainer(tmp_path, callback).fit(module, Data())
    assert callback.steps == 2 * STEPS
    assert module.net.out.weight is module.net.embed.weight


def test_a_batch_that_the_module_skips_is_a_step_of_noise_alone(tmp_path: Path) -> None:
    class Skipping(Module):  # type: ignore[misc, valid-type]
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    callback = privacy(verify_steps=100)
    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        trainer(tmp_path, callback).fit(Skipping(), Data())
    assert callback.steps == 2 * STEPS


# ---- again and again ------------------------------------------------------------------------------------------


def test_fitting_again_adds_to_the_history_of_a_module_and_another_module_begins_a_new_one(tmp_path: Path) -> None:
    callback, module = privacy(), Module()
    trainer(tmp_path, callback).fit(module, Data())
    first = weights(module)
    trainer(tmp_path, callback).fit(module, Data())
    assert callback.steps == 4 * STEPS
    trainer(tmp_path).fit(module, Data())  # without the callback: plain training, and nothing is counted
    assert callback.steps == 4 * STEPS
    other = Module()
    trainer(tmp_path, callback).fit(other, Data())
    assert callback.steps == 2 * STEPS
    assert same(weights(other), first)


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    class Failing(Module):  # type: ignore[misc, valid-type]
        failing = True

        def on_after_backward(self) -> None:
            if self.failing and len(self.seen) == 3:
                raise KeyError("the third batch")

    module, callback, data = Failing(), privacy(), Data()
    with pytest.raises(KeyError, match="the third batch"):
        trainer(tmp_path, callback).fit(module, data)
    assert hooks_of(module) == 0
    assert "train_dataloader" not in vars(data)
    assert callback.steps == 2  # what the weights have seen
    module.failing = False
    trainer(tmp_path, callback).fit(module, data)
    assert callback.steps == 2 + 2 * STEPS


@pytest.mark.filterwarnings("ignore:Found .* in eval mode at the start of training")
def test_a_module_in_eval_mode_trains_in_it_as_lightning_lets_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ends = []
    for settings in ({}, {"max_physical_batch_size": 4}):
        module = Module("transformer").eval()
        before = weights(module)
        trainer(tmp_path, privacy(**settings), max_epochs=1).fit(module, Data())
        assert not module.training
        assert not same(before, weights(module))
        ends.append(weights(module))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, msg=name)


def test_validation_testing_and_prediction_are_left_alone(tmp_path: Path) -> None:
    callback, module = privacy(), Module()
    run = trainer(tmp_path, callback, gradient_clip_val=1.0)
    run.validate(module, Data(), verbose=False)
    assert callback.history == []
    assert isinstance(callback, DifferentialPrivacy)
