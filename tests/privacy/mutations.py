"""Ways in which a private training run silently is not private. Each is one line; add yours at the end of its section.

A mutation is a name, what it does to the code, and a model in which it is tried. `noise(f)` gives what `f` makes of the
noise of one parameter in the place of that noise: `f` takes the noise, its standard deviation and the number of the
step. `sums(f)` does the same for the clipped sums, `drawn(f)` for the numbers of the records in a batch, and
`counted(f)` for what the accountant is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.callbacks.private import differential_privacy as callback_module
from lightning_exposure.callbacks.private._account import Account
from lightning_exposure.privacy.clipping import clipping as clipping_module
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps import adaptive as adaptive_module
from lightning_exposure.privacy.steps import optimizer as optimizer_module
from lightning_exposure.privacy.steps import poisson as sampling_module
from lightning_exposure.privacy.steps.adaptive import FollowedNorm
from lightning_exposure.privacy.steps.optimizer import ClippedOptimizer
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.secure import SecureGenerator
from lightning_exposure.privacy.users.grouping import Grouped
from lightning_exposure.privacy.users.membership import Users

RECORDS, BATCH, EPOCHS = 400, 40, 3
NORM = 0.05
OWNERS = [round((k / 4) ** 1.1) % 97 for k in range(RECORDS)]
"""Whose the records are: 97 users with three to six of them."""
BY_USER = {"unit": "user", "user": OWNERS, "max_records_per_user": 4}
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    name: str
    apply: Patch
    model: str = "5000"
    parts: int | None = None
    """How many examples the parts of a batch have at most; None: it has no parts."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `DifferentialPrivacy`."""
    users: bool = False
    """Whether users are drawn and clipped, and not records."""

    def train(self, folder: Path) -> DifferentialPrivacy:
        seed = None if self.settings.get("secure") else 1
        parts = {"max_physical_batch_size": self.parts}
        return train(folder, self.model, seed=seed, users=self.users, **parts, **self.settings)


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


def train(
    folder: Path, model: str, *, seed: int | None = None, users: bool = False, **settings: Any
) -> DifferentialPrivacy:
    """30 private steps of a model, of records or of users. Raises what the proof raises."""
    size = 10 if users else BATCH
    settings |= BY_USER if users else {}
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
    ).fit(Regression(model, seed=seed or 0), Records(loader_for(model, seed=seed or 0, batch_size=size)))
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


def gathered(change: Callable[[Any, Callable[[], None]], None]) -> Patch:
    """The clipped sum of a part is taken: what `change` does with the optimizer and with what should be done."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = ClippedOptimizer.gather
        patch.setattr(ClippedOptimizer, "gather", lambda self: change(self, lambda: original(self)))

    return apply


def drop(*found: object) -> None:
    """Whatever was found is thrown away."""


def noisy_part(optimizer: Any, gather: Callable[[], None]) -> None:
    gather()
    for value in optimizer.params:
        noise = torch.randn(value.shape, generator=optimizer.generator)
        value.summed_grad += optimizer.noise_multiplier * optimizer.max_grad_norm * noise


def only_last_part(optimizer: Any, gather: Callable[[], None]) -> None:
    gather()
    for value in optimizer.params:
        value.summed_grad = None


def doubled_part(optimizer: Any, gather: Callable[[], None]) -> None:
    gather()
    for value in optimizer.params:
        value.summed_grad *= 2


def raw_part(optimizer: Any, gather: Callable[[], None]) -> None:
    norm, optimizer.clipping.max_grad_norm = optimizer.clipping.max_grad_norm, 1e9
    gather()
    optimizer.clipping.max_grad_norm = norm


def some_of(change: Callable[[Users, int, list[int]], list[int]]) -> Patch:
    """The records with which a user is in a batch: what `change` makes of all users, of him and of the right ones."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = Users.some_of
        patch.setattr(
            Users, "some_of", lambda self, user, generator: change(self, user, original(self, user, generator))
        )

    return apply


