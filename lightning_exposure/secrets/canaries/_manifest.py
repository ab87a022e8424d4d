"""Canaries as a JSON file: written whole or not at all, and checked field by field when read."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lightning_exposure.errors import ArgumentError, FormatError, ManifestError, SecretError
from lightning_exposure.secrets.canaries.canary import Canary, check_holdout
from lightning_exposure.secrets.formats.format import SecretFormat

VERSION = 1

_Kind = TypeVar("_Kind")
_Set = TypeVar("_Set")
_KIND_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "true or false",
}


@dataclass(frozen=True)
class _Field:
    """A value in a manifest that knows where it stands, such as ``canaries.json: canaries[2].text``."""

    where: str
    value: object

    def error(self, problem: str) -> ManifestError:
        return ManifestError(f"{self.where}{'the file' if self.where.endswith(' ') else ''}: {problem}")

    def expected(self, what: str) -> ManifestError:
        return self.error(f"expected {what}, got {self.value!r}; correct it, or save the canaries again.")

    def as_(self, kind: type[_Kind]) -> _Kind:
        # In Python True is an integer; in JSON it is not.
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.expected(_KIND_NAMES[kind])
        return self.value

    def field(self, key: str) -> _Field:
        where = f"{self.where}{'' if self.where.endswith(' ') else '.'}{key}"
        data = self.as_(dict)
        if key not in data:
            raise _Field(where, None).error("the field is missing; add it, or save the canaries again.")
        return _Field(where, data[key])

    def optional(self, key: str) -> _Field | None:
        return self.field(key) if key in self.as_(dict) else None

    def items(self) -> list[_Field]:
        return [_Field(f"{self.where}[{place}]", item) for place, item in enumerate(self.as_(list))]

    def entries(self) -> list[_Field]:
        return [_Field(f"{self.where}[{key!r}]", item) for key, item in self.as_(dict).items()]


def canaries_to_dict(canaries: Sequence[Canary]) -> dict[str, Any]:
    """Canaries as JSON types: each format once, the canaries refer to them by number."""
    unique_formats = dict.fromkeys(canary.format for canary in canaries)
    formats = {format_: place for place, format_ in enumerate(unique_formats)}
    return {
        "version": VERSION,
        "formats": [format_.to_dict() for format_ in formats],
        "canaries": [
            {
                "id": canary.id,
                "text": canary.text,
                "format": formats[canary.format],
                "repetitions": canary.repetitions,
                "held_out": canary.held_out,
                "holdout": canary.holdout,
            }
            for canary in canaries
        ],
    }


def canaries_from_dict(make: Callable[[Iterable[Canary]], _Set], content: object, source: str) -> _Set:
    """What `canaries_to_dict` described.

    Args:
        make: The class of the set.
        content: A manifest.
        source: What messages begin with; it ends with a space if the fields are to follow without a dot.

    Raises:
        ManifestError: Names the source and the field that is wrong.
    """
    root = _Field(source, dict(content) if isinstance(content, Mapping) else content)
    version = root.field("version")
    if version.as_(int) != VERSION:
        raise version.error(
            f"expected {VERSION}, got {version.value}; update this library, or save the canaries again."
        )
    formats = [_read_format(field) for field in root.field("formats").items()]
    fields = root.field("canaries")
    canaries = [_read_canary(field, formats) for field in fields.items()]
    try:
        return make(canaries)
    except ArgumentError as error:  # two of them are the same: the message says which
        raise fields.error(str(error)) from error


def write_manifest(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a manifest to a JSON file.

    The text goes to a new file beside the old one, which then takes its place in one step: whoever reads the
    manifest meanwhile, or after a crash, sees the old one or the new one and never half of it.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_manifest(path: str | os.PathLike[str]) -> object:
    """The content of a JSON file; ManifestError if it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: the file is not UTF-8 ({error}); save the canaries again.") from error
    except json.JSONDecodeError as error:
        raise ManifestError(f"{path}: the file is not JSON ({error}); save the canaries again.") from error


def _read_format(field: _Field) -> SecretFormat:
    field.field("pattern").as_(str)
    for words in field.field("words").entries():
        for word in words.items():
            word.as_(str)
    for key in ("checksum", "name"):
        if field.field(key).value is not None:
            field.field(key).as_(str)
    try:
        return SecretFormat.from_dict(field.as_(dict))
    except FormatError as error:
        raise field.error(str(error)) from error


def _read_canary(field: _Field, formats: Sequence[SecretFormat]) -> Canary:
    number = field.field("format")
    if not 0 <= number.as_(int) < len(formats):
        raise number.error(f"got {number.value}, but there are {len(formats)} formats, numbered from 0; correct it.")
    identifier, text = field.field("id"), field.field("text")
    repetitions = field.field("repetitions")
    if repetitions.as_(int) < 0:
        raise repetitions.expected("an integer of at least 0")
    # A manifest that was written before canaries could be held out does not have these.
    held_out, holdout = field.optional("held_out"), field.optional("holdout")
    try:
        return Canary(
            identifier.as_(str),
            text.as_(str),
            formats[number.as_(int)],
            repetitions.as_(int),
            held_out=False if held_out is None else held_out.as_(bool),
            holdout=0.0 if holdout is None else _probability(holdout),
        )
    except SecretError as error:
        raise text.error(str(error)) from error
    except ArgumentError as error:
        raise identifier.error(str(error)) from error


def _probability(field: _Field) -> float:
    try:
        return check_holdout(field.value)
    except ArgumentError as error:
        raise field.expected("a number of at least 0 and below 1") from error
