"""Modules that look as if their examples mix, and do not; and batches of unusual kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.callbacks.mixing_models import PAD, VOCAB, Base, Tokens


class PerExampleTokenMean(Tokens):
    def loss(self, batch: Any) -> Tensor:
        logits, labels = self.logits(batch), batch["labels"]
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=PAD, reduction="none")
        return (losses.sum(1) / (labels != PAD).sum(1).clamp(min=1)).mean()


class WithDropout(Base):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def hidden(self, x: Tensor) -> Tensor:
        return self.drop(super().hidden(x))


class FunctionalDropout(Base):
    def hidden(self, x: Tensor) -> Tensor:
        return functional.dropout(super().hidden(x), 0.4, self.training)


class Variational(Base):
    """Draws a code for each example."""

    def hidden(self, x: Tensor) -> Tensor:
        mean = self.body(x)
        return mean + 0.5 * torch.randn_like(mean)


class RandomMasking(Tokens):
    def logits(self, batch: Any) -> Tensor:
        tokens = batch["tokens"]
        masked = torch.where(torch.rand(tokens.shape) < 0.3, torch.zeros_like(tokens), tokens)
        return self.out(self.embed(masked).tanh())

    loss = PerExampleTokenMean.loss


class RandomMaskingByCount(Tokens):
    """Draws as many numbers as there are places, which depends on all examples."""

    def logits(self, batch: Any) -> Tensor:
        tokens = batch["tokens"].clone()
        chosen = tokens < torch.randint(2, VOCAB, ())
        tokens[chosen] = torch.randint(VOCAB, (int(chosen.sum()),))
        return self.out(self.embed(tokens).tanh())

    loss = PerExampleTokenMean.loss


class UnseenNoise(Base):
    """Takes noise from a generator that nobody can put back."""

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) + torch.randn(8, generator=torch.Generator().manual_seed(torch.seed() % 2**31))


class FreshNoise(Base):
    """Takes noise from the operating system."""

    def hidden(self, x: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        return super().hidden(x) + torch.randn(len(x), 8, generator=generator)


class FixedNoise(Base):
    """Always the same noise."""

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) + torch.randn(len(x), 8, generator=torch.Generator().manual_seed(0))


class OwnGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) + torch.randn(len(x), 8, generator=self.generator)


class Anneals(Base):
    """Its loss depends on how many steps there were, and it remembers losses that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.losses: list[float] = []

    def loss(self, batch: Any) -> Tensor:
        self.count += 1
        loss = super().loss(batch) * min(1.0, self.count / 10)
        self.losses.append(float(loss.detach()))
        return loss


HEALTHY = [
    Base,
    PerExampleTokenMean,
    WithDropout,
    FunctionalDropout,
    Variational,
    RandomMasking,
    RandomMaskingByCount,
    FixedNoise,
    OwnGenerator,
    Anneals,
]


# ---- batches of other kinds ---------------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Both:
    x: Tensor
    y: Tensor


class Plain:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


def stacked(items: Any) -> tuple[Tensor, Tensor]:
    return torch.stack([item["x"] for item in items]), torch.stack([item["y"] for item in items])


BATCHES: dict[str, Callable[[Any], Any]] = {
    "tuple": stacked,
    "named tuple": lambda items: Pair(*stacked(items)),
    "dataclass": lambda items: Both(*stacked(items)),
    "object": lambda items: Plain(*stacked(items)),
    "nested": lambda items: {"inputs": {"x": [stacked(items)[0]]}, "y": stacked(items)[1], "names": ["n"] * len(items)},
    "list of records": lambda items: list(items),
}


def unpacked(batch: Any) -> dict[str, Tensor]:
    """The vectors and classes of any of these batches."""
    if isinstance(batch, dict):
        return {"x": batch["inputs"]["x"][0], "y": batch["y"]}
    if isinstance(batch, list):
        return dict(zip("xy", stacked(batch), strict=True))
    x, y = batch if isinstance(batch, tuple) else (batch.x, batch.y)
    return {"x": x, "y": y}
