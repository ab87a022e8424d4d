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
from lightning_exposure.report._summary import listed
from lightning_exposure.secrets import CanarySet, SecretFormat
from tests.report.builder import make_estimate, make_extraction, make_record


@pytest.fixture
def record() -> RunRecord:
    return make_record(epochs=2)


# --- there and back ------------------------------------------------------------------------------------------


def test_round_trip_by_directory_and_by_file(record: RunRecord, tmp_path: Path) -> None:
    path = record.save(tmp_path / "runs" / "first", reveal=True)
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
        (_set("version", to=2), r"version is 2; expected 1"),
        (_set("version", to=True), r"version is True; expected an integer"),
        (_drop("settings"), r"settings is missing; expected this field"),
        (_set("settings", to=[]), r"settings is \[\]; expected an object"),
        (_set("canaries", "version", to=9), r"canaries\.version is 9; expected 1"),
        (_set("canaries", "formats", 0, "pattern", to=7), r"canaries\.formats\[0\]\.pattern is .*; expected a string"),
        (
            _set("canaries", "formats", 0, "words", to={"w": [1]}),
            r"formats\[0\]\.words\['w'\]\[0\] is .*; expected a string",
        ),
        (_set("canaries", "formats", 0, "pattern", to="none"), r"canaries\.formats\[0\]: "),
        (_set("canaries", "canaries", 1, "format", to=4), r"canaries\[1\]\.format is 4; expected one of 1 formats"),
        (_set("canaries", "canaries", 1, "text", to="me"), r"canaries\.canaries\[1\]\.text: "),
        (_set("canaries", "canaries", 1, "id", to="NO"), r"canaries\.canaries\[1\]\.id: "),
        (_set("canaries", "canaries", 1, "id", to="ssn-1x"), r"canaries\.canaries: .*, as canaries\[0\]"),
        (
            _set("canaries", "canaries", 1, "repetitions", to=-1),
            r"repetitions is .*; expected an integer of at least 0",
        ),
        (_set("baseline", "who", to={}), r"baseline\['who'\]: no canary has this id"),
        (_set("history", to={}), r"history is .*; expected a list"),
        (_set("history", 1, "epoch", to=1.5), r"history\[1\]\.epoch is 1\.5; expected an integer"),
        (_set("history", 1, "step", to=-4), r"history\[1\]\.step is -4; expected an integer of at least 0"),
        (_set("history", 0, "train_loss", to="low"), r"history\[0\]\.train_loss is 'low'; expected a number"),
        (_drop("history", 0, "val_loss"), r"history\[0\]\.val_loss is missing; expected this field"),
        (_set("history", 0, "seconds", to=None), r"history\[0\]\.seconds is None; expected a number"),
        (_set(*_FIRST, "bits", to="inf"), r"estimates\['ssn-1x'\]\.bits is 'inf'; expected a finite number"),
        (_set(*_FIRST, "secret", to="else"), r"\.secret: another secret; expected the text of the canary 'ssn-1x'"),
        (_set(*_FIRST, "low", to=99), r"\.low is 99.*; expected at most high"),
        (_set(*_FIRST, "is_bound", to=0), r"\.is_bound is 0; expected true or false"),
        (_set(*_FIRST, "rank", to=[1]), r"\.rank is .*; expected a finite number"),
        (_drop(*_FIRST, "method"), r"\.method is missing; expected this field"),
        (_set("references", "pin", to={}), r"references\['pin'\]: no canary has a format of this name; .* ssn"),
        (_set("references", "ssn", "costs", 3, to="x" * 999), r"costs\[3\] is 'x{196}\.\.\.; expected a number"),
        (_set("references", "ssn", "fit", "scale", to=0), r"fit\.scale is 0; expected a positive number"),
        (_drop("references", "ssn", "fit", "shape"), r"fit\.shape is missing; expected this field"),
        (_set("extractions", "pin", to={}), r"extractions\['pin'\]: no canary has a format of this name"),
        (_set(*_ATTACK, "optimal", to="yes"), r"extractions\['ssn'\]\.optimal is .*; expected true or false"),
        (_set(*_ATTACK, "version", to=7), r"extractions\['ssn'\]\.version is 7; expected 1"),
        (_set(*_ATTACK, "candidates", 0, "bits", to=None), r"candidates\[0\]\.bits is .*; expected a number"),
        (_drop(*_ATTACK, "candidates", 0, "text"), r"candidates\[0\]\.text is missing; expected this field"),
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
        (b"[]", "the file is .*; expected an object"),
        (None, "does not exist; expected a file that save"),
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
    with pytest.raises(ArgumentError, match=r"baseline\['ssn-4x'\] is about another secret"):
        other.save(tmp_path)
    with pytest.raises(ArgumentError, match=r"references\['pin'\] is about a format that no canary has"):
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


PROVEN_FAR, UNKNOWN = 10**8, None


