"""Canaries as JSON types: each format once, the canaries refer to them by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

from lightning_exposure._checks import choice
from lightning_exposure._files import Field
from lightning_exposure.errors import SecretError
from lightning_exposure.secrets.canaries.canary import Canary, Purpose, check_holdout
from lightning_exposure.secrets.formats.format import SecretFormat

VERSION = 1

_Set = TypeVar("_Set")


def canaries_to_dict(canaries: Sequence[Canary]) -> dict[str, Any]:
    """Canaries as plain lists, strings and dictionaries."""
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
                "purpose": canary.purpose,
            }
            for canary in canaries
        ],
    }


def canaries_from_field(make: Callable[[Iterable[Canary]], _Set], root: Field) -> _Set:
    """What `canaries_to_dict` described.

    Args:
        make: The class of the set.
        root: The description, and where it stands.

    Raises:
        ManifestError: Names the field that is wrong.
    """
    root["version"].only(VERSION)
    formats = [_read_format(field) for field in root["formats"].items()]
    canaries = [_read_canary(field, formats) for field in root["canaries"].items()]
    return root["canaries"].made(lambda: make(canaries))  # two of them are the same: the message says which


def _read_format(field: Field) -> SecretFormat:
    field["pattern"].as_(str)
    for words in field["words"].entries().values():
        for word in words.items():
            word.as_(str)
    for key in ("checksum", "name"):
        if field[key].value is not None:
            field[key].as_(str)
    return field.made(lambda: SecretFormat.from_dict(field.value))


def _read_canary(field: Field, formats: Sequence[SecretFormat]) -> Canary:
    number = field["format"]
    if not 0 <= number.as_(int) < len(formats):
        raise number.refused(f"one of {len(formats)} formats, numbered from 0")
    identifier, text = field["id"].as_(str), field["text"].as_(str)
    repetitions, held_out = field["repetitions"].count(), field["held_out"].as_(bool)
    holdout = field["holdout"].made(lambda: check_holdout(field["holdout"].value))
    purpose: Any = "exposure"  # files from before there were others do not say it
    if "purpose" in field:
        purpose = field["purpose"].made(lambda: choice("purpose", field["purpose"].value, get_args(Purpose)))
    try:
        return Canary(
            identifier, text, formats[number.value], repetitions, held_out=held_out, holdout=holdout, purpose=purpose
        )
    except SecretError as error:
        raise field["text"].error(error) from error
    except ValueError as error:  # the only other thing that can be wrong by now
        raise field["id"].error(error) from error
