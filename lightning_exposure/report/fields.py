"""JSON files of ours: written whole or not at all, and checked field by field when read."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lightning_exposure.errors import ArgumentError, ManifestError

_Kind = TypeVar("_Kind")
_KIND_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "true or false",
}

# JSON has no words for these; a diverged loss or an impossible secret must still survive the round trip.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Field:
    """A value in a file that knows where it stands, such as ``history[2].epoch``.

    Example:
        >>> root = Field(Path("exposure.json"), "", {"history": [{"epoch": "one"}]})
        >>> root["history"].items()[0]["epoch"].as_(int)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ManifestError: exposure.json: history[0].epoch: expected an integer, got 'one'; ...
    """

    file: Path
    path: str
    value: Any

    def error(self, problem: str) -> ManifestError:
        """An error that says where."""
        return ManifestError(f"{self.file}: {self.path or 'the file'}: {problem}")

    def expected(self, what: str) -> ManifestError:
        """An error that says where, what belongs there and what was found."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return self.error(f"expected {what}, got {shown}; correct it, or save the run again.")

    def as_(self, kind: type[_Kind]) -> _Kind:
        """The value, if it is of this kind."""
        # In Python True is an integer; in JSON it is not.
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.expected(_KIND_NAMES[kind])
        return self.value

    def number(self, *, finite: bool = False) -> float:
        """The value as a float; "nan", "inf" and "-inf" are numbers too, unless it has to be finite."""
        if isinstance(self.value, str) and self.value in _NOT_FINITE and not finite:
            return _NOT_FINITE[self.value]
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.expected("a finite number" if finite else "a number")
        if finite and not math.isfinite(self.value):
            raise self.expected("a finite number")
        return float(self.value)

    def count(self) -> int:
        """The value, if it is an integer of at least 0."""
        if self.as_(int) < 0:
            raise self.expected("an integer of at least 0")
        return self.as_(int)

    def optional(self) -> Field | None:
        """This field, or None where the file says null."""
        return None if self.value is None else self

    def __getitem__(self, key: str) -> Field:
        """The field with this name inside an object."""
        path = f"{self.path}.{key}" if self.path else key
        if key not in self.as_(dict):
            raise Field(self.file, path, None).error("the field is missing; add it, or save the run again.")
        return Field(self.file, path, self.value[key])

    def items(self) -> list[Field]:
        """The fields of a list."""
        return [Field(self.file, f"{self.path}[{place}]", item) for place, item in enumerate(self.as_(list))]

    def entries(self) -> dict[str, Field]:
        """The fields of an object whose keys are data, such as the ids of canaries."""
        return {key: Field(self.file, f"{self.path}[{key!r}]", value) for key, value in self.as_(dict).items()}


def read_json(path: Path) -> Field:
    """The content of a JSON file; ManifestError if there is no such file, or it is not UTF-8 or not JSON."""
    try:
        return Field(path, "", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: there is no such file; expected one that RunRecord.save() wrote.") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: the file is not UTF-8 ({error}); save the run again.") from error
    except json.JSONDecodeError as error:
        raise ManifestError(f"{path}: the file is not JSON ({error}); save the run again.") from error


def plain(value: object, path: str) -> Any:
    """A value as JSON types: tuples become lists, numpy's numbers Python's, and what is not finite a string.

    Raises:
        ArgumentError: Something in it has no JSON form; names where.

    Example:
        >>> plain({"betas": (0.9, 0.999), "clip": float("inf")}, "settings")
        {'betas': [0.9, 0.999], 'clip': 'inf'}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{path} has the key {key!r}; expected only strings; convert it with str().")
        return {key: plain(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{path}[{place}]") for place, item in enumerate(value)]
    raise ArgumentError(
        f"{path} is {value!r}, of type {type(value).__name__}; expected what JSON can say: a string, a number, true, "
        "false, null, a list or a dictionary; convert it, for example with str()."
    )


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file in one step, with the directories it needs.

    The text goes to a new file beside the old one, which then takes its place: a reader, or a crash, meets the old
    file or the new one and never half of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
