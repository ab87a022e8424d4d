"""The one file layer: fields that know where they stand, and files that are written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_exposure._files import Field, plain, read_json, write_json, write_whole
from lightning_exposure.errors import ArgumentError, FormatError, ManifestError, MissingFileError
from lightning_exposure.secrets import SecretFormat

ROOT = Field("run.json: ", {"history": [{"epoch": 1, "loss": "nan"}], "by id": {"a.b": 2}, "note": None, "on": True})


# --- where a field stands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "name"),
    [
        (ROOT, "run.json: the file"),
        (ROOT["history"], "run.json: history"),
        (ROOT["history"].items()[0], "run.json: history[0]"),
        (ROOT["history"].items()[0]["epoch"], "run.json: history[0].epoch"),
        (ROOT["by id"].entries()["a.b"], "run.json: by id['a.b']"),
        (Field("content", {"version": 1}), "content"),
        (Field("content", {"version": 1})["version"], "content.version"),
    ],
)
def test_a_field_knows_where_it_stands(field: Field, name: str) -> None:
    assert field.name == name
    assert str(field.error("broken")) == f"{name}: broken"
    assert str(field.refused("nothing", "Go.")) == f"{name} is {field.value!r}; expected nothing. Go."


# --- values -------------------------------------------------------------------------------------------------


def test_values_of_the_right_kind_are_returned() -> None:
    first = ROOT["history"].items()[0]
    assert first["epoch"].as_(int) == first["epoch"].count() == 1
    assert math.isnan(first["loss"].number())
    assert ROOT["on"].as_(bool) is True
    assert ROOT["note"].optional() is None
    assert first["epoch"].optional() == first["epoch"]
    assert "note" in ROOT
    assert "nothing" not in ROOT
    ROOT["on"].only(True)


@pytest.mark.parametrize(("text", "value"), [("inf", math.inf), ("-inf", -math.inf)])
def test_what_is_not_finite_is_kept_as_a_word(text: str, value: float) -> None:
    assert plain(value, "x") == text
    assert Field("x", text).number() == value
    with pytest.raises(ManifestError, match=f"^x is '{text}'; expected a finite number"):
        Field("x", text).number(finite=True)


@pytest.mark.parametrize(
    ("value", "ask", "expected"),
    [
        (True, lambda field: field.as_(int), "an integer"),
        (1, lambda field: field.as_(bool), "true or false"),
        (1.0, lambda field: field.as_(int), "an integer"),
        ([], lambda field: field.as_(dict), "an object"),
        ({}, lambda field: field.items(), "a list"),
        ("one", lambda field: field.number(), "a number"),
        (True, lambda field: field.number(), "a number"),
        (math.nan, lambda field: field.number(finite=True), "a finite number"),
        (-1, lambda field: field.count(), "an integer of at least 0"),
        (2, lambda field: field.only(1), "1"),
        (True, lambda field: field.only(1), "an integer"),
        ("word", lambda field: field.only("character"), "'character'"),
    ],
)
def test_a_wrong_value_says_where_what_and_how_to_go_on(value: Any, ask: Any, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ask(Field("run.json: x", value))
    message = str(caught.value)
    assert message.startswith(f"run.json: x is {value!r}; expected {expected}. ")
    assert message.endswith("save the file again.")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ManifestError, match=r"^run\.json: history\[0\]\.step is missing; expected this field\. Add it"):
        ROOT["history"].items()[0]["step"]


def test_what_a_constructor_refuses_is_wrong_at_its_place() -> None:
    field = Field("canaries.json: formats[0]", {"pattern": "no blank"})
    with pytest.raises(ManifestError, match=r"^canaries\.json: formats\[0\]: pattern is 'no blank'") as caught:
        field.made(lambda: SecretFormat.from_dict(field.value))
    assert isinstance(caught.value.__cause__, FormatError)
    with pytest.raises(ManifestError, match=r"^canaries\.json: formats\[0\]\.name is missing"):
        field.made(lambda: field["name"])


# --- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff{}", "not UTF-8"), (b"{", "not JSON"), (b"", "not JSON"), (b"[" * 200_000, "not JSON")],
)
def test_a_broken_file_is_named_and_left_as_it_is(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=f"^{re.escape(str(path))}: the file is {problem} .*Save it again"):
        read_json(path)
    assert path.read_bytes() == content


def test_a_missing_file_is_both_our_error_and_the_usual_one(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist; expected a file that save"):
        read_json(tmp_path / "run.json")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "run.json")


# --- writing ------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.json"
    write_json(path, {"text": "東京\n\t🔑", "numbers": (1, np.float32(0.5), np.int64(2)), "none": None})
    assert read_json(path).value == {"text": "東京\n\t🔑", "numbers": [1, 0.5, 2], "none": None}
    assert "東京" in path.read_text(encoding="utf-8"), "readable, not escaped"
    assert path.read_bytes().endswith(b"}\n")
    assert b"\r" not in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": {"b": [object()]}}, r"^a\['b'\]\[0\] is <object .*, of type object; expected what JSON can say"),
        ({"a": {1: 2}}, r"^a has the key 1; expected only strings\. Convert"),
    ],
)
def test_what_json_cannot_say_is_refused_before_anything_is_written(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": "old"})
    with pytest.raises(ArgumentError, match=message):
        write_json(path, content)
    assert json.loads(path.read_text()) == {"a": "old"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]
