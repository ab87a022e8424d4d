"""The settings of an attack, read from its function: `extract`, callbacks and the command line ask here."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightning_exposure._checks import choice, refusal
from lightning_exposure.extraction._attacks import ATTACKS, Attack

_KINDS: dict[object, str] = {int: "an integer", float: "a number", str: "a text"}


@dataclass(frozen=True)
class AttackSetting:
    """One setting of an attack.

    Attributes:
        name: What it is called.
        kind: The type that its argument is annotated with, None left out; that of its default if it is not annotated.
        default: The value if none is given.
        optional: Whether None is a value.
        help: What the attack's docstring says about it; empty if it says nothing.
    """

    name: str
    kind: Any
    default: Any
    optional: bool
    help: str

    @property
    def choices(self) -> tuple[Any, ...]:
        """What it can be, if it is annotated as a `Literal`."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def parse(self, text: str, name: str) -> Any:
        """The value that a text on the command line stands for.

        Numbers, texts and choices are written as they are, None as "none", and everything else as JSON.

        Args:
            text: What was written.
            name: What the setting is called there, for the error message.

        Raises:
            ArgumentError: The text stands for no value of this kind.

        Example:
            >>> width = AttackSetting("width", int, default=100, optional=False, help="")
            >>> width.parse("50", "--width")
            50
            >>> width.parse("wide", "--width")
            Traceback (most recent call last):
            ...
            lightning_exposure.errors.ArgumentError: --width is 'wide'; expected an integer.
        """
        if self.optional and text == "none":
            return None
        if self.choices:
            return choice(name, text, self.choices)
        try:
            return self.kind(text) if self.kind in _KINDS else json.loads(text)
        except ValueError as error:
            raise refusal(name, text, _KINDS.get(self.kind, "a value in JSON")) from error


def attack_settings(algorithm: str) -> dict[str, AttackSetting]:
    """The settings of an attack, by name: its keyword arguments that have defaults.

    Raises:
        ArgumentError: There is no such attack.

    Example:
        >>> attack_settings("beam")["width"].default
        100
    """
    attack = ATTACKS.get(algorithm)
    hints, helps = _hints(attack), _helps(inspect.getdoc(attack) or "")
    settings = {}
    for name, parameter in inspect.signature(attack).parameters.items():
        if parameter.default is not parameter.empty and name not in ("memory", "progress"):
            default = parameter.default
            kind, optional = _without_none(hints.get(name, Any if default is None else type(default)))
            settings[name] = AttackSetting(name, kind, default, optional or default is None, helps.get(name, ""))
    return settings


def check_settings(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The default settings of an attack.

    Raises:
        ArgumentError: There is no such attack, or it has no such setting.
    """
    known = attack_settings(algorithm)
    for name, value in settings.items():
        if name not in known:
            expected = f"a setting of {algorithm!r}, which has {', '.join(known) or 'none'}"
            raise refusal(name, value, expected, "Leave it out, or choose another algorithm.")
    return {name: setting.default for name, setting in known.items()}


def _hints(attack: Attack) -> dict[str, Any]:
    """The annotations of an attack; none if they name what is known to type checkers only."""
    try:
        return get_type_hints(attack)
    except (NameError, TypeError):
        return {}


def _without_none(kind: Any) -> tuple[Any, bool]:
    """An annotation without None, and whether None was in it."""
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    others = [member for member in get_args(kind) if member is not NoneType]
    return (others[0] if len(others) == 1 else Any), len(others) < len(get_args(kind))


def _helps(docstring: str) -> dict[str, str]:
    """What the `Args:` of a docstring in Google's style say about each argument."""
    _, _, arguments = docstring.partition("Args:\n")
    helps: dict[str, str] = {}
    name = ""
    for line in arguments.splitlines():
        if not line.startswith("    "):
            break
        begins = re.match(r"    (\w+)(?: \([^)]*\))?: (.*)", line)
        if begins:
            name = begins[1]
        if name:
            helps[name] = begins[2] if begins else f"{helps[name]} {line.strip()}"
    return {name: text.strip().removesuffix(".") for name, text in helps.items()}
