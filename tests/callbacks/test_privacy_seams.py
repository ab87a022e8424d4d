"""Between two private steps nothing moves the weights; unless it is post-processing, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from torch import nn

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.errors import ArgumentError, FitError
from tests.callbacks.privacy_setups import STEPS, Data, Module, averaging_callback, privacy, same, trainer, weights
from tests.callbacks.test_privacy import SWA_WARNING

LATE = STEPS  # after the steps that are proven one by one


def move(module: Any) -> None:
    """By one unit in the last place, and so that PyTorch does not count it."""
    value = module.net.out.bias.data
    value.copy_(torch.nextafter(value, value + 1))


HOOKS = [
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_end",
]


def callback_with(hook: str, act: Any = move, name: str = "Meddler") -> Any:
    """A callback that acts once, late, in one hook."""

    def meddle(self: Any, trainer: Any, pl_module: Any, *others: Any) -> None:
        if trainer.global_step >= LATE and not getattr(self, "done", False):
            self.done = True
            act(pl_module)

    return type(name, (L.Callback,), {hook: meddle})()


def module_with(hook: str, act: Any = move) -> Any:
    """A module that acts once, late, in one of its own hooks."""

    def meddle(self: Any, *args: Any, **options: Any) -> Any:
        if self.trainer.global_step >= LATE and not getattr(self, "done", False):
            self.done = True
            act(self)
        return getattr(super(kind, self), hook)(*args, **options)

    kind: Any = type("Meddling", (Module,), {hook: meddle})
    return kind()


MOVED = "weights moved otherwise than a private step moves them: net.out.bias"


@pytest.mark.parametrize(
    ("hook", "first"), [*((hook, False) for hook in HOOKS), *((hook, True) for hook in HOOKS if "batch" in hook)]
)
def test_a_callback_that_moves_weights_late_is_seen_wherever_it_does(hook: str, first: bool, tmp_path: Path) -> None:
    meddler, callback = callback_with(hook), privacy()
    with pytest.raises(FitError, match=MOVED):
        trainer(tmp_path, *([meddler, callback] if first else [callback, meddler])).fit(Module(), Data())
    assert meddler.done


@pytest.mark.parametrize("hook", [*HOOKS, "optimizer_zero_grad", "lr_scheduler_step", "training_step"])
def test_a_module_that_moves_its_weights_is_seen(hook: str, tmp_path: Path) -> None:
    class Scheduled:
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)  # type: ignore[attr-defined]
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = module_with(hook)
    module.configure_optimizers = Scheduled.configure_optimizers.__get__(module)
    with pytest.raises(FitError, match=MOVED):
        trainer(tmp_path, privacy()).fit(module, Data())
    assert module.done


def test_weights_that_are_moved_after_every_batch_are_seen_before_the_next_step(tmp_path: Path) -> None:
    class Moves(Module):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                self.net.out.weight += 1e-6 * outputs["loss"]

    run = trainer(tmp_path, privacy())
    with pytest.raises(FitError, match=r"net.out.weight moved between two batches\..*\(post_processing=\["):
        run.fit(Moves(), Data())
    assert run.global_step == 1


def test_a_frozen_weight_is_a_weight(tmp_path: Path) -> None:
    class Frozen(Module):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(2, 2).requires_grad_(False)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.frozen.weight.data[0, 0] = outputs["loss"]

    with pytest.raises(FitError, match=r"moves them: frozen\.weight"):
        trainer(tmp_path, privacy()).fit(Frozen(), Data())


def test_a_weight_that_is_exchanged(tmp_path: Path) -> None:
    def exchange(module: Any) -> None:
        module.net.embed.weight.data = module.net.embed.weight.data + 1e-3

    with pytest.raises(FitError, match=r"moves them: net\.embed\.weight"):
        trainer(tmp_path, privacy(), callback_with("on_train_batch_end", exchange)).fit(Module(), Data())


@pytest.mark.parametrize("counted", [True, False])
def test_what_the_optimizer_remembers(counted: bool, tmp_path: Path) -> None:
    def push(module: Any) -> None:
        (state, *_) = module.trainer.optimizers[0].state.values()
        (state["exp_avg"] if counted else state["exp_avg"].data).view(-1)[0] = 7.0

    with pytest.raises(FitError, match=r"What the optimizer remembers moved .*: exp_avg of net.embed.weight"):
        trainer(tmp_path, privacy(), callback_with("on_train_batch_end", push)).fit(Module(optimizer="adam"), Data())


class Follower(L.Callback):
    """A learning rate that follows the training loss."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *others: Any) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.01 * float(outputs["loss"])


