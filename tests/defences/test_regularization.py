"""Weight decay, dropout and early stopping as one line, and in the record of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

from lightning_exposure import ExposureCallback
from lightning_exposure.data import TextDataModule
from lightning_exposure.defences import Regularization, quantize, set_dropout, set_weight_decay
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.report.recording import defences_in_force, run_record
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer


def test_any_module_gets_weight_decay_and_dropout(tmp_path: Path) -> None:
    plain, regular = Model(), Model()
    regular.load_state_dict(plain.state_dict())
    for model, callbacks in ((plain, []), (regular, [Regularization(weight_decay=0.5, dropout=0.4)])):
        torch.manual_seed(0)
        fitted = trainer(tmp_path, *callbacks)
        fitted.fit(model, loader())
    assert regular.drop.p == 0.4
    assert fitted.optimizers[0].param_groups[0]["weight_decay"] == 0.5
    weights = [sum(float(p.detach().square().sum()) for p in model.parameters()) for model in (plain, regular)]
    assert weights[1] < 0.5 * weights[0]
    assert defences_in_force(fitted) == [
        {"name": "weight decay", "weight_decay": 0.5},
        {"name": "dropout", "p": 0.4},
    ]


def test_dropout_of_every_kind_of_layer() -> None:
    model = nn.ModuleList(
        [nn.Dropout(0.1), nn.Dropout1d(), nn.LSTM(2, 2, num_layers=2), nn.LSTM(2, 2), nn.MultiheadAttention(2, 1)]
    )
    assert set_dropout(model, 0.3) == 4
    assert [part.dropout for part in (model[2], model[3], model[4])] == [0.3, 0.0, 0.3]
    with pytest.raises(ArgumentError, match=r"dropout is 0\.3, and Linear has no dropout layer; expected at least one"):
        set_dropout(nn.Linear(2, 2), 0.3)


def test_an_optimizer_without_weight_decay() -> None:
    optimizer = torch.optim.SparseAdam([nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(ArgumentError, match="SparseAdam has none; expected an optimizer"):
        set_weight_decay(optimizer, 0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "weight_decay and dropout are None; expected at least one"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Regularization(**options)


def language_model(**options: Any) -> tuple[LanguageModel, TextDataModule]:
    data = TextDataModule("the quick brown fox jumps over the lazy dog. " * 40, window=20, batch_size=8)
    data.setup()
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "embedding_size": 4, "num_layers": 1, "lr": 10.0}
    return LanguageModel("gru", vocab_size=data.tokenizer.vocab_size, **{**sizes, **options}), data


def test_the_reference_model_stops_early(tmp_path: Path) -> None:
    model, data = language_model(early_stopping=1, weight_decay=0.01, dropout=0.1)
    fitted = trainer(tmp_path, max_epochs=30)
    fitted.fit(model, data)
    assert fitted.current_epoch < 30
    entries = {entry["name"]: entry for entry in defences_in_force(fitted)}
    assert entries["early stopping"] == {
        "name": "early stopping", "monitor": "val_loss", "patience": 1, "stopped": True,
    }  # fmt: skip
    assert entries["weight decay"]["weight_decay"] == 0.01
    assert entries["dropout"]["p"] == 0.1


def test_an_early_stopping_of_the_user_is_left_alone(tmp_path: Path) -> None:
    model, data = language_model(early_stopping=1)
    own = EarlyStopping("train_loss_epoch", patience=7)
    fitted = trainer(tmp_path, own, max_epochs=1)
    fitted.fit(model, data)
    assert [it for it in fitted.callbacks if isinstance(it, EarlyStopping)] == [own]
    assert LanguageModel("gru", vocab_size=5).hparams["early_stopping"] is None
    with pytest.raises(ArgumentError, match="early_stopping is 0; expected an integer of at least 1"):
        LanguageModel("gru", vocab_size=5, early_stopping=0)


def test_defences_stand_in_the_record_of_the_run(tmp_path: Path) -> None:
    fitted = trainer(tmp_path, ExposureCallback(CANARIES, CHARS), Regularization(dropout=0.25), max_epochs=1)
    fitted.fit(Model(), loader())
    assert run_record(fitted).defences == [{"name": "dropout", "p": 0.25}]
    record = run_record(fitted)
    record.save(tmp_path)
    assert type(record).load(tmp_path).defences == record.defences


def test_a_quantized_model_is_told_by_its_weights(tmp_path: Path) -> None:

    model = Model()
    set_dropout(model, 0.0)
    run = trainer(tmp_path)
    run.strategy.connect(quantize(model, 16))
    (entry,) = defences_in_force(run)
    assert entry["name"] == "quantization"
    assert entry["distinct"] == 16
    run.strategy.connect(model)
    assert defences_in_force(run) == []
