"""Examples that mix are refused by name, whatever mixes them; and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_exposure.errors import MixingError
from tests.callbacks.healthy_models import BATCHES, HEALTHY, FixedNoise, FreshNoise, UnseenNoise, stacked, unpacked
from tests.callbacks.mixing_models import MIXING, Base, Data, MeanSubtracted
from tests.callbacks.privacy_setups import privacy, same, trainer, weights


@pytest.mark.parametrize(("module", "message"), MIXING.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_examples_that_mix_are_refused_by_name(module: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=message):
        trainer(tmp_path, privacy(noise_multiplier=1.0)).fit(module(), Data())


def test_nothing_was_trained_on_examples_that_mix(tmp_path: Path) -> None:
    module, run = MeanSubtracted(), trainer(tmp_path, privacy())
    before = weights(module)
    with pytest.raises(MixingError):
        run.fit(module, Data())
    assert run.global_step == 0
    assert same(before, weights(module))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("module", HEALTHY)
def test_healthy_modules_train_whatever_they_draw_and_remember(
    module: Any, precision: Any, tmp_path: Path, capsys: Any
) -> None:
    callback = privacy(verify_steps=100)
    trainer(tmp_path, callback, max_epochs=5, precision=precision).fit(module(), Data())
    assert callback.steps == 20
    # All of it was looked at, but for noise that is always the same and other noise in other shapes.
    assert ("could not be seen" in capsys.readouterr().err) == (module is FixedNoise)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_mixing_is_seen_in_any_precision(precision: Any, tmp_path: Path) -> None:
    class Doubled(MeanSubtracted):
        def hidden(self, x: Tensor) -> Tensor:
            return super().hidden(x.to(self.body.weight.dtype))

    with pytest.raises(MixingError):
        trainer(tmp_path, privacy(), precision=precision).fit(Doubled(), Data())


def test_a_sum_is_fine_if_it_was_said_to_be_one(tmp_path: Path) -> None:
    from tests.callbacks.mixing_models import Sums

    trainer(tmp_path, privacy(loss_reduction="sum")).fit(Sums(), Data())
    with pytest.raises(
        MixingError, match=r"loss_reduction is 'sum', but the loss is the mean .* Use loss_reduction='mean'"
    ):
        trainer(tmp_path, privacy(loss_reduction="sum")).fit(Base(), Data())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_that_are_made_of_rounding_are_no_alarm(
    layers: int, precision: Any, tmp_path: Path, capsys: Any
) -> None:
    """The labels are what the model says already: what is left of the loss is another one in every shape."""

    class Fitted(Base):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(128, 32), nn.Linear(32 if layers == 2 else 128, 1)
            self.body.requires_grad_(layers == 2)

        def output(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).tanh() if layers == 2 else x)

        def loss(self, batch: Any) -> Tensor:
            return (self.output(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=1e-12)

    module = Fitted()
    x = 10 * torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision != "32-true"):
        y = module.output(x).float()
    data = Data(torch.utils.data.TensorDataset(x, y))
    callback = privacy(verify_steps=100, max_grad_norm=1.0)
    trainer(tmp_path, callback, max_epochs=5, precision=precision).fit(module, data)
    assert callback.steps == 40
    assert "could not be seen" not in capsys.readouterr().err


# ---- batches of all kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_any_kind_are_looked_at(kind: str, tmp_path: Path, capsys: Any) -> None:
    class Healthy(Base):
        def loss(self, batch: Any) -> Tensor:
            return super().loss(unpacked(batch))

    class Mixing(MeanSubtracted):
        def loss(self, batch: Any) -> Tensor:
            return super().loss(unpacked(batch))

    data = Data(collate_fn=BATCHES[kind])
    trainer(tmp_path, privacy()).fit(Healthy(), data)
    assert "could not be seen" not in capsys.readouterr().err
    with pytest.raises(MixingError):
        trainer(tmp_path, privacy()).fit(Mixing(), data)


class Hides:
    """A batch into which nobody can look."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def to(self, *args: Any, **options: Any) -> Hides:
        return self


