"""What tells two measurements of one run apart, today and in a process that resumes the run tomorrow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType
from typing import Any

from lightning_exposure.secrets import CanarySet, Mask

_PLAIN = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Identity:
    """Which state is whose: the same for the same kind, name, model and canaries, and for no others.

    Attributes:
        kind: What kind of measurement it is.
        name: The first part of its metrics' names.
        model: What picks the model out of the module that is being trained, described.
        canaries: A fingerprint of what it looks for.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> draw = lambda seed: CanarySet.draw(SecretFormat.pin(), repetitions=[1, 4], seed=seed)
        >>> student = Identity.of("Exposure", "exposure", lambda module: module.student, draw(0))
        >>> student == Identity.of("Exposure", "exposure", lambda module: module.student, draw(0))
        True
        >>> student == Identity.of("Exposure", "exposure", lambda module: module.teacher, draw(0))
        False
        >>> student == Identity.of("Exposure", "exposure", lambda module: module.student, draw(1))
        False
    """

    kind: str
    name: str
    model: str
    canaries: str

    @classmethod
    def of(cls, kind: str, name: str, model: Callable[..., Any] | None, canaries: CanarySet) -> Identity:
        """From the things themselves."""
        return cls(kind, name, _callable(model), fingerprint(canaries))

    def key(self, settings: Mapping[str, Any]) -> str:
        """Under which key a state is saved."""
        how = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{self._with_any_canaries}{self.canaries}; {how}]"

    def owns(self, key: str) -> bool:
        """Whether a state was saved by the same, perhaps with other settings, perhaps on another machine."""
        saved = key.removeprefix(self._with_any_canaries).partition("; ")[0]
        return self.resembles(key) and may_be_same(saved, self.canaries)

    def resembles(self, key: str) -> bool:
        """Whether a state was saved by one that differs in settings and canaries at most."""
        return key.startswith(self._with_any_canaries)

    @property
    def _with_any_canaries(self) -> str:
        return f"{self.kind}[{self.name}, model={self.model}, canaries="


def fingerprint(canaries: CanarySet) -> str:
    """Tells sets of canaries apart without telling their secrets, not even to someone who tries all there are.

    Three parts: a digest of what is no secret, one that says which key was used, and one of the texts with this key.
    """
    plain = [[canary.id, canary.format.to_dict(), canary.repetitions, canary.held_out] for canary in canaries]
    mask = Mask()
    return f"{_digest(json.dumps(plain))[:16]}.{mask.name('key', '')}.{mask.name('texts', json.dumps(canaries.texts))}"


def may_be_same(one: str, other: str) -> bool:
    """Whether two fingerprints may be of the same canaries: texts can only be compared where the key was the same.

    >>> may_be_same("a.key-1.texts-2", "a.key-1.texts-3"), may_be_same("a.key-1.texts-2", "a.key-9.texts-3")
    (False, True)
    """
    (plain, key, texts), (other_plain, other_key, other_texts) = (each.split(".") for each in (one, other))
    return plain == other_plain and (key != other_key or texts == other_texts)


def _callable(model: Any) -> str:
    """A function by what it does: where it stands in a file may change before a run is resumed.

    Two lambdas of one line have the same name, so that their code and what they close over must be looked at. What is
    neither a function nor a class goes by its class and its plain attributes.
    """
    if model is None:
        return "None"
    if isinstance(model, partial):
        arguments = [_value(value) for value in (*model.args, *sorted(model.keywords.items()))]
        return f"partial({_callable(model.func)}, {', '.join(arguments)})"
    code = getattr(model, "__code__", None)
    owner = getattr(model, "__self__", None)
    name = getattr(model, "__qualname__", type(model).__qualname__)
    if code is None:
        return name if isinstance(model, type) else f"{name}({_value(getattr(model, '__dict__', None))})"
    closed_over = [_value(cell.cell_contents) for cell in model.__closure__ or () if cell != CellType()]
    defaults = [_value(model.__defaults__), _value(model.__kwdefaults__)]
    inside = "" if owner is None else _value(owner)
    return f"{name.rpartition('.')[2]}#{_digest(repr([_code(code), closed_over, defaults, inside]))[:12]}"


def _value(value: Any) -> str:
    """A value by what is plain of it."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(value[key])}' for key in sorted(value, key=str))}}}"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _code(code: CodeType) -> list[Any]:
    return [code.co_code.hex(), [_constant(value) for value in code.co_consts], code.co_names]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    # The order of a set of texts differs from one process to the next.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