def in_two_batches() -> Callable[[Users, int, list[int]], list[int]]:
    """Half of a user's records in one batch, and the others in the next that he is in."""
    left: dict[int, list[int]] = {}

    def change(users: Users, user: int, records: list[int]) -> list[int]:
        if user not in left:
            left[user] = records[len(records) // 2 :]
            return records[: len(records) // 2] or records
        return left.pop(user)

    return change


def records_drawn(patch: pytest.MonkeyPatch) -> None:
    """A coin for each record, and not for each user."""

    def batches(self: Any) -> Any:
        users, rate = self._loader.users, self._loader.sample_rate
        for _ in range(self._loader.steps):
            drawn = sampling_module.draw(RECORDS, rate, self._generator)
            members: dict[int, list[int]] = {}
            for record in drawn:
                members.setdefault(int(users.of_record[record]), []).append(record)
            self._sizes.append(Grouped([len(records) for records in members.values()]))
            yield [record for records in members.values() for record in records] or [0]

    patch.setattr(sampling_module._Batches, "__iter__", batches)


def record_by_record(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.begin
    patch.setattr(Clipping, "begin", lambda self, examples: original(self, int(examples)))


def longest_record(patch: pytest.MonkeyPatch) -> None:
    """A user is clipped by the norm of his longest record, and not by that of all of them."""

    def changed(measure: Any, gradients: Any, limit: float, groups: Any) -> Any:
        found = measure(gradients, limit)
        norms = torch.stack([part.max() for part in found.norms.split(list(groups))])
        apart = torch.stack([part.any(1) for part in found.apart.split(list(groups), 1)], 1)
        return found._replace(norms=norms, apart=apart)

    patch.setattr(clipping_module, "measured_by_user", changed)


def split_in_parts(patch: pytest.MonkeyPatch) -> None:
    original = sampling_module.part_sizes
    patch.setattr(
        sampling_module,
        "part_sizes",
        lambda examples, most: [Grouped([1] * part) for part in original(int(examples), most)],
    )


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


# ---- adaptive and per-layer clipping, and randomness of the operating system -------------------------------------

ADAPTIVE, PER_LAYER, SECURE = {"clipping": "adaptive"}, {"clipping": "per_layer"}, {"secure": True}


def norm_after_step(change: Callable[[Any], float]) -> Patch:
    """The clipping norm after each step: what `change` makes of the private optimizer."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = ClippedOptimizer.add_noise

        def changed(self: Any) -> None:
            original(self)
            self.followed.norm = self.max_grad_norm = self.clipping.max_grad_norm = change(self)

        patch.setattr(ClippedOptimizer, "add_noise", changed)

    return apply


def released(change: Callable[[float], float]) -> Patch:
    """The noise of the count, in units of its standard deviation: what `change` makes of it."""
    original = FollowedNorm.release
    return lambda patch: patch.setattr(
        FollowedNorm, "release", lambda self, exact, noise: original(self, exact, change(noise))
    )


def of_those_drawn(patch: pytest.MonkeyPatch) -> None:
    """The count is divided by the number of examples that were drawn."""
    original = ClippedOptimizer._release_count

    def changed(self: Any, followed: FollowedNorm) -> None:
        followed.tracking = replace(followed.tracking, batch_size=max(1, len(self.clipping.norms)))
        original(self, followed)

    patch.setattr(ClippedOptimizer, "_release_count", changed)


def counted_twice(patch: pytest.MonkeyPatch) -> None:
    original = Clipping._note

    def changed(self: Any, *args: Any) -> None:
        original(self, *args)
        self.within = 2 * self.within

    patch.setattr(Clipping, "_note", changed)


def moving_part(optimizer: Any, gather: Callable[[], None]) -> None:
    gather()
    optimizer.clipping.max_grad_norm *= 1.5


def layers_divided(change: Callable[[list[Any]], list[Any]]) -> Patch:
    original = Clipping._divided
    return lambda patch: patch.setattr(Clipping, "_divided", lambda self: change(original(self)))


def noisy(change: Callable[[Tensor, float], Tensor]) -> Patch:
    """The noise that is not PyTorch's: what `change` makes of it and its deviation."""
    original = SecureGenerator.noisy
    return lambda patch: patch.setattr(
        SecureGenerator,
        "noisy",
        lambda self, values, deviation: values + change(original(self, 0 * values, deviation), deviation),
    )


def from_torch(which: int) -> Patch:
    """Batches (0) or noise (1) from PyTorch's generators."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = callback_module.generators

        def changed(seed: int | None, **options: Any) -> Any:
            made = list(original(seed, **options))
            made[which] = original(7, **options)[which]
            return sampling_module.Generators(*made)

        patch.setattr(callback_module, "generators", changed)

    return apply


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
    # ---- parts of a batch
    Mutation("noise with every part", gathered(noisy_part), "layers", parts=16),
    Mutation("a part left out", gathered(lambda o, gather: drop(o.clipping.clipped_sum())), "layers", parts=16),
    Mutation("the last part alone", gathered(only_last_part), "layers", parts=16),
    Mutation("parts counted twice", gathered(doubled_part), "17", parts=16),
    Mutation("parts not clipped", gathered(raw_part), "layers", parts=16),
    Mutation("a step with every part", gathered(lambda o, gather: drop(o.step())), "layers", parts=16),
    Mutation("an entry with every part", gathered(lambda o, gather: drop(gather(), o.step_hook(o))), parts=16),
    # ---- a norm that adapts
    Mutation(
        "the count costs the gradient nothing",
        lambda patch: patch.setattr(adaptive_module, "gradient_noise", lambda noise, count: noise),
        settings=ADAPTIVE,
    ),
    Mutation("the count without noise", released(lambda noise: 0.0), "17", settings=ADAPTIVE),
    Mutation("the count with half of its noise", released(lambda noise: noise / 2), "17", settings=ADAPTIVE),
    Mutation("the count with noise that is always the same", released(lambda noise: 1.0), "17", settings=ADAPTIVE),
    Mutation(
        "the count with noise from the global generator",
        lambda patch: patch.setattr(optimizer_module, "standard_normal", lambda generator: float(torch.randn(1))),
        "17",
        settings=ADAPTIVE,
    ),
    Mutation("the share of those that were drawn", of_those_drawn, "17", settings=ADAPTIVE),
    Mutation("examples counted twice", counted_twice, "layers", settings=ADAPTIVE),
    Mutation(
        "the norm follows the exact median",
        norm_after_step(lambda o: float(o.clipping.norms.median())),
        "layers",
        settings=ADAPTIVE,
    ),
    Mutation("the norm grows by itself", norm_after_step(lambda o: 1.01 * o.followed.norm), "17", settings=ADAPTIVE),
    Mutation("the norm moves within a step", gathered(moving_part), "layers", parts=16, settings=ADAPTIVE),
    Mutation("noise x0.9, adaptive", noise(lambda z, std, step: 0.9 * z), settings=ADAPTIVE),
    Mutation("clipping x1.5, adaptive", clipped_to(1.5), "layers", settings=ADAPTIVE),
    # ---- clipping per layer
    Mutation("layers clipped to the whole norm", clipped_to(2**0.5), "layers", settings=PER_LAYER),
    Mutation("a layer that nobody clips", layers_divided(lambda blocks: blocks[:1]), "layers", settings=PER_LAYER),
    Mutation("a layer twice", layers_divided(lambda blocks: [*blocks, blocks[0]]), "layers", settings=PER_LAYER),
    Mutation("norms of layers halved", norms(lambda found: found / 2), "layers", settings=PER_LAYER),
    # ---- randomness of the operating system
    Mutation("noise x0.9, secure", noisy(lambda z, std: 0.9 * z), settings=SECURE),
    Mutation("noise of one of four", noisy(lambda z, std: z / 2), "17", settings=SECURE),
    Mutation("noise of a seed, secure", noisy(lambda z, std: kept(z, std, 0)), "layers", settings=SECURE),
    Mutation("noise from PyTorch, secure", from_torch(1), settings=SECURE),
    Mutation("batches from PyTorch, secure", from_torch(0), "17", settings=SECURE),
    Mutation("rate x2, secure", rate(2), "17", settings=SECURE),
    # ---- users
    Mutation("users clipped record by record", record_by_record, "layers", users=True),
    Mutation("users clipped by their longest record", longest_record, "layers", users=True),
    Mutation("users clipped to 3 times the norm", clipped_to(3), "17", users=True),
    Mutation("users split over two batches", some_of(in_two_batches()), "17", users=True),
    Mutation("users split over parts of a batch", split_in_parts, "layers", parts=5, users=True),
    Mutation("users with all their records", some_of(lambda users, user, _: users.records_of(user)), "17", users=True),
    Mutation("records drawn, and not users", records_drawn, "17", users=True),
    Mutation("one user always in", drawn(lambda batch, users, step: sorted({7, *batch})), "17", users=True),
    Mutation("users at twice the rate", rate(2), "17", users=True),
]
