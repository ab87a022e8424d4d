"""`Measurement` in a record: how it was measured comes back, and older records that do not say are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.errors import ManifestError
from lightning_exposure.report import Measurement, RunRecord
from tests.report.builder import make_record

HOW: dict[str, Any] = {"method": "auto", "samples": 500, "budget": 5000, "seed": 3, "precision": 0.25, "cut": True}


def test_how_it_was_measured_comes_back(tmp_path: Path) -> None:
    record = make_record(epochs=2)
    for how in (HOW, HOW | {"precision": None, "cut": False}):
        record.history[-1] = replace(record.history[-1], **how)
        record.save(tmp_path)
        final = RunRecord.load(tmp_path).final
        assert final == record.final
        assert final is not None
        asked = {name: value for name, value in how.items() if name != "cut"}
        assert final.arguments == {**asked, "confidence": 0.95}
        assert Measurement.from_dict(final.to_dict()) == final


@pytest.mark.parametrize(
    ("name", "value"), [("cut", None), ("cut", 1), ("samples", -1), ("budget", "many"), ("precision", "nan")]
)
def test_a_wrong_field_is_named(tmp_path: Path, name: str, value: Any) -> None:
    path = make_record(epochs=1).save(tmp_path)
    content = json.loads(path.read_text())
    content["history"][0][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=rf"history\[0\].{name} is .*; expected"):
        RunRecord.load(path)
