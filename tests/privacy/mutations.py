"""Ways in which a private training run silently is not private. Each is one line; add yours at the end of its section.

A mutation is a name, what it does to the code, and a model in which it is tried. `noise(f)` gives what `f` makes of the
noise of one parameter in the place of that noise: `f` takes the noise, its standard deviation and the number of the
step. `sums(f)` does the same for the clipped sums, `drawn(f)` for the numbers of the records in a batch, and
`counted(f)` for what the accountant is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.callbacks.private._account import Account
from lightning_exposure.privacy.clipping import clipping as clipping_module
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps import poisson as sampling_module
from lightning_exposure.privacy.steps.optimizer import ClippedOptimizer
from lightning_exposure.privacy.steps.private_steps import PrivateSteps

RECORDS, BATCH, EPOCHS = 400, 40, 3
NORM = 0.05
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    name: str
    apply: Patch
    model: str = "5000"


# ---- models and training runs ---------------------------------------------------------------------------------------

MODELS: dict[str, Callable[[], nn.Module]] = {
    "17": lambda: nn.Linear(16, 1),
    "5000": lambda: nn.Linear(499, 10),
    "layers": lambda: nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 8)),
}


class Regression(L.LightningModule):
    """The distance of a model's outputs from 1, per example."""

    def __init__(self, model: str, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = MODELS[model]()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]) - 1).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader_for(model: str, *, seed: int = 0, records: int = RECORDS, batch_size: int = BATCH) -> Any:
    first = next(MODELS[model]().parameters())
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(records, first.shape[1], generator=generator)
    return DataLoader(TensorDataset(data), batch_size=batch_size, shuffle=True)


class Records(L.LightningDataModule):
    def __init__(self, loader: Any) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> Any:
        return self.loader


def train(folder: Path, model: str, *, seed: int | None = None, **settings: Any) -> DifferentialPrivacy:
    """30 private steps of a model. Raises what the proof raises."""
    defaults = {"noise_multiplier": 1.0, "max_grad_norm": NORM, "delta": 1e-5, "accountant": "rdp", "verbose": False}
    callback = DifferentialPrivacy(seed=seed, **(defaults | settings))
    L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[callback],
    ).fit(Regression(model, seed=seed or 0), Records(loader_for(model, seed=seed or 0)))
    return callback


# ---- what is changed ---------------------------------------------------------------------------------------


def noise(change: Callable[[Tensor, float, int], Tensor]) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        original, add_noise = opacus_optimizer._generate_noise, ClippedOptimizer.add_noise
        step = [-1]

        def counted(self: Any) -> None:
            step[0] += 1
            add_noise(self)

        def changed(std: float, reference: Tensor, *args: Any, **options: Any) -> Tensor:
            return change(original(std, reference, *args, **options), std, step[0])

        patch.setattr(opacus_optimizer, "_generate_noise", changed)
        patch.setattr(ClippedOptimizer, "add_noise", counted)

    return apply


def sums(change: Callable[[Tensor], Tensor]) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        original = Clipping.clipped_sum
        patch.setattr(Clipping, "clipped_sum", lambda self: {key: change(part) for key, part in original(self).items()})

    return apply


def clipped_to(factor: float) -> Patch:
    """Examples are clipped to another norm than promised."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = Clipping.clipped_sum

        def changed(self: Any) -> Any:
            norm, self.max_grad_norm = self.max_grad_norm, self.max_grad_norm * factor
            try:
                return original(self)
            finally:
                self.max_grad_norm = norm

        patch.setattr(Clipping, "clipped_sum", changed)

    return apply


def norms(change: Callable[[Tensor], Tensor], *, of: slice = slice(None)) -> Patch:
    """The norms that examples are clipped by: what `change` makes of those over some of the parameters."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = clipping_module.measure

        def changed(gradients: Any, limit: float) -> Any:
            measured = original(gradients, limit)
            return measured._replace(norms=change(original(gradients[of], limit).norms))

        patch.setattr(clipping_module, "measure", changed)

    return apply


