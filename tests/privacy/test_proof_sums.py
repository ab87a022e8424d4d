"""The clipped sum of a step, recomputed from the gradients of its examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.proof._sums import SumOfExamples

EXAMPLES, NORM = 12, 0.3


class Tied(nn.Module):
    """A table that is also a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed((x[:, :5] * 3).long().clamp(0, 8)).tanh())


MODELS: dict[str, Any] = {
    "linear": lambda: nn.Linear(6, 3),
    "layers": lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4)),
    "tied": Tied,
    "recurrent": lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), Last(nn.GRU(2, 4, batch_first=True))),
}


class Last(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)[0]


def clipped(kind: str, *, reduction: str = "mean", examples: int = EXAMPLES, most: int | None = None) -> Any:
    """What was seen before clipping, the clipped sums, and the norms."""
    torch.manual_seed(1)
    model = MODELS[kind]()
    seen: list[SumOfExamples] = []
    clipping = Clipping(model, max_grad_norm=NORM, loss_reduction=reduction)
    scale = examples if reduction == "mean" else 1
    luck = np.random.default_rng(0)
    clipping.on_gradients = lambda found, count: seen.append(SumOfExamples(found, count, scale, luck, most=most))
    x = torch.randn(examples, 6) * torch.linspace(0.01, 3, examples)[:, None]
    with clipping:
        clipping.begin(examples)
        losses = (model(x).flatten(1) - 1).square().sum(1)
        getattr(losses, reduction)().backward()
        sums = clipping.clipped_sum()
    return seen[0], sums, clipping.norms


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_sum_of_clipped_examples_passes(kind: str, reduction: str) -> None:
    seen, sums, norms = clipped(kind, reduction=reduction)
    assert bool((norms > NORM).any())
    seen.check(sums, norms, NORM)


@pytest.mark.parametrize("kind", MODELS)
def test_another_sum_is_refused(kind: str) -> None:
    seen, sums, norms = clipped(kind)
    for parameter, total in sums.items():
        # One example more, in one parameter: what a single one of them may add at most.
        more = total + NORM * torch.randn(total.shape) / total.numel() ** 0.5
        with pytest.raises(FitError, match="its sum is another one than that of its 12 examples"):
            seen.check({**sums, parameter: more}, norms, NORM)


@pytest.mark.parametrize("kind", MODELS)
def test_clipping_by_other_norms_is_refused(kind: str) -> None:
    seen, sums, norms = clipped(kind)
    for wrong in (norms.mean().expand_as(norms), norms / 2, torch.where(norms == norms.max(), norms / 5, norms)):
        with pytest.raises(FitError, match="was clipped as if it were"):
            seen.check(sums, wrong, NORM)


def test_some_norms_are_enough_to_see_that_all_are_wrong() -> None:
    seen, sums, norms = clipped("layers", most=2)
    seen.check(sums, norms, NORM)
    with pytest.raises(FitError, match="was clipped as if it were"):
        seen.check(sums, norms * 1.1, NORM)


def test_examples_that_were_forgotten_are_refused() -> None:
    seen, sums, norms = clipped("linear")
    with pytest.raises(FitError, match="clipped 11 gradients of 12 examples"):
        seen.check(sums, norms[:-1], NORM)
