"""`max_physical_batch_size`: a Poisson batch that memory does not hold is one private step, whatever its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.data import CanaryDataModule
from lightning_exposure.errors import ArgumentError, FitError
from lightning_exposure.privacy import PoissonLoader
from lightning_exposure.privacy.steps.optimizer import ClippedOptimizer
from lightning_exposure.privacy.steps.proof.mixing import MixingProbe
from tests.callbacks.privacy_setups import DATA, STEPS, TIME, Data, Module, privacy, same, trainer, weights


def trained(folder: Path, limit: int | None, module: Any = None, *callbacks: Any, **options: Any) -> Any:
    """A run in parts of at most `limit`. Returns the module, the callback and the Trainer."""
    settings, data = options.pop("settings", {}), options.pop("data", None) or Data()
    module = Module("layers", "sgd") if module is None else module
    callback = privacy(max_physical_batch_size=limit, **settings)
    run = trainer(folder, callback, *callbacks, **options)
    run.fit(module, data)
    return module, callback, run


def assert_close(one: Any, other: Any, close: float = 2e-6) -> None:
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(other)[name], value, rtol=close, atol=close)


# ---- the same step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize(
    ("kind", "precision"), [("lstm", "32-true"), ("transformer", "64-true"), ("layers", "32-true")]
)
def test_the_weights_are_those_of_whole_batches_to_rounding(
    kind: str, precision: Any, limit: int, tmp_path: Path
) -> None:
    whole, plain, run = trained(tmp_path, None, Module(kind, "sgd"), precision=precision)
    parts, callback, other = trained(tmp_path, limit, Module(kind, "sgd"), precision=precision)
    assert_close(whole, parts, 1e-12 if precision == "64-true" else 2e-6)
    for name, value in weights(whole).items():
        assert not torch.allclose(value, weights(Module(kind))[name].to(value), atol=1e-3)
    assert callback.history == plain.history == [(0.7, 1 / STEPS, 2 * STEPS)]
    assert other.global_step == run.global_step == 2 * STEPS
    assert max(parts.seen) <= limit
    assert sum(parts.seen) == sum(whole.seen)


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"loss_reduction": "sum"}},
        {"settings": {"verify_steps": 0}},
        {"max_steps": 5, "max_epochs": -1},
        {"limit_train_batches": 3},
        {"val_check_interval": 2},
        {"settings": {"max_epsilon": 9.0}},
        {"settings": {"target_epsilon": 5.0}},
        {"data": Data(num_workers=2)},
        {"data": Data(3, 1), "max_epochs": 4},  # most draws are empty
    ],
    ids=lambda options: ", ".join([*options, *options.get("settings", {})]),
)
def test_whatever_the_settings(options: dict[str, Any], tmp_path: Path) -> None:
    (whole, plain, run), (parts, callback, other) = (
        trained(tmp_path, limit, Summed() if "loss_reduction" in str(options) else Scheduled(), **dict(options))
        for limit in (None, 2)
    )
    assert_close(whole, parts)
    assert plain.steps == callback.steps == run.global_step == other.global_step > 0
    assert plain.epsilon == callback.epsilon
    assert whole.rates == parts.rates
    assert float(run.callback_metrics["train_loss"]) == pytest.approx(float(other.callback_metrics["train_loss"]))


class Scheduled(Module):  # type: ignore[misc, valid-type]
    """Its learning rate falls with every step."""

    def __init__(self) -> None:
        super().__init__("layers", "sgd")
        self.rates: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Summed(Scheduled):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        return loss * len(batch[0])


def test_a_batch_is_one_step_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One noise, and one call of the hooks around a step; those around a backward pass come with every part."""
    noises: list[int] = []
    original = ClippedOptimizer.add_noise
    monkeypatch.setattr(ClippedOptimizer, "add_noise", lambda self: (noises.append(1), original(self))[1])
    calls = dict.fromkeys(("on_train_batch_start", "on_before_zero_grad", "on_before_optimizer_step"), 0)
    passes: list[int] = []

    class Counting(L.Callback):
        def on_after_backward(self, *args: Any) -> None:
            passes.append(1)

    def count(name: str) -> Any:
        def hook(*args: Any) -> None:
            calls[name] += 1

        return hook

    hooks = Counting()
    for name in calls:
        setattr(hooks, name, count(name))
    module, callback, run = trained(tmp_path, 4, None, hooks)
    assert len(noises) == callback.steps == run.global_step == 2 * STEPS
    assert set(calls.values()) == {2 * STEPS}
    assert len(passes) == len(module.seen) > 3 * 2 * STEPS


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_a_seed_repeats_a_run_and_so_does_resuming_it(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    options = {"max_epochs": 3, "enable_checkpointing": True}
    first = trained(tmp_path, 4, None, saving, **options)[0]
    again, other = trained(tmp_path, 4, max_epochs=3)[0], trained(tmp_path, 4, max_epochs=3, settings={"seed": 4})[0]
    assert same(weights(first), weights(again))
    assert not same(weights(first), weights(other))
    resumed, callback = Module("layers", "sgd"), privacy(max_physical_batch_size=4)
    trainer(tmp_path, callback, max_epochs=3).fit(resumed, Data(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(weights(first), weights(resumed))
    assert callback.steps == 3 * STEPS


# ---- what a module sees, counts and logs -------------------------------------------------------------------------


class Telling(Module):  # type: ignore[misc, valid-type]
    """Logs in many ways, counts in many ways, and changes its batches on the way."""

    largest = 0

    def __init__(self) -> None:
        super().__init__("layers", "sgd")
        self.register_buffer("steps", torch.tensor(0))
        self.calls = 0
        self.mean = MeanMetric()

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        return [(batch[0] + 1) % 9]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        Telling.largest = max(Telling.largest, len(batch[0]))  # also in copies, and in what leaves no trace
        self.calls += 1
        self.steps += 1
        loss: Tensor = super().training_step(batch, batch_idx)
        self.log("both", loss, on_step=True, on_epoch=True)
        self.log("last", loss, on_step=True, on_epoch=True, batch_size=2 * len(batch[0]))
        self.log("sum", float(len(batch[0])), on_step=True, on_epoch=True, reduce_fx="sum")
        self.log("max", float(batch[0].sum(1).max()), reduce_fx="max")
        self.log("min", float(batch[0].sum(1).min()), reduce_fx="min")
        self.mean.update(loss, len(batch[0]))
        self.log("metric", self.mean, on_step=False, on_epoch=True)
        return loss

    def on_before_backward(self, loss: Tensor) -> None:
        self.log("before", 1.0)  # another hook that logs: Lightning clears what the first has logged in an epoch


class Watching(L.Callback):
    """Keeps what was logged after every step, and which loss came out."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.found.append(logged | {"outputs": float(outputs["loss"])})


@pytest.mark.filterwarnings("ignore:You have overridden `on_after_batch_transfer`")
def test_what_is_logged_is_that_of_the_whole_batch(tmp_path: Path) -> None:
    whole, parts = Watching(), Watching()
    first = trained(tmp_path, None, Telling(), whole)[2]
    Telling.largest = 0
    second = trained(tmp_path, 4, Telling(), parts)[2]
    assert Telling.largest <= 4
    assert len(parts.found) == 2 * STEPS
    for expected, found in zip(whole.found, parts.found, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    at_the_end = {name: float(value) for name, value in first.callback_metrics.items()}
    assert {"both_epoch", "both_step", "sum_epoch", "metric", "last_epoch"} <= set(at_the_end)
    assert {name: float(value) for name, value in second.callback_metrics.items()} == pytest.approx(at_the_end, 1e-5)


class Summing(Module):  # type: ignore[misc, valid-type]
    """Its loss is the sum over the examples; logs that in several ways, and means beside it."""

    def __init__(self) -> None:
        super().__init__("layers", "adam")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (tokens,) = batch
        each = cross_entropy(self.net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
        loss = each.sum()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("number", loss.item(), batch_size=3 * len(tokens), on_step=False, on_epoch=True)
        self.log("now", loss, prog_bar=True)
        self.log("mean", loss / len(tokens), on_step=True, on_epoch=True)
        self.log("share", (tokens > 4).float().mean(), on_step=True, on_epoch=True)
        self.log("total", loss, reduce_fx="sum", on_step=True, on_epoch=True)
        self.log("largest", each.max(), reduce_fx="max", on_step=True, on_epoch=True)
        return loss


def test_a_loss_that_is_a_sum_is_added_up_where_it_is_logged_and_means_stay_means(tmp_path: Path, capsys: Any) -> None:
    summed, whole, parts = {"loss_reduction": "sum"}, Watching(), Watching()
    first = trained(tmp_path, None, Summing(), whole, settings=summed)[2]
    assert "added up over the parts of a batch" not in capsys.readouterr().err
    second = trained(tmp_path, 4, Summing(), parts, settings=summed)[2]
    assert "log another sum divided by the number of examples" in capsys.readouterr().err
    assert len(parts.found) == 2 * STEPS
    for expected, found in zip(whole.found, parts.found, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    at_the_end = {name: float(value) for name, value in first.callback_metrics.items()}
    assert {"loss_epoch", "loss_step", "number", "now", "mean_epoch", "share_epoch", "total_epoch"} <= set(at_the_end)
    assert {name: float(value) for name, value in second.callback_metrics.items()} == pytest.approx(at_the_end, 1e-4)


@pytest.mark.filterwarnings("ignore:You have overridden `on_after_batch_transfer`")
def test_what_a_module_counts_says_nothing_of_the_number_of_parts(tmp_path: Path) -> None:
    """It would say how many records were drawn, without noise, and be saved beside the weights."""
    module = trained(tmp_path, 2, Telling())[0]
    assert module.calls == int(module.steps) == 2 * STEPS
    assert len(module.seen) > 4 * 2 * STEPS  # lists are not put back


def test_every_part_begins_with_what_the_first_one_did(tmp_path: Path) -> None:
    """Else the gradient of an example would depend on how many others were drawn before it."""

    class Fading(Module):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__("layers", "sgd")
            self.calls = 0

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.calls += 1
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss / self.calls

    whole, parts = (trained(tmp_path, limit, Fading(), settings={"noise_multiplier": 0.0})[0] for limit in (None, 2))
    assert_close(whole, parts)


def test_half_precision(tmp_path: Path) -> None:
    whole, parts = (trained(tmp_path, limit, precision="bf16-mixed")[0] for limit in (None, 4))
    assert_close(whole, parts, 2e-2)


def test_parts_beside_the_first_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    original = MixingProbe.check

    def check(self: Any, batch: Any, examples: int, **options: Any) -> Any:
        assert examples == len(batch[0])
        seen.append(batch[0].numpy().tobytes())
        return original(self, batch, examples, **options)

    monkeypatch.setattr(MixingProbe, "check", check)
    firsts: list[bytes] = []

    class First(L.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            firsts.append(batch[0].numpy().tobytes())

    trained(tmp_path, 5, None, First(), max_epochs=6)
    assert seen[0] in firsts
    assert set(seen) - set(firsts)


# ---- data --------------------------------------------------------------------------------------------------------


def test_a_loader_of_the_users_own_is_whole_again_afterwards(tmp_path: Path) -> None:
    loader = PoissonLoader(Data().train_dataloader())
    module, callback, _ = trained(tmp_path, 3, data=loader)
    assert callback.steps == 2 * STEPS
    assert max(module.seen) <= 3
    assert max(len(batch[0]) for batch in loader) > 3


def test_parts_are_read_when_they_are_needed() -> None:
    read: list[int] = []

    class Noting(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    loader = PoissonLoader(DataLoader(Noting(DATA), batch_size=30))
    loader.divide(10)
    passing = iter(loader)
    first = next(passing)
    size, rest, draw = loader.sizes[0], loader.rests[0], loader.draws[0]
    assert len(first[0]) == rest.sizes[0] == len(read) <= 10 < size
    second, examples = next(iter(rest))
    assert len(second[0]) == examples == rest.sizes[1]
    next(passing)  # whoever goes on before the batch is done loses nothing
    others = [first[0], second[0], *(part[0] for part, _ in rest)]
    assert torch.equal(torch.cat(others), DATA[draw.records])
    assert len(draw.records) == size == sum(rest.sizes)


def test_canaries_are_counted_once_whatever_the_parts(tmp_path: Path) -> None:
    canaries = CanarySet.draw(SecretFormat("#####?"), repetitions=[1, 12], seed=0)

    def encode(text: str) -> Any:
        return (torch.tensor([8, *(ord(letter) % 8 for letter in text[1:TIME])]),)  # no other record begins with 8

    class Counting(Module):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__("layers", "sgd")
            self.read: list[int] = []
            self.told: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.read.append(int((batch[0][:, 0] == 8).sum()))
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss

        def on_train_batch_end(self, *args: Any) -> None:
            state = self.trainer.datamodule.state_dict()  # as in a checkpoint that is written now
            epochs = state["lightning_exposure.ledger"].values()
            self.told.append(sum(count for counts in epochs for count in counts.values()) - sum(self.read))

    data = CanaryDataModule(DataLoader(TensorDataset(DATA % 8), batch_size=15), canaries, encode)
    module = trained(tmp_path, 3, Counting(), data=data)[0]
    assert sum(data.ledger.total.values()) == sum(module.read) > 5
    assert set(module.told) == {0}


# ---- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, -1, 2.5, True, "4"])
def test_a_limit_that_is_none(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"max_physical_batch_size is .*; expected an integer"):
        privacy(max_physical_batch_size=given)


def test_accumulated_batches_say_what_to_use_instead(tmp_path: Path) -> None:
    with pytest.raises(
        FitError, match=r"accumulate_grad_batches=4\).* use DifferentialPrivacy\(max_physical_batch_size"
    ):
        trained(tmp_path, None, accumulate_grad_batches=4)


def test_steps_of_the_modules_own(tmp_path: Path) -> None:
    module = Module("layers", "sgd")
    module.automatic_optimization = False
    with pytest.raises(FitError, match="max_physical_batch_size is 4: with automatic_optimization=False"):
        trained(tmp_path, 4, module)


def test_a_closure_is_called_once(tmp_path: Path) -> None:
    class Twice(Module):  # type: ignore[misc, valid-type]
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer_closure()
            optimizer.step(closure=optimizer_closure)

    with pytest.raises(FitError, match=r"called twice, .* with max_physical_batch_size it trains on all parts"):
        trained(tmp_path, 4, Twice())
