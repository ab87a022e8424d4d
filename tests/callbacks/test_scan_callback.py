"""Secrets in the training data are measured while a model trains, which changes nothing in the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch.utils.data import Dataset

from lightning_exposure import CanarySet, ScanCallback, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.callbacks.scan import texts_of
from lightning_exposure.data.text import WindowDataset
from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.measuring.scanning import UntrainedReferenceWarning
from lightning_exposure.secrets import Scanner
from tests.callbacks.setups import CANARIES, CHARS, PIN, Model, loader, trainer

SCANNER = Scanner([PIN])
TEXTS = [canary.text for canary in CANARIES for _ in range(canary.copies)]
RARE, FREQUENT = (canary.text[-4:] for canary in CANARIES)


def fit(folder: Path, *callbacks: Any, **options: Any) -> tuple[Model, L.Trainer]:
    torch.manual_seed(0)
    model, runner = Model(), trainer(folder, *callbacks, **options)
    runner.fit(model, loader())
    return model, runner


def test_what_the_training_data_holds_is_measured(tmp_path: Path, capsys: Any) -> None:
    reference = Model()
    callback = ScanCallback(TEXTS, tokenizer=CHARS, scanner=SCANNER, every_n_epochs=2, reference=reference)
    _, runner = fit(tmp_path, callback)
    assert [entry["epoch"] for entry in callback.history] == [2, 3]
    assert callback.scan is not None
    assert {row.text: row.occurrences for row in callback.scan.rows} == {RARE: 1, FREQUENT: 30}
    assert callback.scan.rows[0].text == FREQUENT
    assert callback.scan.calibrated
    assert runner.callback_metrics["scan/secrets"] == 2
    assert runner.callback_metrics["scan/exposure_max"] == callback.history[-1]["scan/exposure_max"]
    printed = "".join(capsys.readouterr())
    assert "my pin" not in printed
    assert "pin-" in printed, "a name stands for the secret"
    for secret in (RARE, FREQUENT):
        assert secret not in printed


def test_the_weights_are_the_same_with_and_without_it(tmp_path: Path) -> None:
    plain, _ = fit(tmp_path)
    after = torch.random.get_rng_state()
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, every_n_epochs=1, reference="before_training")
    with pytest.warns(UntrainedReferenceWarning, match="looks memorized"):
        scanned, _ = fit(tmp_path, callback)
    assert torch.equal(after, torch.random.get_rng_state())
    assert len(callback.history) == 3
    for one, two in zip(plain.state_dict().values(), scanned.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_nothing_of_a_secret_goes_into_a_checkpoint(tmp_path: Path) -> None:
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER)
    _, runner = fit(tmp_path, callback, max_epochs=1)
    runner.save_checkpoint(tmp_path / "model.ckpt")
    content = torch.load(tmp_path / "model.ckpt", weights_only=True)
    state = content["callbacks"][callback.state_key]
    assert len(state["history"]) == 1
    kept = json.dumps(state)
    assert "pin" not in kept
    again = ScanCallback(TEXTS, CHARS, scanner=SCANNER)
    again.load_state_dict(state)
    assert again.history == callback.history


def test_the_weights_of_before_are_the_reference_of_a_model_that_was_pretrained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    others = CanarySet.draw(PIN, repetitions=[1] * 30, seed=7)
    trainer(tmp_path).fit(model, loader(others))
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, reference="before_training", verbose=False)
    trainer(tmp_path, callback).fit(model, loader())  # no warning: warnings are errors here
    before, after = Model(), model
    before.load_state_dict(callback.state_dict()["before_training"])
    assert callback.scan is not None
    tree, prior = (SecretTree(each, PIN, CHARS) for each in (after, before))
    for row in callback.scan.rows:
        (alone,) = measure_exposure(tree, [f"my pin is {row.text}"], prior=prior)
        assert row.estimate is not None
        assert row.estimate.low - 1e-6 <= alone.bits <= row.estimate.high + 1e-6


def test_without_a_reference_nothing_is_called_memorized(tmp_path: Path) -> None:
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, verbose=False)
    _, runner = fit(tmp_path, callback, max_epochs=1)
    assert callback.scan is not None
    assert not callback.scan.calibrated
    assert "scan/memorized" not in runner.callback_metrics
    assert "scan/above_threshold" in runner.callback_metrics


def test_a_reference_from_a_checkpoint(tmp_path: Path) -> None:
    _, runner = fit(tmp_path, max_epochs=1)
    runner.save_checkpoint(tmp_path / "reference.ckpt")
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, reference=tmp_path / "reference.ckpt", verbose=False)
    fit(tmp_path, callback, max_epochs=1)
    assert callback.scan is not None
    # The same training gives the same weights: what the reference expects anyway is no exposure.
    for row in callback.scan.rows:
        assert row.estimate is not None
        assert row.estimate.prior_bits is not None
    (tmp_path / "broken.ckpt").write_text("no checkpoint")
    with pytest.raises(ManifestError, match="broken"):
        fit(tmp_path, ScanCallback(TEXTS, CHARS, scanner=SCANNER, reference=str(tmp_path / "broken.ckpt")))


def test_a_reference_that_is_being_trained_itself_is_refused(tmp_path: Path) -> None:
    model = Model()
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, reference=model)
    with pytest.raises(ArgumentError, match="reference is Model, which shares weights with the model that is trained"):
        trainer(tmp_path, callback).fit(model, loader())


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("scanned", [True, False])
def test_a_run_that_goes_on_does_not_take_its_own_weights_for_those_of_before(tmp_path: Path, scanned: bool) -> None:
    _, runner = fit(tmp_path, *([ScanCallback(TEXTS, CHARS, scanner=SCANNER)] if scanned else []), max_epochs=1)
    runner.save_checkpoint(tmp_path / "half.ckpt")
    callback = ScanCallback(TEXTS, CHARS, scanner=SCANNER, reference="before_training")
    with pytest.raises(ArgumentError, match="reference is 'before_training', and the run that goes on has not kept"):
        trainer(tmp_path, callback, max_epochs=2).fit(Model(), loader(), ckpt_path=tmp_path / "half.ckpt")


def test_texts_without_secrets_are_fine(tmp_path: Path, capsys: Any) -> None:
    callback = ScanCallback("the quick brown fox", CHARS)
    fit(tmp_path, callback, max_epochs=1)
    assert callback.history[-1]["scan/secrets"] == 0
    assert "0 distinct secrets" in "".join(capsys.readouterr())


# --- where the texts come from ------------------------------------------------------------------------------


class Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


TEXT = "my pin is 1234. the fox"


@pytest.mark.parametrize(
    "given",
    [
        TEXT,
        [TEXT],
        (text for text in [TEXT]),
        Items(TEXT),
        Items({"text": TEXT, "label": 3}),
        Items({"input_ids": torch.tensor(CHARS.encode(TEXT))}),
        Items(torch.tensor(CHARS.encode(TEXT))),
        Items((torch.tensor(CHARS.encode(TEXT)), torch.tensor(CHARS.encode(TEXT)))),
        Items(CHARS.encode(TEXT)),
        WindowDataset(torch.tensor(CHARS.encode(TEXT)), window=5),
    ],
    ids=["text", "list", "generator", "texts", "mappings", "input_ids", "ids", "pairs", "lists of ids", "windows"],
)
def test_texts_of_anything_that_holds_them(given: Any) -> None:
    assert list(texts_of(given, CHARS).values()) == [TEXT]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset_or_texts": 3}, "dataset_or_texts is int"),
        ({"alpha": 2.0}, "alpha is 2.0"),
        ({"every_n_epochs": -1}, "every_n_epochs is -1"),
        ({"reference": 7}, "reference is 7; expected a module"),
        ({"reference": "befor_training"}, "reference is 'befor_training'; expected a module"),
        ({"model": torch.nn.Linear(2, 2)}, "model is Linear"),
        ({"context": 0}, "context is 0"),
        ({"name": ""}, "name is ''"),
        ({"reference": "nowhere.ckpt"}, "reference is 'nowhere.ckpt'"),
        ({"scanner": SecretFormat("pin ##")}, "scanner is "),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ScanCallback(**{"dataset_or_texts": [TEXT], "tokenizer": CHARS, **arguments})


def test_an_item_that_is_no_text_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"an item of type float \(number 2\)"):
        texts_of(["a", 3.0], CHARS)
