"""Scale paper is what the papers did: their tables of settings, read off and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure.data.corpora import python_topics
from lightning_exposure.errors import DataError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.privacy.steps.accounting import epsilon, noise_for, with_steps
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.studies import STUDIES, Cell
from lightning_exposure.studies.defences.privacy import noise_of
from lightning_exposure.studies.training import draw_secrets, train_language_model


def cells(name: str) -> list[Cell]:
    return STUDIES.get(name).cells(name, "paper")


def looked_up(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings[key]
    return settings


# Table 8 and the sections themselves: two layers of 200 units, RMSProp, 0.001, batches of 128 sequences of 20.
SETUP = {
    "model.num_layers": 2,
    "model.hidden_size": 200,
    "model.lr": 0.001,
    "data.window": 20,
    "data.batch_size": 128,
    "characters": 5_000_000,
    "repetitions": 1,
    "format": "The random number is #########",
}


@pytest.mark.parametrize(
    ("name", "facts", "trainings"),
    [
        ("selectivity", {**SETUP, "epochs": 100, "model.early_stopping": 10}, 100),
        ("attack-cost", {**SETUP, "model.early_stopping": None}, 10),
        ("privacy", {**SETUP, "epochs": 100, "model.early_stopping": None}, 9 * 3),
        (
            "privacy",
            {"differential_privacy": {"max_grad_norm": 10.0, "delta": 1e-9, "accountant": "rdp"}},
            9 * 3,
        ),
        ("over-training", {"characters": 250_000, "model.lr": 0.01, "epochs": 40, "every": 1}, 10),
        ("regularization", {"characters": 250_000, "model.lr": 0.01, "levels": [256]}, 12 * 10),
        ("architectures", {"parameters": 620_000, "epochs": 100}, 10),
        ("hypothesis", {"epochs": 1, "characters": 5_000_000}, 200),
        ("context", {"looks": [5, 10], "digits": 9}, 30),
        ("sanitization", {"share": 0.1, "repetitions": 1}, 100),
        (
            "leakage",
            {
                "reference.window": 50,
                "reference.batch_size": 10,
                "reference.clip": 5.0,
                "reference.model.num_layers": 3,
                "reference.model.hidden_size": 512,
                "reference.model.lr": 0.001,
            },
            27,
        ),
    ],
)
def test_settings_of_the_papers(name: str, facts: dict[str, Any], trainings: int) -> None:
    found = cells(name)
    assert len(found) == trainings
    for cell in found:
        assert {path: looked_up(cell.settings, path) for path in facts} == facts


def test_every_row_of_table_7_is_trained_with_its_own_epsilon() -> None:
    table = STUDIES.get("privacy").paper[0]
    rows = {(optimizer.lower(), epsilon) for optimizer, epsilon, *_ in table.rows}
    names = {"no privacy": "no DP", "clip only": "infinite (clipping only)"}
    trained = {(cell.settings["optimizer"], cell.settings["privacy"]) for cell in cells("privacy")}
    assert {(way, names.get(one, one.removeprefix("epsilon "))) for way, one in trained} == rows
    # A hundred epochs of 225,000 sequences of 20 characters, in batches of 128.
    rate, steps, delta = 128 / 225_000, 100 * 225_000 // 128, 1e-9
    for _, privacy in trained:
        noise = noise_of(privacy) or {}
        if "target_epsilon" in noise:
            multiplier = noise_for(noise["target_epsilon"], delta, rate, steps, "rdp")
            spent = epsilon(with_steps((), multiplier, rate, steps), delta, "rdp")
            assert spent == pytest.approx(noise["target_epsilon"], rel=0.005)


def test_the_model_of_table_8_has_600_thousand_parameters() -> None:
    settings = cells("selectivity")[0].settings["model"]
    model = LanguageModel(vocab_size=50, **settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(620_000, abs=5_000)


def test_dropout_up_to_90_percent() -> None:
    trained = {cell.settings["training"] for cell in cells("regularization")}
    assert {f"dropout {percent}%" for percent in range(10, 100, 10)} < trained


def test_the_model_of_words_has_48_million_parameters() -> None:
    settings = cells("words")[0].settings
    with torch.device("meta"):
        model = LanguageModel(vocab_size=settings["data"]["words"], **settings["model"])
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(48e6, rel=0.005)


def test_grids_of_the_papers() -> None:
    capacity = {(cell.settings["batch_size"], cell.settings["units"]) for cell in cells("capacity")}
    assert capacity == {(b, u) for b in (16, 32, 64, 128, 256, 512, 1024) for u in (50, 100, 150, 200, 250)}
    secrets = {(cell.settings["insertions"], cell.settings["secrets"]) for cell in cells("many-secrets")}
    assert secrets == {(i, s) for i in (1, 2, 5, 10) for s in (1, 10, 50, 100, 500)}
    ways = {cell.settings["training"] for cell in cells("optimizers")}
    assert ways == {"sgd", "momentum", "rmsprop", "adagrad", "adadelta", "adam", "no shuffling", "bagging"}
    layers = {(cell.settings["architecture"], cell.settings["layers"]) for cell in cells("architectures")}
    assert layers > {("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2), ("cnn", 4), ("wavenet", 2), ("wavenet", 4)}
    assert all(SecretFormat(cell.settings["format"]).size == 10**9 for cell in cells("selectivity"))


@pytest.mark.parametrize("name", [name for name in STUDIES.names() if not name.startswith("toy")])
def test_a_gpu_is_used_where_there_is_one(name: str) -> None:
    for cell in cells(name):
        part = "reference" if "reference" in cell.settings else "trainer"
        assert cell.settings[part]["accelerator"] == "auto"
    assert all("accelerator" not in str(cell.settings) for cell in STUDIES.get(name).cells(name, "cpu"))


def test_a_text_of_one_line_is_a_text_and_not_the_name_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "what is trained on " * 20
    (tmp_path / "settings").mkdir()
    (given,) = STUDIES.get("selectivity").cells("selectivity", "tiny", seeds=1, text=name)
    trained = train_language_model(given, draw_secrets(given))
    assert set(name) <= set(trained.data.tokenizer.vocabulary)
    short = Cell("selectivity", given.settings, 0, "settings")
    with pytest.raises(DataError, match="window"):  # it is read, and too short
        train_language_model(short, draw_secrets(short))


def test_the_learning_rate_is_lowered_where_the_loss_no_longer_falls() -> None:
    (cell, *_) = STUDIES.get("selectivity").cells("selectivity", "tiny", text=python_topics())
    # No loss is ever smaller by as much as this: every epoch is a plateau.
    plateau = {"factor": 0.5, "patience": 0, "threshold": 100.0, "threshold_mode": "abs"}
    lowered = Cell("selectivity", {**cell.settings, "epochs": 3, "plateau": plateau}, 0, cell.text)
    rates: list[float] = []
    for each in (lowered, Cell("selectivity", {**cell.settings, "epochs": 3}, 0, cell.text)):
        trained = train_language_model(each, draw_secrets(each))
        optimizer = trained.model.optimizers()
        assert isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "param_groups")
        rates.append(optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
    assert rates == [pytest.approx(0.01 / 4), pytest.approx(0.01)]
