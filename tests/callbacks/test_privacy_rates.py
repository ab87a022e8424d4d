"""A learning rate may follow a plan; it may not follow the training data, wherever it is set."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, SequentialLR, StepLR

from lightning_exposure.errors import FitError
from tests.callbacks.privacy_setups import STEPS, Data, Module, privacy, same, trainer, weights

CHANGED = "settings of the optimizer, such as its learning rate, were changed"
FOLLOWS = "goes another way than it would have without the batches so far"
NOTED: list[float] = [1.0]


class Noting(Module):  # type: ignore[misc, valid-type]
    """Remembers its loss."""

    noted = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.noted = float(loss.detach())
        NOTED[0] = self.noted
        return loss

    def follow(self) -> None:
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = 0.01 * self.noted


class BeforeTheStep(Noting):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.follow()


class InAHookOfTheOptimizer(Noting):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(lambda *others: self.follow())
        return optimizer


class InALaterHookOfTheOptimizer(Noting):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(lambda *others: self.follow())
        return optimizer


class InTheClosure(Noting):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        def followed() -> Any:
            result = closure()
            self.follow()
            return result

        optimizer.step(closure=followed)


class AfterTheStep(Noting):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        self.follow()


class FromACallback(L.Callback):
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        pl_module.follow()


@pytest.mark.parametrize(
    "kind", [BeforeTheStep, InAHookOfTheOptimizer, InALaterHookOfTheOptimizer, InTheClosure, AfterTheStep, Noting]
)
def test_a_rate_that_is_set_when_the_loss_is_known(kind: Any, tmp_path: Path) -> None:
    others = [FromACallback()] if kind is Noting else []
    run = trainer(tmp_path, privacy(), *others)
    with pytest.raises(FitError, match=CHANGED):
        run.fit(kind(), Data())
    assert run.global_step <= 1


def scheduled(rate: Any, interval: str = "step", base: Any = Noting) -> Any:
    class Made(base):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = rate(self, optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}

    return Made()


class Averaging(Noting):
    """Has the mean of an epoch at its end only."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.mean = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss.detach()))
        return loss

    def on_train_epoch_end(self) -> None:
        self.mean = sum(self.losses) / len(self.losses)
        self.losses.clear()


class Own(StepLR):
    """A schedule with an attribute."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        self.module = module
        super().__init__(optimizer, 1, 0.9)

    def get_lr(self) -> list[float]:
        return [0.01 * self.module.noted for _ in self.base_lrs]


LEAKS: list[Any] = [
    (lambda self, optimizer: LambdaLR(optimizer, lambda n: self.noted), "step", Noting),
    (lambda self, optimizer: LambdaLR(optimizer, lambda n: self.noted), "epoch", Noting),
    (lambda self, optimizer: LambdaLR(optimizer, lambda n: NOTED[0]), "step", Noting),
    (lambda self, optimizer: LambdaLR(optimizer, lambda n: self.mean), "epoch", Averaging),
    (
        lambda self, optimizer: LambdaLR(
            optimizer, lambda n: float(self.trainer.callback_metrics["train_loss"]) if n else 1.0
        ),
        "step",
        Noting,
    ),
    (
        lambda self, optimizer: SequentialLR(
            optimizer, [LambdaLR(optimizer, lambda n: self.noted), StepLR(optimizer, 1)], [9]
        ),
        "step",
        Noting,
    ),
    (Own, "step", Noting),
]


@pytest.mark.parametrize(("rate", "interval", "base"), LEAKS)
def test_a_schedule_that_follows_the_loss(rate: Any, interval: str, base: Any, tmp_path: Path) -> None:
    NOTED[0] = 1.0
    run = trainer(tmp_path, privacy())
    with pytest.raises(FitError, match=FOLLOWS):
        run.fit(scheduled(rate, interval, base), Data())
    assert run.global_step <= 2 * STEPS
    assert run.optimizers[0].param_groups[0]["lr"] in (0.1, 0.01)


def test_a_plateau_that_is_shown_another_loss(tmp_path: Path) -> None:
    class Shown(Noting):
        shown = "noted"

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            schedule = {"scheduler": ReduceLROnPlateau(optimizer, patience=0, threshold=0.0), "monitor": "val_loss"}
            return {"optimizer": optimizer, "lr_scheduler": schedule}

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step(metric if self.shown == "metric" else self.noted)

    with pytest.raises(FitError, match=r"ReduceLROnPlateau, stepped by Shown\.lr_scheduler_step, " + FOLLOWS):
        trainer(tmp_path, privacy(), max_epochs=4).fit(Shown(), Data())
    callback = privacy(post_processing=["lr_scheduler_step"])
    trainer(tmp_path, callback, max_epochs=4).fit(Shown(), Data())
    assert callback.steps == 4 * STEPS
    module = Shown()
    module.shown = "metric"
    callback = privacy()
    trainer(tmp_path, callback, max_epochs=4).fit(module, Data())
    assert callback.steps == 4 * STEPS


class WarmUp(Noting):
    """As in Lightning's documentation: after the step."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)


class WarmUpBefore(Noting):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)
        optimizer.step(closure=closure)


class ByTheEpoch(Noting):
    """As those of timm are stepped."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 1, 0.5)]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()


class Counting(WarmUp):
    """Counts its steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.counted += 1
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.counted / 5)


def module_attribute(self: Any, optimizer: Any) -> Any:
    self.warm = 5
    return LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / self.warm))


HEALTHY: list[Any] = [
    WarmUp,
    WarmUpBefore,
    ByTheEpoch,
    Counting,
    lambda: scheduled(module_attribute),
    lambda: scheduled(lambda self, optimizer: LambdaLR(optimizer, lambda n: math.exp(-n))),
    lambda: scheduled(lambda self, optimizer: StepLR(optimizer, 1, 0.9)),
]


@pytest.mark.parametrize("make", HEALTHY)
def test_plans_go_on_and_asking_them_leaves_no_trace(make: Any, tmp_path: Path) -> None:
    found = []
    for settings in ({}, {"verify_steps": 0}):
        torch.manual_seed(0)
        module, callback = make(), privacy(**settings)
        run = trainer(tmp_path, callback, max_epochs=3)
        run.fit(module, Data())
        assert callback.steps == 3 * STEPS
        found.append((weights(module), run.optimizers[0].param_groups[0]["lr"], module.seen))
    assert same(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
