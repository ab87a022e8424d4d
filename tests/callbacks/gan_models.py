"""Tiny GANs that make their steps themselves: as they should be, in several styles, and as they should not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import DifferentialPrivacy
from tests.callbacks.privacy_setups import privacy, trainer

SIZE, LATENT, CLASSES, RECORDS, BATCH, FAKES = 6, 4, 3, 60, 15, 8
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(RECORDS, SIZE, generator=GENERATOR) + 1
LABELS = torch.randint(CLASSES, (RECORDS,), generator=GENERATOR)


def says(logits: Tensor, real: bool) -> Tensor:
    """The mean over the examples of what it costs to be wrong."""
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


class Gan(L.LightningModule):
    """A conditional GAN, as one writes it: the discriminator's step, and then the generator's."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(LATENT + CLASSES, 16), nn.ReLU(), nn.Linear(16, SIZE))
        self.discriminator = nn.Sequential(nn.Linear(SIZE + CLASSES, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.discriminator)]

    def generated(self, labels: Tensor) -> Tensor:
        kinds = nn.functional.one_hot(labels, CLASSES).float()
        fakes: Tensor = self.generator(torch.cat([torch.randn(len(labels), LATENT), kinds], 1))
        return fakes

    def judged(self, images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.discriminator(torch.cat([images, nn.functional.one_hot(labels, CLASSES).float()], 1))
        return logits

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        fakes = self.generated(labels).detach()
        return says(self.judged(images, labels), True) + says(self.judged(fakes, labels), False)

    def generator_loss(self, batch: Any) -> Tensor:
        """Of a fixed number of records with labels of their own; the batch is for those who cheat."""
        labels = torch.randint(CLASSES, (FAKES,))
        return says(self.judged(self.generated(labels), labels), True)

    def train_discriminator(self, optimizer: Any, batch: Any) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(self.discriminator_loss(*batch))
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def train_generator(self, optimizer: Any, batch: Any) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        loss = self.generator_loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.log("generator_loss", loss)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        self.train_discriminator(discriminator, batch)
        self.train_generator(generator, batch)


class Images(L.LightningDataModule):
    def __init__(self, records: int = RECORDS, batch_size: int = BATCH) -> None:
        super().__init__()
        self.records, self.batch_size = records, batch_size

    def train_dataloader(self) -> Any:
        data = TensorDataset(IMAGES[: self.records], LABELS[: self.records])
        return DataLoader(data, batch_size=self.batch_size, shuffle=True)


def fit(
    folder: Path, module: Any, *callbacks: Any, data: Any = None, options: dict[str, Any] | None = None, **settings: Any
) -> DifferentialPrivacy:
    """Train privately; the discriminator is the private part. Raises what the proof raises."""
    callback = privacy(**({"private": "discriminator", "verbose": False} | settings))
    trainer(folder, callback, *callbacks, **(options or {})).fit(module, data or Images())
    return callback


# ---- other ways to write the same ----------------------------------------------------------------------------------


class GeneratorFirst(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        self.train_generator(generator, batch)
        self.train_discriminator(discriminator, batch)


class Untoggled(Gan):
    """Clears the gradients before every backward pass, and freezes nothing."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        for optimizer, loss in (
            (discriminator, lambda: self.discriminator_loss(*batch)),
            (generator, lambda: self.generator_loss(batch)),
        ):
            found = loss()
            optimizer.zero_grad()
            found.backward()
            optimizer.step()


class WithClosures(Gan):
    def training_step(self, batch: Any) -> None:
        generator, discriminator = self.optimizers()

        def closure_of(optimizer: Any, loss: Callable[[], Tensor]) -> Callable[[], None]:
            def closure() -> None:
                optimizer.zero_grad()
                self.manual_backward(loss())

            return closure

        with discriminator.toggle_model():
            discriminator.step(closure=closure_of(discriminator, lambda: self.discriminator_loss(*batch)))
        with generator.toggle_model():
            generator.step(closure=closure_of(generator, lambda: self.generator_loss(batch)))


class ManySteps(Gan):
    """The generator learns three times a batch, with clipped gradients; the discriminator has dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator.insert(2, nn.Dropout(0.3))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        self.train_discriminator(discriminator, batch)
        for _ in range(3):
            self.train_generator(generator, batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        nn.utils.clip_grad_norm_(self.generator.parameters(), 0.5)


class ItsOwnNumbers(Gan):
    """Draws from a generator of random numbers that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.luck = torch.Generator().manual_seed(0)

    def generated(self, labels: Tensor) -> Tensor:
        latent = torch.randn(len(labels), LATENT, generator=self.luck)
        fakes: Tensor = self.generator(torch.cat([latent, nn.functional.one_hot(labels, CLASSES).float()], 1))
        return fakes


class Counts(Gan):
    """Counts its steps before it makes them, and learns less and less; its generator has a spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        nn.utils.parametrizations.spectral_norm(self.generator[0])

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.count += 1
        super().training_step(batch, batch_idx)

    def generator_loss(self, batch: Any) -> Tensor:
        return super().generator_loss(batch) / self.count


class StepsAtTheEnd(Gan):
    """Both gradients first, and then both steps."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        for optimizer, loss in (
            (generator, lambda: self.generator_loss(batch)),
            (discriminator, lambda: self.discriminator_loss(*batch)),
        ):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss())
            self.untoggle_optimizer(optimizer)
        discriminator.step()
        generator.step()


class ItsOwnStatistics(Gan):
    """Batch statistics of the generator's own step alone; for the discriminator they are those of before."""

    def __init__(self) -> None:
        super().__init__()
        self.generator.insert(1, nn.BatchNorm1d(16))

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.generator.eval()
        loss = super().discriminator_loss(images, labels)
        self.generator.train()
        return loss


HEALTHY: dict[str, Callable[[], Gan]] = {
    "as it is": Gan,
    "generator first": GeneratorFirst,
    "untoggled": Untoggled,
    "closures": WithClosures,
    "many steps": ManySteps,
    "its own random numbers": ItsOwnNumbers,
    "counts, and a spectral norm": Counts,
    "steps at the end": StepsAtTheEnd,
    "batch statistics of its own": ItsOwnStatistics,
}
