"""What cannot be private is refused before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
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
        (lambda: with_middle(nn.RNN(WIDTH, WIDTH)), r"'net.middle' \(RNN\): .* use batch_first=True"),
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
    refused(tmp_path, "the dataset Stream, which has no length or no index", data=Streamed())
    refused(tmp_path, "train_dataloader is a dict; expected one torch DataLoader", data=Several())
    loader = Data().train_dataloader()
    wrap = r"given the training loader itself \(DataLoader\).* Wrap it: trainer.fit\(model, PoissonLoader\(loader\)\)"
    refused(tmp_path, wrap, data=loader)
    refused(tmp_path, "train_dataloader is a list; expected one PoissonLoader", data=[loader, loader])
    assert DataLoader.__setattr__ is before  # Lightning patches it while it asks for the loader


class ByItself(Module):  # type: ignore[misc, valid-type]
    def training_step(self, dataloader_iter: Any) -> Tensor:
        batch, _, _ = next(dataloader_iter)
        return loss_of(self.net, batch[0])


@pytest.mark.filterwarnings("ignore:(You are using|Found) `?(the )?`?dataloader_iter`")
def test_a_module_that_fetches_by_itself(tmp_path: Path) -> None:
    refused(tmp_path, r"ByItself.training_step\(self, dataloader_iter\) .* use training_step\(self, batch", ByItself())


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
