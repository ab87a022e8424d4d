"""GANs in styles that are refused though they mean well, and what takes their place, as the page about them says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import ExposureError
from tests.callbacks.gan_models import CLASSES, FAKES, Gan, fit, says


@pytest.fixture(autouse=True)
def quiet(caplog: Any) -> Iterator[None]:
    with caplog.at_level("ERROR", logger="lightning.pytorch"):
        yield


class Clipped(Gan):
    """The weights of the discriminator are kept small, as in the first Wasserstein GANs."""

    @torch.no_grad()
    def change(self) -> None:
        for value in self.discriminator.parameters():
            value.clamp_(-0.05, 0.05)


class Averaged(Gan):
    """The generator has a running average, which is what will be published."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.generator).requires_grad_(False)

    @torch.no_grad()
    def change(self) -> None:
        for value, now in zip(self.average.parameters(), self.generator.parameters(), strict=True):
            value.lerp_(now, 0.1)


def in_its_step(kind: type[Any]) -> Gan:
    class InItsStep(kind):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            self.change()

    return InItsStep()


def in_a_hook(kind: type[Any]) -> Gan:
    class InAHook(kind):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            self.change()

    return InAHook()


@pytest.mark.parametrize("kind", [Clipped, Averaged])
def test_weights_that_are_changed_otherwise_are_changed_in_a_hook_that_is_vouched_for(
    kind: type[Any], tmp_path: Path
) -> None:
    for make in (in_its_step, in_a_hook):
        with pytest.raises(ExposureError, match="moved"):
            fit(tmp_path, make(kind))
    callback = fit(tmp_path, in_a_hook(kind), post_processing=["on_train_batch_end"])
    assert callback.epsilon > 0


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_spectral_norm_in_the_discriminator_is_refused(norm: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    module = Gan()
    norm(module.discriminator[0])
    with pytest.raises(ExposureError, match="cannot be trained privately as it is"):
        fit(tmp_path, module)


class AlwaysAsMany(Gan):
    """The discriminator is shown a fixed number of generated records."""

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        kinds = torch.randint(CLASSES, (FAKES,))
        fakes = self.generated(kinds).detach()
        return says(self.judged(images, labels), True) + says(self.judged(fakes, kinds), False)


def test_the_discriminator_is_shown_as_many_generated_records_as_real_ones(tmp_path: Path) -> None:
    with pytest.raises(ExposureError, match="as many generated records as real ones"):
        fit(tmp_path, AlwaysAsMany())


class AddedUp(Gan):
    """The discriminator's loss is a sum over the examples."""

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return super().discriminator_loss(images, labels) * len(images)


def test_a_loss_that_is_a_sum_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ExposureError, match="Use loss_reduction='sum'"):
        fit(tmp_path, AddedUp())
    assert fit(tmp_path, AddedUp(), loss_reduction="sum").epsilon > 0
