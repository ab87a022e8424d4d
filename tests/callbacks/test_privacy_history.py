"""What was spent on weights goes with them: through copies, files, and fits of other kinds in between."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.privacy import PoissonLoader, epsilon
from lightning_exposure.privacy.steps import origin
from lightning_exposure.privacy.steps.origin import KEY, Record, in_checkpoint, read_history, record_of, together, trace
from tests.callbacks.privacy_setups import (
    RATE,
    STEPS,
    VOCAB,
    Data,
    Module,
    averaging_callback,
    loss_of,
    privacy,
    same,
    trainer,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
ONCE = 2 * STEPS
CHANGED = pytest.warns(UserWarning, match=r"not those that the \d+ private steps before have led to")


def fit(folder: Path, module: Any, *callbacks: Any, **options: Any) -> Any:
    run = trainer(folder, *callbacks, **options)
    run.fit(module, Data())
    return run


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known any more but what is on modules and in files."""
    monkeypatch.setattr(origin, "_KNOWN", type(origin._KNOWN)())


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Any, Path]:
    """A module that was trained privately, and its checkpoint."""
    module, path = Module(), tmp_path / "private.ckpt"
    fit(tmp_path, module, privacy()).save_checkpoint(path)
    return module, path


# ---- in memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_goes_on_where_the_original_was(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    global Made
    Made = type("Made", (Module,), {"__module__": __name__, "__qualname__": "Made"})
    module = Made()
    fit(tmp_path, module, privacy())
    another_process(monkeypatch)
    copies = [way(module), way(module)]
    for twin in copies:
        callback = privacy()
        fit(tmp_path, twin, callback)
        assert callback.history == [(0.7, RATE, 2 * ONCE)]
        assert callback.epsilon == epsilon([(0.7, RATE, 2 * ONCE)], 1e-5, "rdp")
    again = privacy()
    fit(tmp_path, module, again)  # what its copies have spent is not its own
    assert again.steps == 2 * ONCE
    assert list(module.state_dict()) == list(Module().state_dict())


def test_a_plain_fit_in_between_is_told_and_does_not_make_anything_undone(
    trained: tuple[Any, Path], tmp_path: Path, capsys: Any
) -> None:
    module, _ = trained
    fit(tmp_path, module)
    callback = privacy(noise_multiplier=1.0)
    with CHANGED:
        fit(tmp_path, module, callback)
    assert callback.history == [(0.7, RATE, ONCE), (1.0, RATE, ONCE)]
    assert f"changed without privacy after {ONCE} private steps; not covered" in capsys.readouterr().err
    # It is not forgotten; but it is no news either.
    fit(tmp_path, module, callback)
    assert callback.steps == 3 * ONCE
    assert f"changed without privacy after {ONCE} private steps; not covered" in capsys.readouterr().err


def test_a_change_by_hand_is_told(trained: tuple[Any, Path], tmp_path: Path) -> None:
    module, _ = trained
    with torch.no_grad():
        module.net.out.bias[0] += 1e-3
    callback = privacy()
    with CHANGED:
        fit(tmp_path, module, callback)
    assert callback.steps == 2 * ONCE


def test_validation_and_testing_in_between_are_nothing(trained: tuple[Any, Path], tmp_path: Path, capsys: Any) -> None:
    module, _ = trained
    trainer(tmp_path, privacy()).validate(module, Data(), verbose=False)
    callback = privacy()
    fit(tmp_path, module, callback)
    assert callback.steps == 2 * ONCE
    assert f"Epsilon goes on: it includes the {ONCE} private steps" in capsys.readouterr().err


def test_weights_of_unknown_origin_are_told_once_and_without_a_warning(tmp_path: Path, capsys: Any) -> None:
    module = Module()
    fit(tmp_path, module, privacy())
    said = capsys.readouterr().err
    assert said.count("Where the weights come from that it begins with is not known") == 1
    fit(tmp_path, module, privacy())
    assert "is not known" not in capsys.readouterr().err


