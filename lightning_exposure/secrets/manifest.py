"""Canaries as a JSON file: written whole or not at all, and checked field by field when read."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lightning_exposure.errors import ArgumentError, FormatError, ManifestError, SecretError
from lightning_exposure.secrets.canary import Canary, first_duplicate
from lightning_exposure.secrets.formats import SecretFormat

VERSION = 1

_Kind = TypeVar("_Kind")
_KIND_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string", int: "an integer"}


@dataclass(frozen=True)
class _Field:
    """A value in a manifest that knows where it stands, such as ``canaries[2].text``."""

    file: Path
    path: str
    value: object

    def error(self, problem: str) -> ManifestError:
        return ManifestError(f"{self.file}: {self.path or 'the file'}: {problem}")

    def as_(self, kind: type[_Kind]) -> _Kind:
        # In Python True is an integer; in JSON it is not.
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is int):
            raise self.error(
                f"expected {_KIND_NAMES[kind]}, got {self.value!r}; correct it, or save the canaries again."
            )
        return self.value

    def field(self, key: str) -> _Field:
        path = f"{self.path}.{key}" if self.path else key
        data = self.as_(dict)
        if key not in data:
            raise _Field(self.file, path, None).error("the field is missing; add it, or save the canaries again.")
        return _Field(self.file, path, data[key])

    def items(self) -> list[_Field]:
        return [_Field(self.file, f"{self.path}[{place}]", item) for place, item in enumerate(self.as_(list))]


def write_manifest(path: str | os.PathLike[str], canaries: Sequence[Canary]) -> None:
    """Write canaries to a JSON file, each format once.

    The text goes to a new file beside the old one, which then takes its place in one step: whoever reads the
    manifest meanwhile, or after a crash, sees the old one or the new one and never half of it.
    """
    unique_formats = dict.fromkeys(canary.format for canary in canaries)
    formats = {format_: place for place, format_ in enumerate(unique_formats)}
    data = {
        "version": VERSION,
        "formats": [format_.to_dict() for format_ in formats],
        "canaries": [
            {
                "id": canary.id,
                "text": canary.text,
                "format": formats[canary.format],
                "repetitions": canary.repetitions,
            }
            for canary in canaries
        ],
    }
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_manifest(path: str | os.PathLike[str]) -> list[Canary]:
    """Read canaries from a JSON file; ManifestError names the file and the field that is wrong."""
    root = _Field(Path(path), "", _parse(Path(path)))
    version = root.field("version")
    if version.as_(int) != VERSION:
        raise version.error(
            f"expected {VERSION}, got {version.value}; update this library, or save the canaries again."
        )
    formats = [_read_format(field) for field in root.field("formats").items()]
    fields = root.field("canaries").items()
    canaries = [_read_canary(field, formats) for field in fields]
    for key in ("id", "text"):
        duplicate = first_duplicate([getattr(canary, key) for canary in canaries])
        if duplicate is not None:
            first, second = (fields[place].field(key) for place in duplicate)
            raise second.error(f"{second.value!r} is the same as {first.path}; expected different ones; change one.")
    return canaries


def _parse(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: the file is not UTF-8 ({error}); save the canaries again.") from error
    except json.JSONDecodeError as error:
        raise ManifestError(f"{path}: the file is not JSON ({error}); save the canaries again.") from error


def _read_format(field: _Field) -> SecretFormat:
    field.field("pattern").as_(str)
    for words in _entries(field.field("words")):
        for word in words.items():
            word.as_(str)
    for key in ("checksum", "name"):
        if field.field(key).value is not None:
            field.field(key).as_(str)
    try:
        return SecretFormat.from_dict(field.as_(dict))
    except FormatError as error:
        raise field.error(str(error)) from error


def _entries(field: _Field) -> list[_Field]:
    return [field.field(key) for key in field.as_(dict)]


def _read_canary(field: _Field, formats: Sequence[SecretFormat]) -> Canary:
    number = field.field("format")
    if not 0 <= number.as_(int) < len(formats):
        raise number.error(f"got {number.value}, but there are {len(formats)} formats, numbered from 0; correct it.")
    identifier, text = field.field("id"), field.field("text")
    repetitions = field.field("repetitions")
    if repetitions.as_(int) < 0:
        raise repetitions.error(f"got {repetitions.value}; expected at least 0; correct it.")
    try:
        return Canary(identifier.as_(str), text.as_(str), formats[number.as_(int)], repetitions.as_(int))
    except SecretError as error:
        raise text.error(str(error)) from error
    except ArgumentError as error:
        raise identifier.error(str(error)) from error
