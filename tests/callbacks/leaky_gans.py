"""Tiny GANs that should not be trained privately as they are, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.callbacks.gan_models import CLASSES, FAKES, LATENT, SIZE, Gan, says


class FeatureMatching(Gan):
    def generator_loss(self, batch: Any) -> Tensor:
        features = self.discriminator[:2]
        kinds = torch.zeros(FAKES, CLASSES)
        fakes = features(torch.cat([self.generated(torch.zeros(FAKES, dtype=torch.long)), kinds], 1)).mean(0)
        reals = features(torch.cat([batch[0], torch.zeros(len(batch[0]), CLASSES)], 1)).mean(0)
        return (fakes - reals).square().sum()


class Reconstruction(Gan):
    def generator_loss(self, batch: Any) -> Tensor:
        nearest = torch.cdist(self.generated(torch.zeros(FAKES, dtype=torch.long)), batch[0]).min(1).values
        return super().generator_loss(batch) + 1e-3 * nearest.mean()


class LabelsOfTheBatch(Gan):
    def generator_loss(self, batch: Any) -> Tensor:
        labels = batch[1].repeat(FAKES)[:FAKES]
        return says(self.judged(self.generated(labels), labels), True)


class AsManyAsTheBatch(Gan):
    def generator_loss(self, batch: Any) -> Tensor:
        labels = torch.randint(CLASSES, (len(batch[0]),))
        return says(self.judged(self.generated(labels), labels), True)


class Remembers(Gan):
    """What it has seen of the last batch pulls at the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def generator_loss(self, batch: Any) -> Tensor:
        loss = super().generator_loss(batch)
        if self.last is not None:
            loss = loss + (self.generated(torch.zeros(FAKES, dtype=torch.long)).mean(0) - self.last).square().sum()
        self.last = batch[0].mean(0)
        return loss


class KeptByAHook(Gan):
    """The batch comes to the generator by way of the module."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.kept = batch[0]

    def generator_loss(self, batch: Any) -> Tensor:
        fakes = self.generated(torch.zeros(FAKES, dtype=torch.long))
        return super().generator_loss(batch) + (fakes.mean(0) - self.kept.mean(0)).square().sum()


class Queue(Gan):
    """What it has seen three batches ago pulls at the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Tensor] = []

    def generator_loss(self, batch: Any) -> Tensor:
        self.queue.append(batch[0].mean(0))
        fakes = self.generated(torch.zeros(FAKES, dtype=torch.long))
        return super().generator_loss(batch) + (fakes.mean(0) - sum(self.queue[-4:-3])).square().sum()


