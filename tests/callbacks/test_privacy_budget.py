"""How much is spent: targets, budgets, and runs that are interrupted and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_exposure.errors import FitError
from lightning_exposure.privacy import epsilon, steps_within
from tests.callbacks.privacy_setups import RATE, STEPS, Data, Module, privacy, same, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")


class Noises(L.Callback):
    """Remembers the noise of every step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        optimizer = trainer.optimizers[0]
        value = pl_module.net.out.weight
        self.seen.append(value.grad * optimizer.expected_batch_size - optimizer.last_sums[value])


def checkpoints(folder: Path, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}-{step}", **options)


# ---- targets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 3}, 3 * STEPS),
        ({"max_epochs": 3, "limit_train_batches": 2}, 6),
        ({"max_epochs": -1, "max_steps": 7}, 7),
        ({"max_epochs": 3, "max_steps": 5}, 5),
    ],
)
def test_a_target_is_met_at_the_last_step_and_not_before(options: dict[str, Any], steps: int, tmp_path: Path) -> None:
    callback = privacy(target_epsilon=4.0)
    trainer(tmp_path, callback, **options).fit(Module(), Data())
    assert callback.steps == steps
    assert 0.97 * 4.0 < callback.epsilon <= 4.0
    assert callback.noise_multiplier_ == callback.history[0][0]


def test_a_target_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FitError, match=r"target_epsilon is 4\.0, but this training run has no end; .* Give the Trainer max_epochs"
    ):
        trainer(tmp_path, privacy(target_epsilon=4.0), max_epochs=-1).fit(Module(), Data())


def test_a_target_that_was_spent_is_refused_in_a_second_fit(tmp_path: Path) -> None:
    callback, module = privacy(target_epsilon=4.0), Module()
    trainer(tmp_path, callback).fit(module, Data())
    with pytest.raises(FitError, match=r"target_epsilon is 4\.0, and 3\.9\d* is spent .* Give a larger target_epsilon"):
        trainer(tmp_path, callback).fit(module, Data())
    assert callback.epsilon <= 4.0
    trainer(tmp_path, callback).fit(Module(), Data())  # another module has spent nothing yet


def test_what_was_spent_on_a_module_stays_spent_with_a_new_callback(tmp_path: Path) -> None:
    module = Module()
    trainer(tmp_path, privacy(noise_multiplier=1.0)).fit(module, Data())
    again = privacy(noise_multiplier=1.0)
    trainer(tmp_path, again).fit(module, Data())
    once = privacy(noise_multiplier=1.0)
    trainer(tmp_path, once).fit(Module(), Data())
    assert again.steps == 2 * once.steps
    assert again.epsilon > once.epsilon


def test_a_resumed_run_keeps_its_noise_and_meets_its_target(tmp_path: Path) -> None:
    first = privacy(target_epsilon=4.0)
    saved = checkpoints(tmp_path, every_n_epochs=1)
    trainer(tmp_path, first, saved, max_epochs=4, enable_checkpointing=True).fit(Module(), Data())
    again = privacy(target_epsilon=4.0)
    path = tmp_path / f"epoch=1-step={2 * STEPS}.ckpt"
    trainer(tmp_path, again, max_epochs=4).fit(Module(), Data(), ckpt_path=path)
    assert again.history == first.history
    longer = privacy(target_epsilon=4.0)
    trainer(tmp_path, longer, max_epochs=8).fit(Module(), Data(), ckpt_path=path)
    (noise, _, before), (more, _, after) = longer.history
    assert noise == first.noise_multiplier_ < more == longer.noise_multiplier_
    assert (before, after) == (2 * STEPS, 6 * STEPS)
    assert 0.97 * 4.0 < longer.epsilon <= 4.0


# ---- budgets --------------------------------------------------------------------------------------------------


def test_a_budget_stops_the_training_right_after_the_last_step_that_fits(tmp_path: Path, capsys: Any) -> None:
    allowed = steps_within(11.0, 1e-5, RATE, 0.7, "rdp")
    assert allowed % STEPS
    assert allowed > STEPS
    for end in (10, -1):
        callback = privacy(max_epsilon=11.0)
        run = trainer(tmp_path, callback, max_epochs=end)
        run.fit(Module(), Data())
        assert run.global_step == callback.steps == allowed
        assert callback.epsilon <= 11.0 < epsilon([(0.7, RATE, allowed + 1)], 1e-5, "rdp")
        assert f"The budget allows for {allowed} steps: epsilon {callback.epsilon:.4g}" in capsys.readouterr().err


def test_a_budget_that_is_large_enough_changes_nothing(tmp_path: Path) -> None:
    callback = privacy(max_epsilon=100.0)
    run = trainer(tmp_path, callback)
    run.fit(Module(), Data())
    assert callback.steps == 2 * STEPS
    assert not run.should_stop


