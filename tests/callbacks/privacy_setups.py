"""Tiny language models, their data, and private training runs of them; and the same by hand with Opacus alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from opacus import GradSampleModule
from opacus.layers import DPGRU, DPLSTM
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.modules.transformer import TransformerNetwork
from lightning_exposure.privacy import generators
from lightning_exposure.privacy.steps.poisson import draw

VOCAB, TIME, WIDTH, RECORDS, BATCH = 9, 6, 8, 60, 15
STEPS = RECORDS // BATCH
RATE = 1 / STEPS
DATA = torch.randint(VOCAB, (RECORDS, TIME), generator=torch.Generator().manual_seed(0))
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


class Network(nn.Module):
    """Reads tokens; in the middle is a recurrent layer, or a convolution and a normalization."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(VOCAB, WIDTH)
        if kind == "lstm":
            self.middle: nn.Module = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        elif kind == "gru":
            self.middle = nn.GRU(WIDTH, WIDTH, batch_first=True)
        else:
            self.middle = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
            self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        if self.kind in ("lstm", "gru"):
            hidden = self.middle(hidden)[0]
        else:
            hidden = self.norm(self.middle(hidden.transpose(1, 2)).transpose(1, 2)).tanh()
        logits: Tensor = self.out(hidden)
        return logits


def network(kind: str = "layers", seed: int = 0) -> nn.Module:
    """One of the tiny models, always the same."""
    torch.manual_seed(seed)
    if kind == "transformer":
        return TransformerNetwork(VOCAB, hidden_size=WIDTH, num_layers=1, num_heads=2, max_length=TIME)
    return Network(kind)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def module_class(pl: Any) -> type[Any]:
    """A LightningModule that knows nothing of privacy, on the base of either package."""

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, kind: str = "layers", optimizer: str = "adam", *, seed: int = 0) -> None:
            super().__init__()
            self.net = network(kind, seed)
            self.optimizer = optimizer
            self.seen: list[int] = []

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.seen.append(len(batch[0]))
            loss = loss_of(self.net, batch[0])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.log("val_loss", loss_of(self.net, batch[0]))

        def configure_optimizers(self) -> Any:
            return OPTIMIZERS[self.optimizer](self.parameters())

    return Module


Module = module_class(L)


class Data(L.LightningDataModule):
    """The data as a user gives it."""

    def __init__(self, records: int = RECORDS, batch_size: int = BATCH, **options: Any) -> None:
        super().__init__()
        self.records, self.batch_size, self.options = records, batch_size, options

    def train_dataloader(self) -> Any:
        data = DATA.repeat(-(-self.records // RECORDS), 1)[: self.records]
        return DataLoader(TensorDataset(data), batch_size=self.batch_size, shuffle=True, **self.options)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(DATA[:20]), batch_size=10)


def privacy(**settings: Any) -> DifferentialPrivacy:
    """The callback, with the quick accountant."""
    defaults: dict[str, Any] = {"max_grad_norm": 0.5, "delta": 1e-5, "accountant": "rdp", "seed": 3}
    if "target_epsilon" not in settings:
        defaults["noise_multiplier"] = 0.7
    return DifferentialPrivacy(**(defaults | settings))


def trainer(folder: Path, *callbacks: Any, package: Any = L, **options: Any) -> Any:
    """A quiet trainer."""
    defaults: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
    }
    return package.Trainer(callbacks=list(callbacks), **(defaults | options))


def averaging_callback(kind: str = "WeightAveraging") -> type[Any]:
    """One of Lightning's callbacks that average weights; the test is skipped where Lightning is too old for it."""
    if not hasattr(L.pytorch.callbacks, kind):
        pytest.skip(f"this Lightning has no {kind}")
    found: type[Any] = getattr(L.pytorch.callbacks, kind)
    return found


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def by_hand(
    model: nn.Module, optimizer: str, *, seed: int = 3, epochs: int = 2, noise: float = 0.7, norm: float = 0.5
) -> dict[str, Tensor]:
    """Train with Opacus alone: its layers, its per-example gradients, its optimizer. Returns the weights."""
    raw, parameters = as_opacus_has_it(model)
    wrapped = GradSampleModule(raw)
    private = DPOptimizer(
        OPTIMIZERS[optimizer](list(parameters.values())),
        noise_multiplier=noise,
        max_grad_norm=norm,
        expected_batch_size=RECORDS * RATE,
    )
    for epoch in range(epochs):
        randomness = generators(seed, steps=epoch * STEPS)
        private.generator = randomness.noise
        for _ in range(STEPS):
            private.zero_grad()
            loss_of(wrapped, DATA[draw(RECORDS, RATE, randomness.sampling)]).backward()
            private.step()
    return {name: value.detach() for name, value in parameters.items()}


def as_opacus_has_it(model: nn.Module) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A copy with Opacus' recurrent layers; and its parameters by the names, and in the order, of the original."""
    raw = copy.deepcopy(model)
    middle = getattr(raw, "middle", None)
    if isinstance(middle, nn.LSTM | nn.GRU):
        kind = DPLSTM if isinstance(middle, nn.LSTM) else DPGRU
        raw.middle = kind(WIDTH, WIDTH, num_layers=middle.num_layers, batch_first=True)
        raw.middle.load_state_dict(middle.state_dict())
    return raw, {name: attrgetter(name)(raw) for name, _ in model.named_parameters()}
