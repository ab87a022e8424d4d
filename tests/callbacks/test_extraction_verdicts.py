"""`ExtractionCallback`: what it says of canaries that are not among its candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback
from lightning_exposure.report.verdicts import RankSpan
from tests.callbacks.setups import CANARIES, CHARS, PIN, Model, loader, trainer

RARE, OFTEN = (canary.id for canary in CANARIES)


def fit(folder: Path, *callbacks: Any, epochs: int = 12) -> None:
    torch.manual_seed(0)
    trainer(folder, *callbacks, max_epochs=epochs).fit(Model(), loader())


def test_the_rank_decides_where_it_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exposure = ExposureCallback(CANARIES, CHARS, method="exact", every_n_epochs=12)
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1)
    fit(tmp_path, attack, exposure)  # in whichever order they stand
    estimates = exposure.history[-1].estimates
    assert attack.extracted == [OFTEN]
    for key, verdict in attack.verdicts.items():
        assert verdict.proven == RankSpan(*[int(estimates[key].rank)] * 2)
    rank = estimates[RARE].rank
    printed = capsys.readouterr().err
    assert f"{OFTEN}  1st guess, proven" in printed
    assert f"{'not ' if rank > 1000 else ''}within 1,000 guesses (rank {rank:,}), proven" in printed


def test_alone_it_says_no_more_than_its_list_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1)
    fit(tmp_path, attack)
    assert attack.verdicts[OFTEN].proven == RankSpan(1, 1)
    assert attack.verdicts[RARE].proven == RankSpan(2, PIN.size)
    assert attack.verdicts[RARE].mood == "unknown"
    printed = capsys.readouterr().err
    assert "not the 1st guess, proven; beyond that unknown" in printed


def test_without_a_proof_it_is_unknown(tmp_path: Path) -> None:
    attack = ExtractionCallback(CANARIES, CHARS, "sampling", samples=3, top_k=1, verbose=False)
    fit(tmp_path, attack, epochs=1)
    missing = [verdict for verdict in attack.verdicts.values() if verdict.order is None]
    assert missing
    assert {verdict.proven for verdict in missing} == {RankSpan(1, PIN.size)}


def test_a_measurement_of_earlier_weights_does_not_count(tmp_path: Path) -> None:
    exposure = ExposureCallback(CANARIES, CHARS, method="exact", every_n_epochs=2)
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1, every_n_epochs=1, verbose=False)
    seen = []

    class Look(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            seen.append((len(exposure.history), dict(attack.estimates)))

    fit(tmp_path, exposure, attack, Look(), epochs=4)
    assert [measured for measured, _ in seen] == [0, 1, 1, 2]
    assert [bool(estimates) for _, estimates in seen] == [False, True, False, True]


def test_a_measurement_after_the_last_attack_still_counts(tmp_path: Path) -> None:
    exposure = ExposureCallback(CANARIES, CHARS, method="exact", every_n_epochs=0)
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1, every_n_epochs=1, verbose=False)
    fit(tmp_path, attack, exposure, epochs=2)  # the attack comes first in every epoch
    assert attack.estimates == exposure.history[-1].estimates


def test_other_canaries_of_the_other_callback_do_not_count(tmp_path: Path) -> None:
    others = CanarySet.draw(PIN, repetitions=[1, 30], seed=9)
    exposure = ExposureCallback(others, CHARS, method="exact")
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1, verbose=False)
    fit(tmp_path, exposure, attack, epochs=1)
    assert attack.estimates == {}


def test_verdicts_survive_a_checkpoint(tmp_path: Path) -> None:
    exposure = ExposureCallback(CANARIES, CHARS, method="exact")
    attack = ExtractionCallback(CANARIES, CHARS, top_k=1, verbose=False)
    fit(tmp_path, exposure, attack, epochs=1)
    again = ExtractionCallback(CANARIES, CHARS, top_k=1, verbose=False)
    again.load_state_dict(attack.state_dict())
    assert again.verdicts == attack.verdicts
    assert again.estimates
    # A checkpoint of before had the attack alone.
    again.load_state_dict({"extractions": attack.state_dict()["extractions"]})
    assert again.estimates == {}
