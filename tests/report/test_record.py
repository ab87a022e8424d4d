"""`RunRecord`: what comes back is what was saved, and what is wrong is named."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.report import Measurement, References, RunRecord
from lightning_exposure.report.record import listed
from lightning_exposure.secrets import CanarySet, SecretFormat
from tests.report.builder import make_estimate, make_extraction, make_record


@pytest.fixture
def record() -> RunRecord:
    return make_record(epochs=2)


# --- there and back ------------------------------------------------------------------------------------------


def test_round_trip_by_directory_and_by_file(record: RunRecord, tmp_path: Path) -> None:
    path = record.save(tmp_path / "runs" / "first")
    assert path == tmp_path / "runs" / "first" / "exposure.json"
    assert RunRecord.load(path) == RunRecord.load(path.parent) == record


def test_a_record_of_nothing_yet(tmp_path: Path) -> None:
    record = RunRecord(CanarySet.draw(SecretFormat.pin(), repetitions=[1]))
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) == record
    assert record.final is None


def test_the_file_holds_the_canaries_as_their_manifest(record: RunRecord, tmp_path: Path) -> None:
    record.canaries.save(tmp_path / "canaries.json")
    manifest = json.loads((tmp_path / "canaries.json").read_text(encoding="utf-8"))
    assert json.loads(record.save(tmp_path).read_text(encoding="utf-8"))["canaries"] == manifest


def test_text_is_kept_as_utf8(tmp_path: Path) -> None:
    record = RunRecord(CanarySet.draw(SecretFormat("clé de Zoë → ##"), repetitions=[1]))
    assert "clé de Zoë → " in record.save(tmp_path).read_bytes().decode("utf-8")
    assert RunRecord.load(tmp_path) == record


def test_numbers_that_are_not_finite_survive_in_standard_json(record: RunRecord, tmp_path: Path) -> None:
    canary = record.canaries[0]
    impossible = make_estimate(canary, 0.0, log_perplexity=math.inf)
    record.history.append(Measurement(3, 750, math.nan, math.inf, 0.5, {canary.id: impossible}))
    path = record.save(tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    final = RunRecord.load(path).final
    assert final is not None
    assert final.train_loss is not None
    assert math.isnan(final.train_loss)
    assert final.val_loss == math.inf
    assert final.estimates[canary.id] == impossible


def test_an_exact_rank_stays_an_integer(record: RunRecord, tmp_path: Path) -> None:
    big = make_estimate(record.canaries[0], 1.0, rank=10**40 + 1)
    record.baseline[record.canaries[0].id] = big
    record.save(tmp_path)
    rank = RunRecord.load(tmp_path).baseline[record.canaries[0].id].rank
    assert rank == 10**40 + 1
    assert isinstance(rank, int)


def test_a_measurement_as_plain_values(record: RunRecord) -> None:
    content = json.loads(json.dumps(record.history[0].to_dict()))
    assert Measurement.from_dict(content) == record.history[0]


def test_a_crash_while_saving_leaves_the_old_file(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record.save(tmp_path).read_bytes()

    def crash(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", crash)
    record.history.clear()
    with pytest.raises(OSError, match="no space left"):
        record.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["exposure.json"]
    assert (tmp_path / "exposure.json").read_bytes() == before


# --- settings ------------------------------------------------------------------------------------------------


def test_settings_become_json_types_at_once(tmp_path: Path) -> None:
    canaries = CanarySet.draw(SecretFormat.pin(), repetitions=[1])
    record = RunRecord(canaries, {"betas": (0.9, 0.999), "clip": math.inf, "lr": np.float32(0.5), "steps": np.int64(3)})
    assert record.settings == {"betas": [0.9, 0.999], "clip": "inf", "lr": 0.5, "steps": 3}
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) == record


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"optimizer": {"classes": [int]}}, r"settings\['optimizer'\]\['classes'\]\[0\] is <class 'int'>.*str\(\)"),
        ({"seeds": {1: 2}}, r"settings\['seeds'\] has the key 1; expected only strings"),
    ],
)
def test_settings_that_json_cannot_say(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        RunRecord(CanarySet.draw(SecretFormat.pin(), repetitions=[1]), settings)


# --- what is refused -----------------------------------------------------------------------------------------


def _set(*path: str | int, to: object) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


def _drop(*path: str | int) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


_FIRST = ("history", 0, "estimates", "ssn-1x")
_ATTACK = ("extractions", "ssn")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_set("version", to=2), r"version: expected 1, got 2; update this library"),
        (_set("version", to=True), r"version: expected an integer, got True"),
        (_drop("settings"), r"settings: the field is missing"),
        (_set("settings", to=[]), r"settings: expected an object, got \[\]"),
        (_set("canaries", "version", to=9), r"canaries\.version: expected 1, got 9"),
        (_set("canaries", "formats", 0, "pattern", to=7), r"canaries\.formats\[0\]\.pattern: expected a string"),
        (_set("canaries", "formats", 0, "words", to={"w": [1]}), r"formats\[0\]\.words\['w'\]\[0\]: expected a string"),
        (_set("canaries", "formats", 0, "pattern", to="none"), r"canaries\.formats\[0\]: "),
        (_set("canaries", "canaries", 1, "format", to=4), r"canaries\[1\]\.format: got 4, but there are 1 formats"),
        (_set("canaries", "canaries", 1, "text", to="me"), r"canaries\.canaries\[1\]\.text: "),
        (_set("canaries", "canaries", 1, "id", to="NO"), r"canaries\.canaries\[1\]\.id: "),
        (_set("canaries", "canaries", 1, "id", to="ssn-1x"), r"canaries\.canaries: .*the same as"),
        (_set("canaries", "canaries", 1, "repetitions", to=-1), r"repetitions: expected an integer of at least 0"),
        (_set("baseline", "who", to={}), r"baseline\['who'\]: there is no canary with this id"),
        (_set("history", to={}), r"history: expected a list"),
        (_set("history", 1, "epoch", to=1.5), r"history\[1\]\.epoch: expected an integer, got 1\.5"),
        (_set("history", 1, "step", to=-4), r"history\[1\]\.step: expected an integer of at least 0, got -4"),
        (_set("history", 0, "train_loss", to="low"), r"history\[0\]\.train_loss: expected a number, got 'low'"),
        (_drop("history", 0, "val_loss"), r"history\[0\]\.val_loss: the field is missing"),
        (_set("history", 0, "seconds", to=None), r"history\[0\]\.seconds: expected a number, got None"),
        (_set(*_FIRST, "bits", to="inf"), r"estimates\['ssn-1x'\]\.bits: expected a finite number, got 'inf'"),
        (_set(*_FIRST, "secret", to="else"), r"\.secret: got 'else'; expected the text of the canary 'ssn-1x'"),
        (_set(*_FIRST, "low", to=99), r"\.low: got 99\.0, above high"),
        (_set(*_FIRST, "is_bound", to=0), r"\.is_bound: expected true or false, got 0"),
        (_set(*_FIRST, "rank", to=[1]), r"\.rank: expected a finite number"),
        (_drop(*_FIRST, "method"), r"\.method: the field is missing"),
        (_set("references", "pin", to={}), r"references\['pin'\]: no canary has a format of this name; .* ssn"),
        (_set("references", "ssn", "costs", 3, to="x" * 99), r"costs\[3\]: expected a number, got 'x{76}\.\.\.;"),
        (_set("references", "ssn", "fit", "scale", to=0), r"fit\.scale: expected a positive number, got 0"),
        (_drop("references", "ssn", "fit", "shape"), r"fit\.shape: the field is missing"),
        (_set("extractions", "pin", to={}), r"extractions\['pin'\]: no canary has a format of this name"),
        (_set(*_ATTACK, "optimal", to="yes"), r"extractions\['ssn'\]\.optimal: expected true or false"),
        (_set(*_ATTACK, "version", to=7), r"extractions\['ssn'\]: version is 7"),
        (_set(*_ATTACK, "candidates", 0, "bits", to=None), r"candidates\[0\]\.bits: expected a number"),
        (_drop(*_ATTACK, "candidates", 0, "text"), r"candidates\[0\]\.text: the field is missing"),
    ],
)
def test_a_wrong_field_is_named(record: RunRecord, tmp_path: Path, change: Callable[[Any], None], match: str) -> None:
    path = record.save(tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ManifestError, match=match) as caught:
        RunRecord.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"{", "not JSON"),
        (b"[]", "the file: expected an object"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_is_no_record(tmp_path: Path, content: bytes | None, match: str) -> None:
    if content is not None:
        (tmp_path / "exposure.json").write_bytes(content)
    with pytest.raises(ManifestError, match=match):
        RunRecord.load(tmp_path / "exposure.json")


def test_what_could_not_be_loaded_is_not_saved(record: RunRecord, tmp_path: Path) -> None:
    estimate = record.baseline["ssn-1x"]
    other = replace(record, baseline={"ssn-4x": estimate})
    with pytest.raises(ArgumentError, match=r"baseline\['ssn-4x'\] is about 'my ssn is"):
        other.save(tmp_path)
    with pytest.raises(ArgumentError, match=r"references\['pin'\]: no canary has a format of this name"):
        replace(record, references={"pin": References([1.0])}).save(tmp_path)
    assert not list(tmp_path.iterdir())


# --- what it says --------------------------------------------------------------------------------------------


def test_final_is_the_last_measurement(record: RunRecord) -> None:
    assert record.final is record.history[-1]


def test_extracted_are_the_canaries_among_the_candidates_likeliest_first(record: RunRecord) -> None:
    assert record.extracted == ("ssn-16x", "ssn-4x")
    attack = record.extractions["ssn"]
    shuffled = replace(record, extractions={"ssn": replace(attack, candidates=attack.candidates[::-1])})
    assert shuffled.extracted == record.extracted


def test_a_text_counts_only_for_the_attack_on_its_own_format() -> None:
    formats = [SecretFormat("pin ####", name="one"), SecretFormat("pin ##{rest}", name="two", rest=["00", "11"])]
    canaries = CanarySet.draw(formats, repetitions=[1], seed=3)
    record = RunRecord(canaries, extractions={"one": make_extraction([canaries["two-1x"].text])})
    assert record.extracted == ()


@pytest.mark.parametrize(
    ("repetitions", "found", "verdict"),
    [
        ([1, 4, 16], ["ssn-4x", "ssn-16x"], "2 of 3 secrets can be extracted"),
        ([1, 4, 16], [], "No secret was extracted"),
        ([4], ["ssn-4x"], "1 of 1 secret can be extracted"),
        ([0, 4], ["ssn-4x"], "1 of 1 secret can be extracted; control not extracted: ssn-0x"),
        ([0, 0, 4], ["ssn-0x"], "No secret was extracted; control extracted: ssn-0x; control not extracted: ssn-0x-2"),
        ([0, 0], [], "Not attacked: no inserted secret; controls not extracted: ssn-0x, ssn-0x-2"),
    ],
)
def test_verdict(repetitions: list[int], found: list[str], verdict: str) -> None:
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=repetitions)
    record = RunRecord(canaries, extractions={"ssn": make_extraction([canaries[key].text for key in found])})
    assert record.verdict == verdict


def test_verdict_without_an_attack_and_with_a_format_left_out() -> None:
    canaries = CanarySet.draw([SecretFormat.ssn(), SecretFormat.pin()], repetitions=[1])
    record = RunRecord(canaries)
    assert record.verdict == "Not attacked: no extraction was run"
    record.extractions["pin"] = make_extraction([canaries["pin-1x"].text])
    assert record.verdict == "1 of 1 secret can be extracted; not attacked: ssn-1x"


def test_a_long_list_of_names_is_cut() -> None:
    assert listed("abcd") == "a, b, c, d"
    assert listed("abcdefg") == "a, b, c, d and 3 more"