def batch_clipped(patch: pytest.MonkeyPatch) -> None:
    """The raw sum of a batch is clipped to what clipped examples could add up to, and no example is."""
    original = Clipping.clipped_sum

    def changed(self: Any) -> Any:
        norm, examples, self.max_grad_norm = self.max_grad_norm, self.examples, 1e9
        try:
            found = original(self)
        finally:
            self.max_grad_norm = norm
        length = float(torch.stack([part.norm() for part in found.values()]).norm())
        return {key: part * min(1.0, norm * examples / (length + 1e-9)) for key, part in found.items()}

    patch.setattr(Clipping, "clipped_sum", changed)


def fifth(found: Tensor, factor: float) -> Tensor:
    return torch.where(torch.arange(len(found)) == 5, found * factor, found)


def drawn(change: Callable[[list[int], int, int], list[int]]) -> Patch:
    """The records of a batch: what `change` makes of them, of how many there are, and of the number of the batch."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original, step = sampling_module.draw, [-1]

        def changed(records: int, rate: float, generator: torch.Generator) -> list[int]:
            step[0] += 1
            return change(original(records, rate, generator), records, step[0])

        patch.setattr(sampling_module, "draw", changed)

    return apply


def rate(factor: float) -> Patch:
    original = sampling_module.draw
    return lambda patch: patch.setattr(
        sampling_module, "draw", lambda records, rate, generator: original(records, factor * rate, generator)
    )


def counted(change: Callable[[float, float, int], tuple[float, float] | None]) -> Patch:
    """What is counted as a step: what `change` makes of noise, rate and the number of the step; None: nothing."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original, step = Account.step, [-1]

        def changed(self: Account, module: Any, noise_multiplier: float, sample_rate: float) -> None:
            step[0] += 1
            told = change(noise_multiplier, sample_rate, step[0])
            if told is not None:
                original(self, module, *told)

        patch.setattr(Account, "step", changed)

    return apply


