"""What cannot be private is refused before it trains; and what turns out not to be, at the first steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.callbacks.private._refusals import refused_strategy
from lightning_exposure.errors import ArgumentError, DataError, FitError, ModelError
from tests.callbacks.privacy_setups import (
    STEPS,
    VOCAB,
    WIDTH,
    Data,
    Module,
    loss_of,
    privacy,
    same,
    trainer,
    weights,
)

# ---- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "noise_multiplier is None and target_epsilon is None; expected exactly one of them"),
        ({"noise_multiplier": 1.0, "target_epsilon": 1.0}, "expected exactly one of them"),
        ({"noise_multiplier": -0.1}, r"noise_multiplier is -0\.1; expected a number of at least 0\."),
        ({"noise_multiplier": "1"}, "noise_multiplier is '1', of type str; expected a number of at least 0"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier is inf; expected a number"),
        ({"target_epsilon": 0.0}, r"target_epsilon is 0\.0; expected a number above 0"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 0.0}, r"max_grad_norm is 0\.0; expected a number above 0"),
        ({"noise_multiplier": 1.0, "max_grad_norm": float("nan")}, "max_grad_norm is nan; expected a number above 0"),
        ({"noise_multiplier": 1.0, "delta": 1.0}, r"delta is 1\.0; expected a number above 0 and below 1"),
        (
            {"noise_multiplier": 1.0, "accountant": "gdp"},
            "is 'gdp'; expected one of 'prv', 'rdp'.* too small",
        ),
        ({"noise_multiplier": 1.0, "max_epsilon": -1.0}, r"max_epsilon is -1\.0; expected a number above 0"),
        ({"noise_multiplier": 0, "max_epsilon": 1.0}, "expected None with noise_multiplier=0"),
        ({"target_epsilon": 2.0, "max_epsilon": 1.0}, r"max_epsilon is 1\.0; expected at least target_epsilon, 2\.0"),
        ({"noise_multiplier": 1.0, "loss_reduction": "max"}, "loss_reduction is 'max'; expected one of 'mean', 'sum'"),
        ({"noise_multiplier": 1.0, "seed": -1}, "seed is -1; expected an integer of at least 0"),
        ({"noise_multiplier": 1.0, "seed": 0.5}, "seed is 0.5, of type float; expected an integer"),
        ({"noise_multiplier": 1.0, "verify_steps": -1}, "verify_steps is -1; expected an integer of at least 0"),
    ],
)
def test_wrong_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DifferentialPrivacy(**({"max_grad_norm": 1.0, "delta": 1e-6} | settings))


# ---- before training ------------------------------------------------------------------------------------------


def refused(folder: Path, message: str, module: Any = None, data: Any = None, *others: Any, **options: Any) -> None:
    """Not a single step is made, and nothing is left behind."""
    module, data = module or Module(), data or Data()
    before, callback = weights(module), privacy()
    run = trainer(folder, callback, *others, **options)
    error = (FitError, ModelError, DataError)
    with pytest.raises(error, match=message):
        run.fit(module, data)
    assert run.global_step == 0
    assert same(before, weights(module))
    assert callback.history == []
    assert "train_dataloader" not in {*vars(module), *(vars(data) if hasattr(data, "__dict__") else ())}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_clip_val": 1.0}, r"Trainer\(gradient_clip_val=1.0\): .* leave it out\. max_grad_norm clips"),
        ({"accumulate_grad_batches": 2}, r"Trainer\(accumulate_grad_batches=2\): a step must be that of one batch"),
        ({"overfit_batches": 2}, r"Trainer\(overfit_batches=2\): takes the same batches"),
        (
            {"plugins": MixedPrecision("16-mixed", "cpu")},
            r"Trainer\(precision='16-mixed'\): scales the loss.* 'bf16-mixed'",
        ),
        ({"precision": "bf16-true"}, r"Trainer\(precision='bf16-true'\): .* rounds away the noise"),
    ],
)
def test_settings_of_the_trainer(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(tmp_path, message, **options)


def test_everything_that_stands_in_the_way_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FitError) as caught:
        trainer(tmp_path, privacy(), gradient_clip_val=1.0, accumulate_grad_batches=2).fit(Module(), Data())
    assert str(caught.value).count("\n- ") == 2


def test_other_callbacks(tmp_path: Path) -> None:
    class Another(DifferentialPrivacy):
        pass

    another = Another(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-6)
    refused(tmp_path, "has two DifferentialPrivacy; expected one", None, None, another)
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `DifferentialPrivacy`"):
        trainer(tmp_path, privacy(), privacy())
    refused(tmp_path, "GradientAccumulationScheduler", None, None, GradientAccumulationScheduler({1: 2}))


class DeepSpeedStrategy(SingleDeviceStrategy):
    """One that says that it is somebody else: a real one needs devices that a test may not have."""


def test_strategies_that_split_the_weights(tmp_path: Path) -> None:
    refused(
        tmp_path,
        r"Trainer\(strategy=...\) is DeepSpeedStrategy, .* use one device, or strategy='ddp'",
        strategy=DeepSpeedStrategy("cpu"),
    )
    assert "FSDPStrategy" in str(refused_strategy(FSDPStrategy()))
    assert refused_strategy(DDPStrategy()) is None


class Manual(Module):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Clipped(Module):  # type: ignore[misc, valid-type]
    def configure_gradient_clipping(self, *others: Any, **options: Any) -> None:
        pass


class Lbfgs(Module):  # type: ignore[misc, valid-type]
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Unoptimized(Module):  # type: ignore[misc, valid-type]
    def configure_optimizers(self) -> Any:
        return None


class Partly(Module):  # type: ignore[misc, valid-type]
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.out.parameters(), lr=0.1)


class Loose(Module):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(VOCAB))


def with_middle(middle: nn.Module) -> Any:
    module = Module()
    module.net.middle = middle
    return module


class Unused(Module):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Manual, "Manual.automatic_optimization is False"),
        (Clipped, "Clipped.configure_gradient_clipping would never see a gradient"),
        (Lbfgs, "LBFGS looks at a batch several times"),
        (Unoptimized, "The optimizer does not have .*Give it all of them"),
        (Partly, "The optimizer does not have .*'net.embed.weight'"),
        (Loose, r"the model itself \(Loose\): has parameters of its own .*'shift'"),
        (lambda: with_middle(nn.BatchNorm1d(WIDTH)), r"'net.middle' \(BatchNorm1d\): .* use nn.GroupNorm"),
        (lambda: with_middle(nn.RNN(WIDTH, WIDTH)), r"'net.middle' \(RNN\): .* use nn.GRU or nn.LSTM"),
        (
            lambda: with_middle(nn.MultiheadAttention(WIDTH, 2, batch_first=True)),
            r"'net.middle' \(MultiheadAttention\): .* make attention of nn.Linear layers",
        ),
        (Unused, "'spare': had no part in the loss of the first batch"),
    ],
)
def test_modules(make: Any, message: str, tmp_path: Path) -> None:
    refused(tmp_path, message, make())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Streamed(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(Stream(), batch_size=2)


class Several(Data):
    def train_dataloader(self) -> Any:
        return {"a": super().train_dataloader(), "b": super().train_dataloader()}


def test_data(tmp_path: Path) -> None:
    before = DataLoader.__setattr__
    refused(tmp_path, "its dataset Stream has no length or no index", data=Streamed())
    refused(tmp_path, "train_dataloader: dict; expected one torch DataLoader", data=Several())
    loader = Data().train_dataloader()
    wrap = r"given the training loader itself \(DataLoader\).* Wrap it: trainer.fit\(model, PoissonLoader\(loader\)\)"
    refused(tmp_path, wrap, data=loader)
    refused(tmp_path, "train_dataloader: list; expected one PoissonLoader", data=[loader, loader])
    assert DataLoader.__setattr__ is before  # Lightning patches it while it asks for the loader


class ByItself(Module):  # type: ignore[misc, valid-type]
    def training_step(self, dataloader_iter: Any) -> Tensor:
        batch, _, _ = next(dataloader_iter)
        return loss_of(self.net, batch[0])


@pytest.mark.filterwarnings("ignore:(You are using|Found) `?(the )?`?dataloader_iter`")
def test_a_module_that_fetches_by_itself(tmp_path: Path) -> None:
    refused(tmp_path, r"was not yet fetched when the step began. .* use training_step\(self, batch", ByItself())


def test_data_that_changes_meanwhile(tmp_path: Path) -> None:
    class Growing(Data):
        def train_dataloader(self) -> Any:
            self.records += 1
            return super().train_dataloader()

    with pytest.raises(FitError, match=r"changed while it trained, from PoissonLoader\(records=61.* to .*=62"):
        trainer(tmp_path, privacy(), reload_dataloaders_every_n_epochs=1).fit(Module(), Growing())
    callback = privacy()
    trainer(tmp_path, callback, reload_dataloaders_every_n_epochs=1, max_epochs=3).fit(Module(), Data())
    assert callback.steps == 3 * STEPS


# ---- sabotage -------------------------------------------------------------------------------------------------


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
def test_private_trainings_pass_the_proof_at_every_step(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
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
