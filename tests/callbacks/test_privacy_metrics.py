"""What a private training run logs of itself; and what of it epsilon does not cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_exposure.callbacks.private._metrics import COVERED, NOT_COVERED
from lightning_exposure.errors import ArgumentError, FitError
from lightning_exposure.privacy import generators
from lightning_exposure.privacy.steps.poisson import draw
from lightning_exposure.report import run_record
from lightning_exposure.report.pages import _answers as answers
from tests.callbacks.privacy_setups import DATA, RATE, RECORDS, STEPS, Data, Module, loss_of, privacy, trainer

LIMIT = 1.7


class Resting(Module):  # type: ignore[misc, valid-type]
    """Its weights never move, so that an example always has the same gradient."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def norms_one_by_one(module: Any) -> Tensor:
    """The norm of the gradient of every record, by plain autograd."""
    found = []
    for record in DATA:
        grads = torch.autograd.grad(loss_of(module.net, record[None]), list(module.net.parameters()))
        found.append(torch.stack([grad.norm() for grad in grads]).norm())
    return torch.stack(found)


def epoch_norms(module: Any, steps: int) -> Tensor:
    """Of the examples of an epoch that begins after so many steps."""
    norms, coins = norms_one_by_one(module), generators(3, steps=steps).sampling
    return torch.cat([norms[draw(RECORDS, RATE, coins)] for _ in range(STEPS)])


def test_settings_and_norms_are_logged_and_no_name_is_the_directory_of_another(tmp_path: Path) -> None:
    module = Resting()
    callback, logger = privacy(max_grad_norm=LIMIT), CSVLogger(tmp_path)
    run = trainer(tmp_path, callback, logger=logger)
    run.fit(module, Data())
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    expected = (callback.epsilon, 1e-5, 0.7, LIMIT, RATE)
    for name, value in zip(COVERED, expected, strict=True):
        assert logged[name] == pytest.approx(value)
    last = epoch_norms(module, STEPS)
    assert 0.1 < logged["privacy/clipped_share"] < 0.9
    assert logged["privacy/clipped_share"] == pytest.approx(float((last > LIMIT).float().mean()))
    assert logged["privacy/median_norm"] == pytest.approx(np.median(last.numpy()))
    assert not [(one, other) for one in logged for other in logged if other.startswith(f"{one}/")]
    assert "accountant: rdp" in (Path(logger.log_dir) / "hparams.yaml").read_text()


def test_the_record_the_page_and_the_card_have_them_and_say_what_is_not_covered(tmp_path: Path) -> None:
    module = Resting()
    run = trainer(tmp_path, privacy(max_grad_norm=LIMIT))
    run.fit(module, Data())
    record = run_record(run)
    assert record.privacy is not None
    steps, shares, medians = zip(*record.privacy["norms"], strict=True)
    assert steps == (STEPS, 2 * STEPS)
    for steps_before, share, median in zip((0, STEPS), shares, medians, strict=True):
        norms = epoch_norms(module, steps_before)
        assert share == pytest.approx(float((norms > LIMIT).float().mean()))
        assert median == pytest.approx(np.median(norms.numpy()))
    rows = dict(answers.privacy_rows(record))
    assert rows["Share of clipped examples"] == (
        f"{100 * shares[-1]:.3g}% in the last epoch, without noise: not covered by epsilon"
    )
    assert rows["Median norm"].endswith("not covered by epsilon")
    assert {"Delta", "Noise multiplier", "Clipping norm", "Sampling rate", "Accountant"} <= rows.keys()
    assert [row[0] for row in answers.norm_rows(record)] == [str(STEPS), str(2 * STEPS)]


def test_what_is_not_covered_is_said_once_and_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = privacy(log_norms=False)
    run = trainer(tmp_path, quiet)
    run.fit(Module(), Data())
    assert "without noise" not in capsys.readouterr().err
    assert not {*NOT_COVERED} & {*run.callback_metrics}
    assert run_record(run).privacy["norms"] == []  # type: ignore[index]
    trainer(tmp_path, privacy()).fit(Module(), Data())
    assert capsys.readouterr().err.count("are logged without noise: as for the training loss, epsilon does not") == 1
    with pytest.raises(ArgumentError, match="log_norms is 1, of type int; expected True or False"):
        privacy(log_norms=1)


def test_checkpoints_know_nothing_of_the_norms(tmp_path: Path) -> None:
    callback = privacy()
    run = trainer(tmp_path, callback)
    run.fit(Module(), Data())
    assert callback.norms.epochs
    assert "norm" not in " ".join(callback.state_dict())


class Plateau(Module):  # type: ignore[misc, valid-type]
    monitor, interval = "privacy/clipped_share", "epoch"

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": self.monitor, "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("metric", NOT_COVERED)
def test_a_learning_rate_may_not_follow_the_norms(metric: str, interval: str, tmp_path: Path) -> None:
    module = Plateau()
    module.monitor, module.interval = metric, interval
    with pytest.raises((FitError, Exception), match=metric) as refused:
        trainer(tmp_path, privacy(verbose=False)).fit(module, Data())
    # By the step there is no such metric yet when the schedule asks for it.
    assert isinstance(refused.value, FitError) or "not available" in str(refused.value)


@pytest.mark.parametrize("metric", COVERED)
def test_it_may_follow_what_no_data_are_behind(metric: str, tmp_path: Path) -> None:
    module = Plateau()
    module.monitor = metric
    trainer(tmp_path, privacy(verbose=False)).fit(module, Data())


@pytest.mark.parametrize("metric", NOT_COVERED)
def test_a_stop_by_the_norms_is_announced(metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(tmp_path, privacy(), EarlyStopping(metric, patience=5)).fit(Module(), Data())
    assert f"EarlyStopping monitors {metric!r}, which the training loop logs" in capsys.readouterr().err