def test_a_budget_counts_what_a_resumed_run_has_spent(tmp_path: Path) -> None:
    allowed = steps_within(11.0, 1e-5, RATE, 0.7, "rdp")
    first = privacy(max_epsilon=11.0)
    saved = checkpoints(tmp_path, every_n_epochs=1)
    trainer(tmp_path, first, saved, max_epochs=1, enable_checkpointing=True).fit(Module(), Data())
    again = privacy(max_epsilon=11.0)
    run = trainer(tmp_path, again, max_epochs=10)
    run.fit(Module(), Data(), ckpt_path=tmp_path / f"epoch=0-step={STEPS}.ckpt")
    assert again.steps == run.global_step == allowed
    path = tmp_path / "spent.ckpt"
    run.save_checkpoint(path)
    spent = privacy(max_epsilon=11.0)
    module = Module()
    trainer(tmp_path, spent, max_epochs=10).fit(module, Data(), ckpt_path=path)
    assert spent.steps == allowed
    assert same(weights(module), dict(torch.load(path)["state_dict"]))


def test_a_trainer_that_goes_on_all_the_same_is_stopped_by_force(tmp_path: Path) -> None:
    callback = privacy(max_epsilon=11.0)
    with pytest.raises(FitError, match=r"max_epsilon is 11\.0, and spent .* Leave out min_epochs and min_steps"):
        trainer(tmp_path, callback, max_epochs=10, min_epochs=10).fit(Module(), Data())
    assert callback.epsilon <= 11.0


# ---- checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_resumed_between_epochs_is_bit_for_bit_the_uninterrupted_one(optimizer: str, tmp_path: Path) -> None:
    whole = Module("lstm", optimizer)
    saved = checkpoints(tmp_path, every_n_epochs=1)
    trainer(tmp_path, privacy(), saved, max_epochs=4, enable_checkpointing=True).fit(whole, Data())
    callback, resumed = privacy(), Module("lstm", optimizer, seed=1)
    path = tmp_path / f"epoch=1-step={2 * STEPS}.ckpt"
    trainer(tmp_path, callback, max_epochs=4).fit(resumed, Data(), ckpt_path=path)
    assert same(weights(whole), weights(resumed))
    assert callback.history == [(0.7, RATE, 4 * STEPS)]


@pytest.mark.parametrize("every", [2, 3])
def test_a_run_resumed_in_the_middle_of_an_epoch_counts_on_and_repeats_no_noise(every: int, tmp_path: Path) -> None:
    before, after = Noises(), Noises()
    saved = checkpoints(tmp_path, every_n_train_steps=every)
    trainer(tmp_path, privacy(), before, saved, enable_checkpointing=True).fit(Module(), Data())
    callback = privacy()
    run = trainer(tmp_path, callback, after)
    run.fit(Module(), Data(), ckpt_path=tmp_path / f"epoch=0-step={every}.ckpt")
    assert callback.history == [(0.7, RATE, 2 * STEPS)]
    assert run.global_step == 2 * STEPS
    assert len(before.seen) == 2 * STEPS
    assert len(after.seen) == 2 * STEPS - every
    # Those of the second epoch are the same in both runs, because both begin it after as many steps; no others are.
    everything = [*before.seen, *after.seen[: STEPS - every]]
    pairs = [(a, b) for place, a in enumerate(everything) for b in everything[:place]]
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in pairs)


def test_a_checkpoint_is_that_of_the_module_and_loads_without_the_callback(tmp_path: Path) -> None:
    module, path = Module("lstm"), tmp_path / "private.ckpt"
    run = trainer(tmp_path, privacy(), checkpoints(tmp_path, every_n_train_steps=1), enable_checkpointing=True)
    run.fit(module, Data())
    run.save_checkpoint(path)
    for file in (path, tmp_path / "epoch=0-step=1.ckpt"):
        kept = torch.load(file, weights_only=True)
        assert list(kept["state_dict"]) == list(Module("lstm").state_dict())
        plain = Module("lstm").configure_optimizers()
        plain.load_state_dict(kept["optimizer_states"][0])
        history = kept["callbacks"]["DifferentialPrivacy"]["history"]
        assert history == [[0.7, RATE, kept["global_step"]]]
    assert same(weights(type(module).load_from_checkpoint(path, kind="lstm")), weights(module))
    with pytest.warns(UserWarning, match="DifferentialPrivacy"):  # Lightning says that it was there
        trainer(tmp_path, max_epochs=3).fit(Module("lstm"), Data(), ckpt_path=path)


def test_steps_without_privacy_before_are_told(tmp_path: Path, capsys: Any) -> None:
    module, path = Module(), tmp_path / "plain.ckpt"
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module, Data())
    run.save_checkpoint(path)
    callback = privacy(target_epsilon=4.0)
    trainer(tmp_path, callback, max_epochs=3).fit(Module(), Data(), ckpt_path=path)
    assert f"{STEPS} steps before these were made without privacy" in capsys.readouterr().err
    assert callback.steps == 2 * STEPS
    assert 0.97 * 4.0 < callback.epsilon <= 4.0


def test_a_restored_callback_knows_what_was_spent_before_it_trains() -> None:
    callback = privacy()
    assert callback.state_dict() == {"history": [], "noise_multiplier": None}
    callback.load_state_dict({"history": [[0.7, RATE, 5]], "noise_multiplier": 0.7})
    assert callback.epsilon == epsilon([(0.7, RATE, 5)], 1e-5, "rdp")