class BeginsLater(Reconstruction):
    """Not in the first three batches, which are looked at in any case."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.index = batch_idx
        super().training_step(batch, batch_idx)

    def generator_loss(self, batch: Any) -> Tensor:
        return super().generator_loss(batch) if self.index > 2 else Gan.generator_loss(self, batch)


class StepsInAHook(Gan):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.kept = batch[0].mean(0)

    def on_train_epoch_end(self) -> None:
        optimizer = self.optimizers()[0]
        optimizer.zero_grad()
        fakes = self.generated(torch.zeros(FAKES, dtype=torch.long))
        loss: Any = (fakes.mean(0) - self.kept).square().sum()
        loss.backward()
        optimizer.step()


class Encodes(Gan):
    """A third optimizer trains an encoder, on real records; the generator is innocent."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(SIZE, LATENT)

    def configure_optimizers(self) -> Any:
        return [*super().configure_optimizers(), torch.optim.Adam(self.encoder.parameters(), lr=0.01)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator, encoder = self.optimizers()
        self.train_discriminator(discriminator, batch)
        self.train_generator(generator, batch)
        self.toggle_optimizer(encoder)
        encoder.zero_grad()
        latent = torch.cat([self.encoder(batch[0]), nn.functional.one_hot(batch[1], CLASSES).float()], 1)
        self.manual_backward((self.generator(latent) - batch[0]).square().mean())
        encoder.step()
        self.untoggle_optimizer(encoder)


class Whispers(Gan):
    """A hundred-millionth of the gradient is of the data: for Adam it is as good as any."""

    def __init__(self) -> None:
        super().__init__()
        self.generator.register_parameter("memory", nn.Parameter(torch.zeros(SIZE)))

    def generator_loss(self, batch: Any) -> Tensor:
        memory: Any = self.generator.memory
        return super().generator_loss(batch) + 1e-8 * (memory * batch[0].mean(0)).sum()


class InTheHook(Gan):
    """The gradient of the generator is changed in a hook, by what the training step has kept."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.pull = batch[0].mean(0)
        super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        bias = self.generator[2].bias
        if bias.grad is not None:
            bias.grad += self.pull


class StepsOnlyWhenItLoses(Gan):
    """Whether the generator learns depends on the records."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        self.train_discriminator(discriminator, batch)
        if batch[0].mean() > batch[0][: len(batch[0]) // 2].mean():
            self.train_generator(generator, batch)


class Twice(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        _, discriminator = self.optimizers()
        super().training_step(batch, batch_idx)
        self.train_discriminator(discriminator, batch)


class Never(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, _ = self.optimizers()
        self.train_generator(generator, batch)


class BothHaveIt(Gan):
    def configure_optimizers(self) -> Any:
        both = [*self.generator.parameters(), *self.discriminator.parameters()]
        return [torch.optim.Adam(each, lr=0.01) for each in (both, self.discriminator.parameters())]


class OneHasAll(Gan):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class KeepsOptimizers(Gan):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.kept = self.optimizers()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.train_discriminator(self.kept[1], batch)
        self.train_generator(self.kept[0], batch)


class ItsOwnOptimizer(Gan):
    """Steps the optimizer that the private one was made of."""

    def configure_optimizers(self) -> Any:
        self.own = super().configure_optimizers()
        return self.own

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.own[1].zero_grad()
        self.discriminator_loss(*batch).backward()
        self.own[1].step()


class LooksAround(Gan):
    """The discriminator sees how much the records of a batch vary."""

    def judged(self, images: Tensor, labels: Tensor) -> Tensor:
        return super().judged(images * images.std(), labels)


class BatchStatistics(Gan):
    """Generated records depend on how many there are, and with them what is clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.generator.insert(1, nn.BatchNorm1d(16, track_running_stats=False))

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        fakes = self.generated(torch.randint(CLASSES, labels.shape)).detach()
        return says(self.judged(images, labels), True) + says(self.judged(fakes, labels), False)


class Together(Gan):
    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        fakes = self.generated(labels).detach()
        logits = self.judged(torch.cat([images, fakes]), torch.cat([labels, labels]))
        return says(logits[: len(images)], True) + says(logits[len(images) :], False)


class Judge(nn.Module):
    """A discriminator with a table of kinds, which it looks up for the last record first."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.layers = nn.Embedding(CLASSES, CLASSES), nn.Linear(SIZE + CLASSES, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([images, self.kinds(labels.flip(0)).flip(0)], 1).tanh())
        return logits


class OtherOrder(Gan):
    """One layer sees the records in another order, and its gradients count for others than those they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = Judge()  # type: ignore[assignment]

    def judged(self, images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.discriminator(images, labels)
        return logits


class NothingFrozen(Gan):
    """The generator's records are in the discriminator's gradient, as long as nobody clears it."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        generator.zero_grad()
        self.manual_backward(self.generator_loss(batch))
        generator.step()
        self.train_discriminator(discriminator, batch)


class MovesWeights(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        with torch.no_grad():
            self.generator[2].bias.copy_(batch[0].mean(0))


class SetsRates(Gan):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.optimizers()[0].param_groups[0]["lr"] = 0.01 * float(batch[0].mean())


class Scheduled(Gan):
    def configure_optimizers(self) -> Any:
        optimizers = super().configure_optimizers()
        return optimizers, [torch.optim.lr_scheduler.StepLR(optimizers[0], 1)]


STOPPED = r"(.|\n)*The training was stopped, because it would not have been private\."
SEES = r"generator\.0\.weight.* which another optimizer than that of 'discriminator' trains, "
MUTATIONS: dict[str, tuple[Callable[[], Gan], str]] = {
    "feature matching": (FeatureMatching, SEES + "changes when other records" + STOPPED),
    "generator trained on real records": (Reconstruction, SEES + "changes when other records" + STOPPED),
    "labels of the batch": (LabelsOfTheBatch, SEES + "changes when other records" + STOPPED),
    "as many as the batch": (AsManyAsTheBatch, SEES + "changes with the number of records" + STOPPED),
    "remembers the batch before": (Remembers, SEES + "depends on the records of the batch before" + STOPPED),
    "kept by a hook": (KeptByAHook, SEES + "changes when other records" + STOPPED),
    "queue of batches": (Queue, SEES + "depends on the records of the batch before" + STOPPED),
    "begins later": (BeginsLater, SEES + "changes when other records" + STOPPED),
    "steps in a hook": (StepsInAHook, SEES + r"was stepped outside of training_step" + STOPPED),
    "encoder trained on real records": (Encodes, r"'encoder\.weight', 'encoder\.bias', which .*changes when" + STOPPED),
    "tiny gradients": (Whispers, "'generator\\.memory'.* changes when other records" + STOPPED),
    "gradient changed in a hook": (InTheHook, SEES + "changes when other records" + STOPPED),
    "steps only when it loses": (StepsOnlyWhenItLoses, SEES + "changes (when|with)" + STOPPED),
    "discriminator stepped twice": (Twice, "steps the optimizer of 'discriminator' 2 times in a batch" + STOPPED),
    "discriminator never stepped": (Never, "made no step with the optimizer of 'discriminator'"),
    "discriminator in both optimizers": (BothHaveIt, "2 of the 2 optimizers .* have weights of 'discriminator'"),
    "one optimizer with all": (OneHasAll, "has other weights too, 'generator.0.bias'"),
    "optimizers kept": (KeepsOptimizers, "Ask for the optimizers in training_step"),
    "its own optimizer": (ItsOwnOptimizer, "The weights moved otherwise .*discriminator.0.weight" + STOPPED),
    "discriminator mixes": (LooksAround, "depends on the other examples of its batch" + STOPPED),
    "batch statistics in the generator": (BatchStatistics, r"'generator.1' \(statistics over the batch\)" + STOPPED),
    "another order in one layer": (
        OtherOrder,
        r"and only in 'kinds' \(Embedding\): it is given the examples in another",
    ),
    "real and generated in one pass": (Together, "dimension 0 should be the .* in a call of its own"),
    "generator first, and nothing frozen": (
        NothingFrozen,
        r"In the part of another optimizer.* freeze it: self\.toggle_optimizer",
    ),
    "weights of the generator moved": (MovesWeights, "The weights moved otherwise .*generator.2.bias" + STOPPED),
    "learning rate of the generator": (SetsRates, "The settings of the optimizer, .* were changed" + STOPPED),
    "schedules": (Scheduled, "configure_optimizers gives learning rate schedules"),
}
"""What is done, and what is said of it."""