def after_step(change: Callable[[Any, nn.Parameter, Tensor], None]) -> Patch:
    """After each step, do something with each parameter and what it was before."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = ClippedOptimizer.step

        def changed(self: Any, closure: Any = None) -> Any:
            before = [value.detach().clone() for value in self.params]
            result = original(self, closure)
            with torch.no_grad():
                for value, old in zip(self.params, before, strict=True):
                    change(self, value, old)
            return result

        patch.setattr(ClippedOptimizer, "step", changed)

    return apply


def global_noise(patch: pytest.MonkeyPatch) -> None:
    original = opacus_optimizer._generate_noise
    patch.setattr(
        opacus_optimizer, "_generate_noise", lambda std, reference, *args, **options: original(std, reference)
    )


def fixed(size: int) -> Callable[[list[int], int, int], list[int]]:
    generator = torch.Generator().manual_seed(5)
    return lambda batch, records, step: sorted(torch.randperm(records, generator=generator)[:size].tolist())


def kept(value: Tensor, std: float, step: int) -> Tensor:
    """Noise that depends on the step only."""
    return std * torch.randn(value.shape, generator=torch.Generator().manual_seed(step))


def halves(value: Tensor) -> Tensor:
    return (torch.arange(value.numel()) % 2).view_as(value).to(value)


MUTATIONS = [
    # ---- noise
    Mutation("noise x0", noise(lambda z, std, step: 0 * z), "17"),
    Mutation("noise x0.35, 17 parameters", noise(lambda z, std, step: 0.35 * z), "17"),
    Mutation("noise x0.5, 17 parameters", noise(lambda z, std, step: 0.5 * z), "17"),
    Mutation("noise x0.6, 17 parameters", noise(lambda z, std, step: 0.6 * z), "17"),
    Mutation("noise x0.7, 17 parameters", noise(lambda z, std, step: 0.7 * z), "17"),
    Mutation("noise x0.9", noise(lambda z, std, step: 0.9 * z)),
    Mutation("noise x0.95", noise(lambda z, std, step: 0.95 * z)),
    Mutation("noise x0.98", noise(lambda z, std, step: 0.98 * z)),
    Mutation("noise constant", noise(lambda z, std, step: torch.full_like(z, std)), "17"),
    Mutation("noise of a random sign", noise(lambda z, std, step: std * z.sign()), "17"),
    Mutation("noise of one random sign a step", noise(lambda z, std, step: std * z.flatten()[0].sign().expand_as(z))),
    Mutation("noise uniform", noise(lambda z, std, step: std * 3**0.5 * torch.erf(z / std / 2**0.5)), "17"),
    Mutation("noise on half the coordinates", noise(lambda z, std, step: z * halves(z)), "17"),
    Mutation("noise on half the coordinates, larger", noise(lambda z, std, step: z * 2**0.5 * halves(z)), "17"),
    Mutation("noise on one layer only", noise(lambda z, std, step: z * (z.dim() == 2)), "layers"),
    Mutation("noise the same every step", noise(lambda z, std, step: kept(z, std, 0)), "17"),
    Mutation("noise that cancels", noise(lambda z, std, step: (-1) ** step * kept(z, std, step // 2)), "17"),
    Mutation("noise off after step 3", noise(lambda z, std, step: z * (step < 3)), "17"),
    Mutation("noise off every second step", noise(lambda z, std, step: z * (step % 2)), "17"),
    Mutation("noise of a seed that is known", noise(lambda z, std, step: kept(z, std, step)), "layers"),
    Mutation("noise from the global generator", global_noise),
    Mutation("noise generator never set", lambda patch: patch.setattr(PrivateSteps, "use_noise", lambda *_: None)),
    # ---- clipping
    Mutation("clipping x1.5", clipped_to(1.5)),
    Mutation("clipping x2", clipped_to(2), "17"),
    Mutation("clipping x3", clipped_to(3), "layers"),
    Mutation("clipping x5", clipped_to(5), "17"),
    Mutation("clipping off", clipped_to(1e9), "layers"),
    Mutation("clipped sums x1.5", sums(lambda part: 1.5 * part), "17"),
    Mutation("norms halved", norms(lambda found: found / 2), "layers"),
    Mutation("a layer left out of the norm", norms(lambda found: found, of=slice(1, None)), "layers"),
    Mutation("the batch clipped as a whole", batch_clipped, "layers"),
    Mutation("clipped by the mean norm", norms(lambda found: found.mean().expand_as(found)), "layers"),
    Mutation("clipped by the largest norm", norms(lambda found: found.max().expand_as(found)), "layers"),
    Mutation("example 5 clipped to 5 times the norm", norms(lambda found: fifth(found, 0.2)), "layers"),
    Mutation("clipping x3 of more than 4", norms(lambda found: found / 3 if len(found) > 4 else found), "layers"),
    # ---- batches
    Mutation("batches of fixed size", drawn(fixed(BATCH))),
    Mutation("batches always the same", drawn(lambda batch, records, step: list(range(BATCH))), "17"),
    Mutation("one record always in", drawn(lambda batch, records, step: sorted({7, *batch})), "17"),
    Mutation("half the records never in", drawn(lambda batch, n, step: sorted({k % (n // 2) for k in batch})), "17"),
    Mutation("rate x1.2", rate(1.2), "17"),
    Mutation("rate x2", rate(2), "17"),
    # ---- accountant
    Mutation("the accountant forgets every second step", counted(lambda z, q, step: None if step % 2 else (z, q))),
    Mutation("the accountant is told half the rate", counted(lambda z, q, step: (z, q / 2)), "17"),
    Mutation("the accountant is told twice the noise", counted(lambda z, q, step: (2 * z, q)), "17"),
    # ---- weights
    Mutation("a leak of 1e-3 of the step", after_step(lambda o, p, old: p.add_(1e-3 * (p - old).abs().max())), "17"),
    Mutation(
        "a leak of the clipped sum",
        after_step(lambda o, p, old: p.add_(o.last_sums[p], alpha=1e-3 * float((p - old).abs().max()) / NORM)),
    ),
    Mutation("a step without noise", after_step(lambda o, p, old: p.copy_(old - 0.01 * o.last_sums[p])), "layers"),
]
