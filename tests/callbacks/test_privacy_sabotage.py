"""What turns out not to be private is refused at the first steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from torch import Tensor

from lightning_exposure.errors import FitError
from tests.callbacks.privacy_setups import (
    STEPS,
    Data,
    Module,
    privacy,
    trainer,
    weights,
)


class StepsTheInner(Module):  # type: ignore[misc, valid-type]
    """Goes around the private optimizer, which it finds inside of what Lightning hands over."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        inner = optimizer.optimizer.original_optimizer
        closure()
        inner.step()


class StepsTwice(Module):  # type: ignore[misc, valid-type]
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        optimizer.optimizer.original_optimizer.step()


class HasASecondOptimizer(Module):  # type: ignore[misc, valid-type]
    """A second optimizer moves the weights along a gradient that nobody clipped."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        with torch.no_grad():
            self.net.out.bias += 0.01 * self.net.out.bias.sin() + 0.01


class Watcher(L.Callback):
    """Does what it does once, at the second batch, and remembers the weights."""

    before: dict[str, Tensor]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.before = weights(pl_module)


class ReplacesGradients(Watcher):
    """Puts a gradient of its own in the place of the private one, right before the optimizer steps."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def replace(optimizer: Any, *others: Any) -> None:
            for group in optimizer.param_groups:
                for value in group["params"]:
                    value.grad = torch.ones_like(value)

        trainer.optimizers[0].original_optimizer.register_step_pre_hook(replace)


class TakesGradientsAway(Watcher):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.optimizers[0].original_optimizer.register_step_pre_hook(lambda inner, *others: inner.zero_grad())


class SwapsOptimizersBack(L.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.optimizers = [trainer.optimizers[0].original_optimizer]


class SwapsOptimizersWithinABatch(L.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        trainer.optimizers = [trainer.optimizers[0].original_optimizer]


class LowersTheNoise(L.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizer = trainer.optimizers[0]
        add_noise = optimizer.add_noise

        def add_less() -> None:
            noise, optimizer.noise_multiplier = optimizer.noise_multiplier, optimizer.noise_multiplier / 2
            add_noise()
            optimizer.noise_multiplier = noise

        optimizer.add_noise = add_less


class Adds(L.Callback):
    """Adds something to the weights after the step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        with torch.no_grad():
            pl_module.net.out.weight += 0.1


@pytest.mark.parametrize(
    ("module", "saboteur", "message"),
    [
        (StepsTheInner, None, "A batch led to 0 private steps, and the optimizer itself made 1"),
        (StepsTwice, None, "A batch led to 1 private steps, and the optimizer itself made 2"),
        (HasASecondOptimizer, None, r"moved otherwise than .*: net.out.bias moved before the step"),
        (Module, ReplacesGradients, "noise is not the one that was asked for"),
        (Module, TakesGradientsAway, "had no gradient when the optimizer stepped"),
        (Module, SwapsOptimizersBack, "The Trainer's optimizers are not the private one any more"),
        (Module, SwapsOptimizersWithinABatch, "A batch led to 0 private steps"),
        (Module, LowersTheNoise, "noise is not the one that was asked for"),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_training_that_turns_out_not_to_be_private(
    module: Any, saboteur: Any, message: str, optimizer: str, tmp_path: Path
) -> None:
    trained, callback = module(optimizer=optimizer), privacy()
    run = trainer(tmp_path, callback, *([] if saboteur is None else [saboteur()]))
    with pytest.raises(FitError, match=message):
        run.fit(trained, Data())
    assert run.global_step <= 1
    trainer(tmp_path, privacy()).fit(Module(), Data())


def test_weights_that_something_else_changes_after_the_step(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"moved otherwise than a private step moves them: net.out.weight\. Something"):
        trainer(tmp_path, Adds(), privacy()).fit(Module(), Data())
    callback = privacy(verify_steps=0)
    trainer(tmp_path, Adds(), callback).fit(Module(), Data())
    assert callback.steps == 2 * STEPS


def test_noise_that_is_silently_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = opacus_optimizer._generate_noise

    def none(*args: Any, **options: Any) -> Tensor:
        made: Tensor = original(*args, **options)
        return torch.zeros_like(made)

    monkeypatch.setattr(opacus_optimizer, "_generate_noise", none)
    with pytest.raises(FitError, match=r"its standard deviation is .*expected noise_multiplier"):
        trainer(tmp_path, privacy()).fit(Module(), Data())


def test_clipping_that_does_not_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_exposure.privacy.clipping.clipping import Clipping

    original = Clipping.clipped_sum
    monkeypatch.setattr(
        Clipping, "clipped_sum", lambda self: {key: 100 * value for key, value in original(self).items()}
    )
    with pytest.raises(FitError, match="The step was not clipped"):
        trainer(tmp_path, privacy()).fit(Module(), Data())


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize("settings", [{}, {"noise_multiplier": 0}, {"loss_reduction": "sum"}])
def test_private_runs_pass_the_proof_at_every_step(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    class Summed(Module):  # type: ignore[misc, valid-type]
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss * len(batch[0]) if "loss_reduction" in settings else loss

    callback = privacy(verify_steps=10**6, **settings)
    trainer(tmp_path, callback, max_epochs=5).fit(Summed(kind), Data())
    assert callback.steps == 5 * STEPS


class KeepsRunningMean(Module):
    """Remembers what it has seen in a buffer, which no noise hides."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("running", torch.zeros(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.batches += 1
        self.running = 0.9 * self.running + 0.1 * loss.detach()
        return loss


def test_a_buffer_that_remembers_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"'running': buffers that a batch has changed, .* saved with the weights"):
        trainer(tmp_path, privacy(noise_multiplier=1.0)).fit(KeepsRunningMean(), Data())


def test_trials_that_are_not_private_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="LearningRateFinder: its trials are not private"):
        trainer(tmp_path, privacy(noise_multiplier=1.0), LearningRateFinder()).fit(Module(), Data())