def test_a_batch_without_examples_is_said_to_be_one(tmp_path: Path, capsys: Any) -> None:
    class Opens(Base):
        def loss(self, batch: Any) -> Tensor:
            return super().loss(dict(zip("xy", batch.held, strict=True)))

    trainer(tmp_path, privacy(verbose=False)).fit(Opens(), Data(collate_fn=lambda items: Hides(stacked(items))))
    assert "no examples were found in the batch (Hides)" in capsys.readouterr().err


@pytest.mark.parametrize("module", [UnseenNoise, FreshNoise])
def test_noise_that_cannot_be_had_again_is_said_to_be_so(module: Any, tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path, privacy(verify_steps=100), max_epochs=5).fit(module(), Data())
    assert "random numbers that are not the same when a batch is run again" in capsys.readouterr().err


def test_a_step_that_needs_what_a_hook_has_set_is_looked_at_after_it(tmp_path: Path) -> None:
    class Prepares(MeanSubtracted):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.factor = 2.0

        def loss(self, batch: Any) -> Tensor:
            return super().loss(batch) * self.factor

    with pytest.raises(MixingError, match="before 'head' is called"):
        trainer(tmp_path, privacy()).fit(Prepares(), Data())


HOOKS_BEFORE = ["on_train_batch_start", "on_before_batch_transfer", "on_after_batch_transfer"]


def keeping(hook: str, kept: Callable[[Tensor], Tensor]) -> Base:
    """A module whose hook keeps something of the batch, which its step then takes off."""

    def keep(self: Any, batch: Any, batch_idx: int) -> Any:
        self.kept = kept(batch["x"])
        return None if hook == "on_train_batch_start" else batch

    class Keeps(Base):
        def loss(self, batch: Any) -> Tensor:
            return super().loss({**batch, "x": batch["x"] - self.kept})

    setattr(Keeps, hook, keep)
    return Keeps()


@pytest.mark.filterwarnings("ignore:You have overridden:UserWarning")
@pytest.mark.parametrize("hook", HOOKS_BEFORE)
def test_what_a_hook_keeps_of_the_batch_is_seen(hook: str, tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=r"depends on the other examples of its batch|before 'body' is called"):
        trainer(tmp_path, privacy()).fit(keeping(hook, lambda x: x.mean(0)), Data())


@pytest.mark.filterwarnings("ignore:You have overridden:UserWarning")
@pytest.mark.parametrize("hook", HOOKS_BEFORE)
def test_what_a_hook_keeps_of_each_example_is_fine(hook: str, tmp_path: Path) -> None:
    callback, module = privacy(verify_steps=100), keeping(hook, lambda x: x.mean(1, keepdim=True))
    trainer(tmp_path, callback, max_epochs=2).fit(module, Data())
    assert callback.steps == 8


def test_a_step_that_takes_whole_batches_only_is_looked_at_in_whole(tmp_path: Path, capsys: Any) -> None:
    class Whole(Base):
        def loss(self, batch: Any) -> Tensor:
            assert len(batch["x"]) > 5
            return super().loss(batch)

    class WholeAndMixing(Whole, MeanSubtracted):
        pass

    trainer(tmp_path, privacy(seed=3)).fit(Whole(), Data())
    assert "cannot be run on a part of its batch" in capsys.readouterr().err
    with pytest.raises(MixingError):
        trainer(tmp_path, privacy(seed=3)).fit(WholeAndMixing(), Data())


# ---- collating ---------------------------------------------------------------------------------------


