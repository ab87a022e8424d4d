"""What hooks do to batches: none is changed before it is trained on, and nothing is carried over into the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure.errors import FitError, MixingError
from tests.callbacks.privacy_setups import privacy, same, trainer, weights

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


class Plain(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("queue", torch.zeros(16, 8), persistent=False)
        self.scale, self.noted, self.bank = 1.0, 1.0, None

    def features(self, batch: Any) -> Tensor:
        found: Tensor = self.net[1](self.net[0](batch[0]))
        return found

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.mse_loss(self.net(batch[0]), batch[1])

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(X, X[:, :1].clone()), batch_size=16)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Queue(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features = F.normalize(self.features(batch), dim=1)
        self.keys = features.detach()
        return super().training_step(batch, batch_idx) + torch.logsumexp(features @ self.queue.T / 0.1, 1).mean()

    def on_train_batch_end(self, *others: Any) -> None:
        self.queue.copy_(torch.cat([self.keys, self.queue])[:16])


class HiddenState(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features = self.features(batch)
        self.next = features.detach().mean(0)
        return super().training_step(batch, batch_idx) + (0.0 if self.bank is None else (features @ self.bank).mean())

    def on_train_batch_end(self, *others: Any) -> None:
        self.bank = self.next


class RunningLoss(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.noted = float(loss.detach())
        return loss / self.scale

    def on_after_backward(self) -> None:
        self.scale = 0.9 * self.scale + 0.1 * self.noted


class ScaledBackward(Plain):
    def backward(self, loss: Tensor, *args: Any, **options: Any) -> None:
        (loss * self.scale).backward()
        self.scale = float(loss.detach())


@pytest.mark.parametrize("kind", [Queue, HiddenState, RunningLoss, ScaledBackward])
def test_a_state_that_hooks_carry_over_is_refused(kind: Any, tmp_path: Path) -> None:
    run = trainer(tmp_path, privacy())
    with pytest.raises(MixingError, match=rf"depends on the batch before it: {kind.__name__} carries a state over"):
        run.fit(kind())
    assert run.global_step <= 2


class SquaredBackward(Plain):
    def backward(self, loss: Tensor, *args: Any, **options: Any) -> None:
        (loss * loss.detach()).backward()


def test_a_backward_that_weighs_all_examples_by_their_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=r"SquaredBackward\.backward scales the gradients by the loss"):
        trainer(tmp_path, privacy()).fit(SquaredBackward())


class Standardized(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        batch[0].sub_(batch[0].mean(0))


class Standardize(L.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch[0].data.sub_(batch[0].mean(0))


@pytest.mark.parametrize("where", ["module", "later callback", "earlier callback"])
def test_a_batch_that_is_changed_before_it_is_trained_on(where: str, tmp_path: Path) -> None:
    module: Any = Standardized() if where == "module" else Plain()
    others = {
        "module": [],
        "later callback": [privacy(), Standardize()],
        "earlier callback": [Standardize(), privacy()],
    }
    run = trainer(tmp_path, *(others[where] or [privacy()]))
    with pytest.raises(FitError, match="The batch was changed in an on_train_batch_start"):
        run.fit(module)
    assert run.global_step == 0
    assert "batch_to_device" not in vars(run.strategy)


def test_whoever_changes_it_may_vouch_for_it(tmp_path: Path) -> None:
    for module, others, name in (
        (Standardized(), [], "on_train_batch_start"),
        (Plain(), [Standardize()], "Standardize"),
    ):
        callback = privacy(post_processing=[name])
        trainer(tmp_path, callback, *others).fit(module)
        assert callback.steps == 8


class Teacher(Plain):
    """An average of its own weights, a temperature, and dropout: all of it without the data."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = torch.zeros(8, 6)
        self.drop = nn.Dropout(0.5)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = self.drop(batch[0])
        loss = F.mse_loss(self.net(x), batch[1]) * self.scale
        self.losses.append(float(loss.detach()))
        return loss + (self.features(batch) - (batch[0] @ self.teacher.T).tanh()).square().mean()

    def on_train_batch_end(self, *others: Any) -> None:
        self.teacher.lerp_(self.net[0].weight.detach(), 0.1)
        self.scale *= 0.99


def test_what_hooks_do_without_the_data_goes_on(tmp_path: Path) -> None:
    found = []
    for settings in ({}, {"verify_steps": 0}):
        module, callback = Teacher(), privacy(**settings)
        torch.manual_seed(1)
        trainer(tmp_path, callback, max_epochs=4).fit(module)
        assert callback.steps == 16
        found.append((weights(module), module.teacher, module.losses))
    assert same(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]
