"""MLflow keeps what the callbacks log, in files and in a database."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from lightning.pytorch.loggers import MLFlowLogger

from lightning_exposure import ExposureCallback, ExtractionCallback
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer


# MLflow's own: its file store is in maintenance, and its database store leaves connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("store", ["files", "database"])
def test_every_number_is_there_with_its_step(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = f"file:{tmp_path / 'runs'}" if store == "files" else f"sqlite:///{tmp_path / 'runs.db'}"
    logger = MLFlowLogger("canaries", tracking_uri=where, artifact_location=str(tmp_path / "artifacts"))
    callback = ExposureCallback(CANARIES, CHARS)
    attack = ExtractionCallback(CANARIES, CHARS, verbose=False)
    trainer(tmp_path, callback, attack, logger=logger, max_epochs=2).fit(Model(), loader())
    client = mlflow.MlflowClient(where)
    for canary in CANARIES:
        kept = client.get_metric_history(logger.run_id, f"exposure/{canary.id}")
        bits = [(measurement.step, measurement.estimates[canary.id].bits) for measurement in callback.history]
        assert [(metric.step, pytest.approx(metric.value)) for metric in kept] == bits
    # The table of candidates is an artifact of the run, and masked.
    (table,) = tmp_path.glob("**/extraction/table.txt")
    assert "my pin is ••••" in table.read_text()
    assert not any(canary.text in table.read_text() for canary in CANARIES)
    names = set(client.get_run(logger.run_id).data.metrics)
    assert {"exposure/max", "exposure_low/max", "exposure_gain/mean", "extraction/extracted"} <= names