def mixup(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    part = np.random.beta(1.0, 1.0)
    return {"x": part * x + (1 - part) * x[torch.randperm(len(x))], "y": y}


def centred(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    return {"x": x - x.mean(0), "y": y}


def cutmix(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    x[:, :3] = x.roll(1, 0)[:, :3]
    return {"x": x, "y": y}


@pytest.mark.parametrize("collate", [mixup, centred, cutmix])
def test_records_that_are_mixed_when_a_batch_is_made_are_refused(collate: Any, tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=r"collate_fn, or a hook .* mixes them, as Mixup and CutMix do"):
        trainer(tmp_path, privacy()).fit(Base(), Data(collate_fn=collate))


def test_records_that_are_mixed_by_a_hook_are_refused(tmp_path: Path) -> None:
    class Hooked(Data):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return {**batch, "x": batch["x"] + batch["x"].roll(1, 0)}

    with pytest.raises(MixingError, match=r"on_after_batch_transfer\), mixes them"):
        trainer(tmp_path, privacy()).fit(Base(), Hooked())


def augmented(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    return {"x": x + 0.1 * torch.randn_like(x), "y": y}


def one_by_one(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    return {"x": torch.stack([row * random.uniform(0.9, 1.1) for row in x]), "y": y}


def ordered(items: Any) -> dict[str, Tensor]:
    x, y = stacked(sorted(items, key=lambda item: float(item["x"][0])))
    return {"x": x, "y": y}


def shuffled(items: Any) -> dict[str, Tensor]:
    x, y = stacked(items)
    order = torch.randperm(len(x))
    return {"x": x[order], "y": y[order]}


@pytest.mark.parametrize("collate", [augmented, one_by_one, ordered, shuffled])
def test_records_that_are_changed_one_by_one_are_not(collate: Any, tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path, privacy()).fit(Base(), Data(collate_fn=collate))
    assert "could not be" not in capsys.readouterr().err


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_no_mixing(left: bool, tmp_path: Path) -> None:
    from tests.callbacks.healthy_models import PerExampleTokenMean
    from tests.callbacks.mixing_models import PAD

    def padded(items: Any) -> dict[str, Tensor]:
        rows = [item["tokens"][: int((item["labels"] != PAD).sum())] for item in items]
        longest = max(map(len, rows))
        pads = [(longest - len(row), 0) if left else (0, longest - len(row)) for row in rows]
        pad = nn.functional.pad
        return {
            "tokens": torch.stack([pad(row, sides) for row, sides in zip(rows, pads, strict=True)]),
            "labels": torch.stack([pad(row, sides, value=PAD) for row, sides in zip(rows, pads, strict=True)]),
        }

    trainer(tmp_path, privacy()).fit(PerExampleTokenMean(), Data(collate_fn=padded))


# ---- no trace ---------------------------------------------------------------------------------------


class Remembers(Base):
    """Everything that a module can count with."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.drop = nn.Dropout(0.3)
        self.calls, self.sizes, self.by_name = 0, [], {"seen": set()}

    def loss(self, batch: Any) -> Tensor:
        logits = self.head(self.drop(self.hidden(batch["x"])))
        self.accuracy(logits, batch["y"])
        self.log("accuracy", self.accuracy, on_epoch=True, on_step=False)
        self.logger.experiment.log_metrics({"by_hand": self.calls}, step=self.calls)
        self.calls += 1
        self.sizes.append(len(logits))
        self.by_name["seen"].add(self.calls)
        return nn.functional.cross_entropy(logits, batch["y"]) * random.uniform(1, 2) * np.random.uniform(1, 2)


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    found = []
    for verify in (100, 0):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        module, callback = Remembers(), privacy(verify_steps=verify)
        logger = CSVLogger(tmp_path, name=str(verify))
        run = trainer(tmp_path, callback, max_epochs=4, logger=logger)
        torch.manual_seed(7)
        run.fit(module, Data())
        states = (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
        logged = Path(logger.log_dir, "metrics.csv").read_text()
        found.append((weights(module), states, logged, module.calls, module.sizes, module.by_name))
    assert same(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    assert found[0][3] == 16
