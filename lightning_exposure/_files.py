"""JSON files of ours: written whole or not at all, and checked field by field when read.

Everything that is kept on disk goes through here: canaries, records of runs, tokenizers, extractions, comparisons.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lightning_exposure._checks import refusal
from lightning_exposure.errors import ArgumentError, ExposureError, ManifestError, MissingFileError

REMEDY = "Correct it, or save the file again."

_Kind = TypeVar("_Kind")
_Made = TypeVar("_Made")
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
    """A value that knows where it stands, such as ``exposure.json: history[2].epoch``.

    Args:
        where: The place. For the whole content of a file it ends with a colon and a space, and the names of fields
            follow; for a value of a program it is the name of that value, and a dot comes between.
        value: What stands there.

    Example:
        >>> root = Field("exposure.json: ", {"history": [{"epoch": "one"}]})
        >>> root["history"].items()[0]["epoch"].as_(int)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ManifestError: exposure.json: history[0].epoch is 'one'; expected an integer. ...
        >>> Field("content", {})["version"]
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ManifestError: content.version is missing; expected this field. ...
    """

    where: str
    value: Any

    @property
    def name(self) -> str:
        """The place, as it is written in messages."""
        return f"{self.where}the file" if self.where.endswith(" ") else self.where

    def error(self, problem: object) -> ManifestError:
        """An error that says where."""
        return ManifestError(f"{self.name}: {problem}")

    def refused(self, expected: str, remedy: str = REMEDY) -> ManifestError:
        """An error that says where, what was found, what belongs there and what to do."""
        return refusal(self.name, self.value, expected, remedy, error=ManifestError)

    # ---- values -------------------------------------------------------------------------------------------

    def as_(self, kind: type[_Kind]) -> _Kind:
        """The value, if it is of this kind."""
        # In Python True is an integer; in JSON it is not.
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.refused(_KIND_NAMES[kind])
        return self.value

    def number(self, *, finite: bool = False) -> float:
        """The value as a float; "nan", "inf" and "-inf" are numbers too, unless it has to be finite."""
        if isinstance(self.value, str) and self.value in _NOT_FINITE and not finite:
            return _NOT_FINITE[self.value]
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.refused("a finite number" if finite else "a number")
        if finite and not math.isfinite(self.value):
            raise self.refused("a finite number")
        return float(self.value)

    def count(self) -> int:
        """The value, if it is an integer of at least 0."""
        if self.as_(int) < 0:
            raise self.refused("an integer of at least 0")
        return self.as_(int)

    def only(self, expected: object, remedy: str = "Update this library, or save the file again.") -> None:
        """Refuse any other value than the expected one, such as the version or the kind of a file."""
        if self.as_(type(expected)) != expected:
            raise self.refused(repr(expected), remedy)

    def optional(self) -> Field | None:
        """This field, or None where the file says null."""
        return None if self.value is None else self

    def made(self, make: Callable[[], _Made]) -> _Made:
        """What `make` makes of the value; what it refuses is reported as wrong at this place.

        Raises:
            ManifestError: Says where, and what `make` said.
        """
        try:
            return make()
        except ManifestError:
            raise  # it knows its place already
        except ExposureError as error:
            raise self.error(error) from error

    # ---- inside -------------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        """Whether there is a field of this name inside an object."""
        return key in self.as_(dict)

    def __getitem__(self, key: str) -> Field:
        """The field of this name inside an object."""
        where = f"{self.where}{'' if self.where.endswith(' ') else '.'}{key}"
        if key not in self:
            raise ManifestError(f"{where} is missing; expected this field. Add it, or save the file again.")
        return Field(where, self.value[key])

    def items(self) -> list[Field]:
        """The fields of a list."""
        return [Field(f"{self.where}[{place}]", item) for place, item in enumerate(self.as_(list))]

    def entries(self) -> dict[str, Field]:
        """The fields of an object whose keys are data, such as the ids of canaries."""
        return {key: Field(f"{self.where}[{key!r}]", value) for key, value in self.as_(dict).items()}


# ---- reading ----------------------------------------------------------------------------------------------------


def read_json(path: str | os.PathLike[str]) -> Field:
    """The content of a JSON file.

    Raises:
        MissingFileError: There is no such file, or it is a directory.
        ManifestError: It is not UTF-8, or not JSON.
    """
    try:
        return Field(f"{path}: ", json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist; expected a file that save() wrote. Check the path.") from error
    except IsADirectoryError as error:
        raise MissingFileError(
            f"{path} is a directory; expected a file that save() wrote. Name the file in it."
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise ManifestError(
            f"{path}: the file is not {what} ({error}); expected one that save() wrote. Save it again."
        ) from error


# ---- writing ----------------------------------------------------------------------------------------------------


def plain(value: object, path: str) -> Any:
    """A value as JSON types: tuples become lists, numpy's numbers Python's, and what is not finite a string.

    Args:
        value: What is to be written.
        path: What it is called in messages.

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
                raise ArgumentError(f"{path} has the key {key!r}; expected only strings. Convert it with str().")
        return {key: plain(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{path}[{place}]") for place, item in enumerate(value)]
    expected = "what JSON can say: a string, a number, true, false, null, a list or a dictionary"
    raise refusal(path, value, expected, "Convert it, for example with str().", with_type=True)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a JSON file in one step; nothing is touched if the content has no JSON form.

    Args:
        path: The file.
        content: What it holds.
        private: Whether nobody but its owner may read it.

    Raises:
        ArgumentError: Something in the content has no JSON form; names the field.
    """
    checked = {name: plain(value, name) for name, value in content.items()}
    write_whole(path, json.dumps(checked, ensure_ascii=False, allow_nan=False, indent=1) + "\n", private=private)


def check_directory(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a directory that nothing can be written into; it is made if it is not there.

    Args:
        name: What the argument is called.
        path: The directory.

    Raises:
        ArgumentError: It is a file, cannot be made, or cannot be written into.
    """
    if not isinstance(path, str | os.PathLike):
        raise refusal(name, path, "the path of a directory")
    given = Path(path)
    try:
        given.mkdir(parents=True, exist_ok=True)
        trial = given / f".{uuid.uuid4().hex}.tmp"
        trial.touch()
        trial.unlink()
    except OSError as error:
        what = "a directory and not a file" if given.is_file() else "a directory that can be written into"
        raise refusal(
            name, str(path), f"{what} ({error.strerror or error})", "Choose another one, or allow writing to it."
        ) from error


def write_whole(path: str | os.PathLike[str], content: str | bytes, *, private: bool = False) -> None:
    """Write a file in one step, text in UTF-8, with the directories it needs.

    The content goes to a new file beside the old one, which then takes its place: a reader, or a crash, meets the old
    file or the new one and never half of it.

    Args:
        path: The file.
        content: What it holds.
        private: Whether nobody but its owner may read it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        mode = 0o600 if private else 0o666  # before anything is in it: nobody can read it for a moment
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