class FollowsInside(Module):  # type: ignore[misc, valid-type]
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.trainer.optimizers[0].param_groups[0]["lr"] = 0.01 * float(loss.detach())
        return loss


def test_a_learning_rate_that_follows_the_loss(tmp_path: Path) -> None:
    refused = r"settings of the optimizer, such as its learning rate, were changed by something else"
    with pytest.raises(FitError, match=refused):
        trainer(tmp_path, privacy(), Follower()).fit(Module(), Data())
    with pytest.raises(FitError, match=refused):
        trainer(tmp_path, privacy()).fit(FollowsInside(), Data())
    # A warm-up in a callback looks the same from outside; whoever knows better says so.
    callback = privacy(post_processing=["Follower"])
    trainer(tmp_path, callback, Follower()).fit(Module(), Data())
    assert callback.steps == 2 * STEPS


def test_hooks_of_the_optimizer_are_no_way_around(tmp_path: Path) -> None:
    class Hooked(Module):  # type: ignore[misc, valid-type]
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            optimizer.register_step_post_hook(lambda *others: self.trainer.global_step >= LATE and move(self))
            return optimizer

    with pytest.raises(FitError, match=MOVED):
        trainer(tmp_path, privacy(), max_epochs=3).fit(Hooked(), Data())


def test_moved_weights_are_not_saved(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", every_n_train_steps=1)
    run = trainer(tmp_path, privacy(), module_callback(), saving, enable_checkpointing=True)
    with pytest.raises(FitError, match=MOVED):
        run.fit(Module(), Data())
    assert not (tmp_path / f"step={LATE}.ckpt").exists()
    assert (tmp_path / f"step={LATE - 1}.ckpt").exists()


def module_callback() -> Any:
    return callback_with("on_train_batch_end")


# ---- what is exempted -----------------------------------------------------------------------------------------


class MaxNorm(L.Callback):
    """Keeps the rows of a weight short; looks at nothing else."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        with torch.no_grad():
            pl_module.net.out.weight.copy_(torch.renorm(pl_module.net.out.weight, 2, 0, 0.1))


class KeepsShort(Module):  # type: ignore[misc, valid-type]
    def on_train_batch_end(self, *others: Any) -> None:
        MaxNorm().on_train_batch_end(self.trainer, self)


class KeepsShortInside(Module):  # type: ignore[misc, valid-type]
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        optimizer.step(closure=closure)
        MaxNorm().on_train_batch_end(self.trainer, self)


@pytest.mark.parametrize(
    ("make", "others", "name"),
    [
        (Module, [MaxNorm], "MaxNorm"),
        (Module, [MaxNorm], "MaxNorm.on_train_batch_end"),
        (KeepsShort, [], "on_train_batch_end"),
        (KeepsShortInside, [], "optimizer_step"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_post_processing_is_allowed_by_name_and_told(
    make: Any, others: list[Any], name: str, first: bool, tmp_path: Path, capsys: Any
) -> None:
    made = [kind() for kind in others]
    with pytest.raises(FitError, match=r"moves them: net\.out\.weight"):
        trainer(tmp_path, *([privacy(), *made] if first else [*made, privacy()])).fit(make(), Data())
    callback, module = privacy(post_processing=[name]), make()
    run = trainer(tmp_path, *([callback, *made] if first else [*made, callback]))
    run.fit(module, Data())
    assert callback.steps == 2 * STEPS
    assert module.net.out.weight.norm(dim=1).max() <= 0.1 + 1e-6
    assert f"no training data are behind what {name} changes (post_processing)" in capsys.readouterr().err
    assert float(run.callback_metrics["privacy/exemptions"]) == 1
    assert callback.state_dict()["post_processing"] == [name]
    assert not {"on_train_batch_end", "optimizer_step", "lr_scheduler_step", "on_save_checkpoint"} & {*vars(module)}
    assert not any(name.startswith("on_") for other in made for name in vars(other))


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "on_validation_end"])
def test_an_exemption_is_for_the_one_that_is_named(hook: str, tmp_path: Path) -> None:
    for order in ([privacy, MaxNorm], [MaxNorm, privacy]):
        for first in (True, False):
            made = [kind(post_processing=["MaxNorm"]) if kind is privacy else kind() for kind in order]
            everyone = [callback_with(hook), *made] if first else [*made, callback_with(hook)]
            with pytest.raises(FitError, match=MOVED):
                trainer(tmp_path, *everyone).fit(Module(), Data())


def test_one_hook_of_a_callback_does_not_stand_for_another(tmp_path: Path) -> None:
    callback = privacy(post_processing=["Meddler.on_train_epoch_end"])
    meddler = callback_with("on_train_batch_end")
    type(meddler).on_train_epoch_end = lambda self, trainer, pl_module: None  # type: ignore[attr-defined]
    with pytest.raises(FitError, match=MOVED):
        trainer(tmp_path, callback, meddler).fit(Module(), Data())


def test_names_that_are_none(tmp_path: Path) -> None:
    for names in ("MaxNorm", [1], None):
        with pytest.raises(ArgumentError, match=r"post_processing is .*; expected a list of names"):
            DifferentialPrivacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-6, post_processing=names)  # type: ignore[arg-type]
    for name in ("MaxNrom", "on_train_batch_end", "MaxNorm.on_fit_end"):
        with pytest.raises(
            FitError, match=f"post_processing: '{name}' is neither the class of another callback .*MaxNorm"
        ):
            trainer(tmp_path, privacy(post_processing=[name]), MaxNorm()).fit(Module(), Data())


@pytest.mark.filterwarnings(SWA_WARNING)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["stochastic", "averaged", "exponential"])
def test_lightnings_own_averages_need_no_exemption(kind: str, first: bool, tmp_path: Path) -> None:
    """They put averages into the module for each validation, at the start of an epoch, and at the end."""
    made = {
        "stochastic": lambda: StochasticWeightAveraging(0.05, swa_epoch_start=1),
        "averaged": lambda: averaging_callback()(),
        "exponential": lambda: averaging_callback("EMAWeightAveraging")(decay=0.5),
    }[kind]()
    module, callback = Module(), privacy()
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    both = [callback, made] if first else [made, callback]
    trainer(tmp_path, *both, saving, max_epochs=3, val_check_interval=0.5, enable_checkpointing=True).fit(
        module, Data()
    )
    assert callback.steps == 3 * STEPS
    assert "post_processing" not in callback.state_dict()


def test_a_subclass_of_an_average_is_not_taken_for_it(tmp_path: Path) -> None:
    class Meddling(averaging_callback()):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_end(trainer, pl_module)
            move(pl_module)

    with pytest.raises(FitError, match="moved otherwise"):
        trainer(tmp_path, privacy(), Meddling()).fit(Module(), Data())


def test_looking_changes_nothing(tmp_path: Path) -> None:
    found = []
    for settings in ({}, {"verify_steps": 0}):
        module = Module("lstm")
        torch.manual_seed(5)
        trainer(tmp_path, privacy(**settings), max_epochs=3).fit(module, Data())
        found.append((weights(module), torch.get_rng_state()))
    (watched, state), (unwatched, other) = found
    assert same(watched, unwatched)
    assert torch.equal(state, other)