@pytest.mark.parametrize(
    ("ranks", "verdict"),
    [
        ({1: PROVEN_FAR, 4: 18_411, 16: 1}, "2 of 3 secrets can be extracted: 1 with the first guess, 1 more within "
         "1,000,000 guesses"),
        ({1: PROVEN_FAR, 4: UNKNOWN, 16: 1}, "1 of 3 secrets can be extracted with the first guess; unknown: ssn-4x"),
        ({1: 700, 4: 18}, "2 of 2 secrets can be extracted within 1,000 guesses"),
        ({4: 1}, "1 of 1 secret can be extracted with the first guess"),
        ({1: PROVEN_FAR, 4: PROVEN_FAR}, "No secret can be extracted within 1,000,000 guesses (proven)"),
        ({1: PROVEN_FAR, 4: UNKNOWN}, "1 of 2 secrets is neither extracted nor ruled out; unknown: ssn-4x"),
        ({1: UNKNOWN, 4: UNKNOWN}, "Nothing is known: no exposure was measured, and no attack was made"),
        ({0: PROVEN_FAR, 4: 1}, "1 of 1 secret can be extracted with the first guess; control ruled out: ssn-0x"),
        ({0: 3, 4: PROVEN_FAR}, "No secret can be extracted within 1,000,000 guesses (proven); control can be "
         "extracted: ssn-0x"),
        ({0: UNKNOWN}, "No secret was inserted; control unknown: ssn-0x"),
    ],
)  # fmt: skip
def test_verdict(ranks: dict[int, int | None], verdict: str) -> None:
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=list(ranks))
    exact = {
        canary.id: make_estimate(canary, math.log2(10**9 / rank), rank=rank, method="exact", low=1.0, high=1.0)
        for canary, rank in zip(canaries, ranks.values(), strict=True)
        if rank is not None
    }
    record = RunRecord(canaries, history=[Measurement(1, 10, None, None, 0.1, exact)])
    assert record.verdict == verdict


def test_an_attack_without_a_measurement_proves_only_its_own_list() -> None:
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 16])
    record = RunRecord(canaries, extractions={"ssn": make_extraction([canaries["ssn-16x"].text, "another"])})
    assert record.verdict == "1 of 3 secrets can be extracted with the first guess; unknown: ssn-1x, ssn-4x"
    assert str(record.verdicts["ssn-4x"]) == "not within 2 guesses, proven; beyond that unknown"
    record.extractions["ssn"] = make_extraction(["another"])
    assert record.verdict == ("3 of 3 secrets are neither extracted nor ruled out; unknown: ssn-1x, ssn-4x, ssn-16x")


def test_a_format_that_was_not_attacked_is_unknown() -> None:
    canaries = CanarySet.draw([SecretFormat.ssn(), SecretFormat.pin()], repetitions=[1])
    record = RunRecord(canaries, extractions={"pin": make_extraction([canaries["pin-1x"].text])})
    assert record.verdict == "1 of 2 secrets can be extracted with the first guess; unknown: ssn-1x"


def test_exposures_of_an_earlier_model_decide_nothing(record: RunRecord) -> None:
    """Whoever trains on has another model."""
    assert record.final is not None
    at_the_end = replace(record, extractions={}, steps=record.final.step)
    assert "can be extracted" in at_the_end.verdict
    trained_on = replace(at_the_end, steps=record.final.step + 1)
    assert {verdict.mood for verdict in trained_on.verdicts.values()} == {"unknown"}


def test_the_steps_of_the_training_are_kept(record: RunRecord, tmp_path: Path) -> None:
    assert RunRecord.load(replace(record, steps=2500).save(tmp_path)).steps == 2500
    assert RunRecord.load(replace(record, steps=None).save(tmp_path)).steps is None


def test_what_an_estimate_rests_on_is_kept(record: RunRecord, tmp_path: Path) -> None:
    canary = record.canaries[0]
    record.baseline[canary.id] = make_estimate(canary, 3.0, rests_on="a sample of 4,096 walks")
    assert RunRecord.load(record.save(tmp_path)).baseline[canary.id].rests_on == "a sample of 4,096 walks"


def test_a_long_list_of_names_is_cut() -> None:
    assert listed("abcd") == "a, b, c, d"
    assert listed("abcdefg") == "a, b, c, d and 3 more"


def test_what_exposures_were_measured_against_is_kept(tmp_path: Path) -> None:
    record = make_record()
    final = record.history[-1]
    estimates = {key: replace(estimate, prior_bits=20.5) for key, estimate in final.estimates.items()}
    record.history[-1] = replace(final, estimates=estimates, prior="before_training")
    record.save(tmp_path)
    loaded = RunRecord.load(tmp_path)
    assert [measurement.prior for measurement in loaded.history[-2:]] == [None, "before_training"]
    assert loaded.history == record.history
    content = json.loads((tmp_path / "exposure.json").read_text())
    content["history"][-1]["prior"] = 7
    (tmp_path / "exposure.json").write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=r"history\[9\]\.prior is 7; expected a string"):
        RunRecord.load(tmp_path)