def test_weights_that_are_loaded_by_hand_are_known_again(trained: tuple[Any, Path], tmp_path: Path) -> None:
    module, _ = trained
    other, callback = Module(seed=1), privacy()
    other.load_state_dict(module.state_dict())
    fit(tmp_path, other, callback)
    assert callback.steps == 2 * ONCE
    # And going back to the weights from before the first fit makes that undone, for these weights.
    fresh = privacy()
    fit(tmp_path, Module(), fresh)
    assert fresh.steps == ONCE


class Around(Module):  # type: ignore[misc, valid-type]
    """Has another module in it, with a layer of its own after that."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.net = inner, None
        self.head = torch.nn.Linear(VOCAB, VOCAB)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tokens = batch[0]
        logits = self.head(getattr(self.inner, "net", self.inner)(tokens[:, :-1]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    validation_step = None


class Renamed(Module):  # type: ignore[misc, valid-type]
    """The same network by another name."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.other, self.net = network, None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return loss_of(self.other, batch[0])

    validation_step = None


@pytest.mark.parametrize("known", [True, False])
def test_a_module_that_becomes_a_part_of_another_brings_its_history(
    known: bool, trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module, _ = trained
    if not known:
        another_process(monkeypatch)
    callback, around = privacy(), Around(module)
    capsys.readouterr()
    trainer(tmp_path, callback).fit(around, train_dataloaders=PoissonLoader(Data().train_dataloader()))
    assert callback.history == [(0.7, RATE, 2 * ONCE)]
    assert f"Epsilon goes on: it includes the {ONCE} private steps" in capsys.readouterr().err
    # And back: taken out again, it has what both have spent.
    taken = privacy()
    fit(tmp_path, module, taken)
    assert taken.history == [(0.7, RATE, 3 * ONCE)]


def test_weights_are_known_again_by_another_name(trained: tuple[Any, Path], tmp_path: Path) -> None:
    module, _ = trained
    for make in (Renamed, Around):
        callback = privacy()
        loader = PoissonLoader(Data().train_dataloader())
        trainer(tmp_path, callback).fit(make(copy.deepcopy(module.net)), train_dataloaders=loader)
        assert callback.history == [(0.7, RATE, 2 * ONCE)]


def test_an_interrupted_fit_counts(tmp_path: Path) -> None:
    class Failing(Module):  # type: ignore[misc, valid-type]
        failing = True

        def on_after_backward(self) -> None:
            if self.failing and len(self.seen) == 3:
                raise KeyError("the third batch")

    module = Failing()
    with pytest.raises(KeyError):
        fit(tmp_path, module, privacy())
    module.failing = False
    callback = privacy()
    fit(tmp_path, copy.deepcopy(module), callback)
    assert callback.steps == 2 + ONCE


# ---- through files ----------------------------------------------------------------------------------------------


def test_load_from_checkpoint_in_the_same_process(trained: tuple[Any, Path], tmp_path: Path) -> None:
    _, path = trained
    loaded, callback = type(trained[0]).load_from_checkpoint(path), privacy()
    fit(tmp_path, loaded, callback)
    assert callback.steps == 2 * ONCE


def test_load_from_checkpoint_in_another_process_takes_the_history_from_the_file(
    trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _, path = trained
    another_process(monkeypatch)
    for history in (path, str(path), torch.load(path, weights_only=True)):
        loaded, callback = type(trained[0]).load_from_checkpoint(path), privacy(history=history)
        assert callback.epsilon == epsilon([(0.7, RATE, ONCE)], 1e-5, "rdp")
        fit(tmp_path, loaded, callback)
        assert callback.history == [(0.7, RATE, 2 * ONCE)]
        fit(tmp_path, loaded, callback)  # once is enough
        assert callback.steps == 3 * ONCE
    another_process(monkeypatch)
    forgetful = privacy()
    capsys.readouterr()
    fit(tmp_path, type(trained[0]).load_from_checkpoint(path), forgetful)
    assert forgetful.steps == ONCE
    assert "Where the weights come from that it begins with is not known" in capsys.readouterr().err


def test_a_history_of_other_weights_is_told(
    trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = trained
    another_process(monkeypatch)
    callback = privacy(history=path)
    with CHANGED:
        fit(tmp_path, Module(seed=5), callback)
    assert callback.steps == 2 * ONCE


def test_a_budget_counts_what_is_taken_up(trained: tuple[Any, Path], tmp_path: Path) -> None:
    _, path = trained
    kind = type(trained[0])
    before = epsilon([(0.7, RATE, ONCE)], 1e-5, "rdp")
    spent = privacy(history=path, max_epsilon=before)
    module = kind.load_from_checkpoint(path)
    fit(tmp_path, module, spent)
    assert spent.steps == ONCE
    assert same(weights(module), weights(trained[0]))
    target = privacy(history=path, target_epsilon=1.5 * before)
    fit(tmp_path, kind.load_from_checkpoint(path), target)
    assert 0.97 * 1.5 * before < target.epsilon <= 1.5 * before
    (first, second) = target.history
    assert first == (0.7, RATE, ONCE)
    assert second[0] > 0
    with pytest.raises(FitError, match=r"target_epsilon is .* is spent"):
        fit(tmp_path, kind.load_from_checkpoint(path), privacy(history=path, target_epsilon=before / 2))


def test_other_data_and_other_noise_add_up(trained: tuple[Any, Path], tmp_path: Path) -> None:
    module, _ = trained
    callback = privacy(noise_multiplier=2.0)
    trainer(tmp_path, callback).fit(module, Data(records=30, batch_size=3))
    assert callback.history == [(0.7, RATE, ONCE), (2.0, 1 / 10, 20)]
    assert callback.epsilon == epsilon(callback.history, 1e-5, "rdp") > epsilon([(0.7, RATE, ONCE)], 1e-5, "rdp")


@pytest.mark.parametrize("known", [True, False])
def test_a_resumed_run_counts_nothing_twice(known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    module = Module()
    fit(tmp_path, module, privacy(), saving, max_epochs=4, enable_checkpointing=True)
    if not known:
        another_process(monkeypatch)
    path = tmp_path / "epoch=1.ckpt"
    # A module of its own, one that has gone further already, and one that was told too.
    for fitted, settings in ((Module(seed=1), {}), (module, {}), (Module(seed=2), {"history": path})):
        callback = privacy(**settings)
        trainer(tmp_path, callback, max_epochs=4).fit(fitted, Data(), ckpt_path=path)
        assert callback.history == [(0.7, RATE, 4 * STEPS)]


def test_checkpoints_of_weights_alone_have_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_weights_only=True)
    module = Module()
    fit(tmp_path, module, privacy(), saving, enable_checkpointing=True)
    kept = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    assert "callbacks" not in kept
    assert list(kept["state_dict"]) == list(module.state_dict())
    another_process(monkeypatch)
    callback = privacy(history=tmp_path / "epoch=1.ckpt")
    fit(tmp_path, type(module).load_from_checkpoint(tmp_path / "epoch=1.ckpt"), callback)
    assert callback.steps == 2 * ONCE


@pytest.mark.parametrize("first", [True, False])
def test_averaged_weights_are_known_again(first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, saving = Module(), ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    average = averaging_callback()
    both = [privacy(), average()] if first else [average(), privacy()]
    fit(tmp_path, module, *both, saving, enable_checkpointing=True)
    another_process(monkeypatch)
    path = tmp_path / "epoch=0.ckpt"
    averaged = privacy(history=path)
    fit(tmp_path, type(module).load_from_checkpoint(path), averaged)
    assert averaged.steps == STEPS + ONCE
    resumed = privacy()
    trainer(tmp_path, resumed, average()).fit(Module(), Data(), ckpt_path=path)
    assert resumed.steps == ONCE
    again = privacy()
    fit(tmp_path, module, again)
    assert again.steps == 2 * ONCE


@pytest.mark.filterwarnings("ignore:The callbacks used to create the checkpoint.*DifferentialPrivacy:UserWarning")
def test_the_checkpoint_of_a_changed_module_does_not_pretend(
    trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by the Trainer of the private fit, after something else has changed the weights."""
    module, callback = Module(), privacy()
    run = fit(tmp_path, module, callback)
    with torch.no_grad():
        module.net.out.bias += 0.5
    path = tmp_path / "changed.ckpt"
    run.save_checkpoint(path)
    another_process(monkeypatch)
    with CHANGED:
        fit(tmp_path, type(module).load_from_checkpoint(path), privacy(history=path))


def test_a_checkpoint_with_double_precision_is_known_again(tmp_path: Path) -> None:
    path, module = tmp_path / "double.ckpt", Module()
    fit(tmp_path, module, privacy(), precision="64-true").save_checkpoint(path)
    for precision in ("64-true", "32-true"):
        callback = privacy(history=path)
        fit(tmp_path, type(module).load_from_checkpoint(path).float(), callback, precision=precision)
        assert callback.steps == 2 * ONCE


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"history is '.*none.ckpt'; expected .* no such file"):
        privacy(history=tmp_path / "none.ckpt")
    with pytest.raises(ArgumentError, match=r"history is 3; expected the path"):
        privacy(history=3)
    plain = tmp_path / "plain.ckpt"
    fit(tmp_path, Module()).save_checkpoint(plain)
    with pytest.raises(DataError, match=r"history is '.*plain.ckpt', which says nothing of private steps"):
        privacy(history=plain)
    text = tmp_path / "text.ckpt"
    text.write_text("no checkpoint")
    with pytest.raises(DataError, match="cannot be read as a checkpoint"):
        privacy(history=text)
    with pytest.raises(DataError, match=f"{KEY}: not a history"):
        privacy(history={KEY: {"fits": [["a", 1.0]]}})


def test_the_key_holds_plain_values(trained: tuple[Any, Path]) -> None:
    kept = torch.load(trained[1], weights_only=True)[KEY]
    assert set(kept) == {"fits", "weights", "gaps", "exemptions", "ways"}
    ((name, *entry),) = kept["fits"]
    assert isinstance(name, str)
    assert entry == [0.7, RATE, ONCE]
    assert all(math.isfinite(value) for value in entry)
    assert kept["ways"] == {name: {"clipping": "flat", "secure": False, "seeded": True}}


# ---- records ----------------------------------------------------------------------------------------------------


def test_accounts_of_the_same_weights_are_put_together() -> None:
    first = Record({"a": (1.0, 0.1, 5), "b": (1.0, 0.1, 3)})
    other = Record({"a": (1.0, 0.1, 5), "c": (1.0, 0.1, 3)}, gaps=(5,), exemptions=("MaxNorm",))
    assert together([first, other]).history == [(1.0, 0.1, 11)]
    assert together([first, first]) == first
    assert together([first, other]).gaps == (5,)
    assert together([]) == Record()


def test_what_fits_were_like_is_put_together_with_them() -> None:
    record = Record().stepped("a", 1.0, 0.1, way={"secure": True}).stepped("b", 1.0, 0.1, way={"secure": True})
    assert record.in_all("secure") == [True]
    later = together([record, Record().stepped("c", 1.0, 0.1, way={"secure": False})])
    assert later.in_all("secure") == [True, False]
    assert Record.of_state(later.state()) == later
    assert later.stepped("d", 1.0, 0.1).in_all("secure") == [True, False, None]  # nobody has said
    assert Record().in_all("secure") == []


def test_a_checkpoint_from_before_there_was_the_key() -> None:
    state = {"callbacks": {"DifferentialPrivacy": {"history": [[0.7, 0.25, 4], [1.0, 0.25, 4]], "noise_multiplier": 1}}}
    record = in_checkpoint(state)
    assert record is not None
    assert record.history == [(0.7, 0.25, 4), (1.0, 0.25, 4)]
    assert read_history(state) == record
    assert together([record, read_history(state)]) == record


def test_records_survive_as_plain_values() -> None:
    record = Record({"a": (1.0, 0.1, 5)}, ("f",), (2,), ("MaxNorm",))
    assert Record.of_state(record.state()) == record
    module = torch.nn.Linear(2, 2)
    assert record_of(module) is None
    assert trace(module).record == Record()
    origin.remember(module, record.leading_to(module.state_dict()))
    assert trace(copy.deepcopy(module)).known
    module.weight.data += 1
    assert not trace(module).known
    assert trace(module).record.steps == 5
