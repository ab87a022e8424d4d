"""Where the weights of a module come from: which private steps have made them, and whether anything else has.

An epsilon belongs to weights, not to a callback or a Trainer. So what was spent on them goes with them: on the module
in memory, where a deep copy takes it along; in every checkpoint, under a key of its own; and in this process by the
fingerprint of the weights, so that they are known again however they come back.

Every private fit has a name of its own. Of two accounts of the same weights, those fits are counted once that both
know of.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_exposure._checks import refusal
from lightning_exposure.errors import DataError, FitError
from lightning_exposure.privacy.steps.accounting import History, with_steps
from lightning_exposure.privacy.steps.fingerprints import content, part_fingerprints, weights_fingerprint

KEY = "lightning_exposure_privacy"
"""Where checkpoints have it."""

_ATTRIBUTE = "_lightning_exposure_privacy"
_MOST_KNOWN = 1024
_KNOWN: OrderedDict[str, Record] = OrderedDict()


@dataclass(frozen=True)
class Record:
    """The private fits that have made some weights.

    Attributes:
        fits: For each fit, by its name: the noise multiplier, the sample rate and how many steps it made.
        weights: The fingerprints of the weights that they have led to.
        gaps: After how many private steps weights were found that other things than private steps had changed.
        exemptions: What was allowed to move the weights, as post-processing.
        of_users: The names of the fits whose steps are about users; those of the others are about records.
        ways: How fits were made private, by their names, as plain values: where the noise came from, how examples were
            clipped. Of fits that an older version has written down, nothing is known.
    """

    fits: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    gaps: tuple[int, ...] = ()
    exemptions: tuple[str, ...] = ()
    of_users: tuple[str, ...] = ()
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def units(self) -> set[str]:
        """Whom the steps are about: "record", "user", or both."""
        return {"user" if name in self.of_users else "record" for name in self.fits}

    @property
    def history(self) -> History:
        """All the steps, as `(noise multiplier, sample rate, how many)`."""
        history: History = []
        for noise, rate, steps in self.fits.values():
            history = with_steps(history, noise, rate, steps)
        return history

    @property
    def steps(self) -> int:
        """How many there are."""
        return sum(steps for _, _, steps in self.fits.values())

    def in_all(self, setting: str) -> list[Any]:
        """What a setting was in the fits: each value once, in their order; None for those that do not say."""
        found = [self.ways.get(name, {}).get(setting) for name in self.fits]
        return [value for place, value in enumerate(found) if value not in found[:place]]

    def stepped(
        self,
        fit: str,
        noise_multiplier: float,
        sample_rate: float,
        unit: str = "record",
        way: Mapping[str, Any] | None = None,
    ) -> Record:
        """With one step more of a fit; the weights are not known from now on."""
        steps = self.fits[fit][2] if fit in self.fits else 0
        fits = {**self.fits, fit: (noise_multiplier, sample_rate, steps + 1)}
        users = self.of_users if unit == "record" else tuple(dict.fromkeys((*self.of_users, fit)))
        ways = {**self.ways, fit: way} if way else self.ways
        return replace(self, fits=fits, weights=(), of_users=users, ways=ways)

    def leading_to(self, *states: Mapping[str, Any]) -> Record:
        """With weights that it has led to, as state dicts: the last ones, and perhaps an average beside them."""
        return replace(self, weights=tuple(weights_fingerprint(state) for state in states))

    def state(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {
            "fits": [[name, *entry] for name, entry in self.fits.items()],
            "weights": list(self.weights),
            "gaps": list(self.gaps),
            "exemptions": list(self.exemptions),
            **({"of_users": list(self.of_users)} if self.of_users else {}),
            **({"ways": {name: dict(way) for name, way in self.ways.items()}} if self.ways else {}),
        }

    @classmethod
    def of_state(cls, state: Any) -> Record:
        """The opposite of `state`.

        Raises:
            DataError: It is not one.
        """
        try:
            return cls(
                {str(name): (float(noise), float(rate), int(steps)) for name, noise, rate, steps in state["fits"]},
                tuple(map(str, state["weights"])),
                tuple(map(int, state["gaps"])),
                tuple(map(str, state["exemptions"])),
                tuple(map(str, state.get("of_users", ()))),
                {str(name): dict(way) for name, way in state.get("ways", {}).items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{KEY}: not a history of private fits ({error!r}); the checkpoint is damaged.") from error

    @classmethod
    def of_history(cls, history: Iterable[Any], unit: str = "record") -> Record:
        """Of steps whose fits have no names: equal histories count as the same."""
        entries = [(float(noise), float(rate), int(steps)) for noise, rate, steps in history]
        fits = {f"{content([place, *entry]):016x}": entry for place, entry in enumerate(entries)}
        return cls(fits, of_users=() if unit == "record" else tuple(fits))


def together(records: Iterable[Record]) -> Record:
    """What several accounts of the same weights come to: every fit once, with the most steps that one knows of.

    Example:
        >>> first = Record({"a": (1.0, 0.1, 5)})
        >>> later = Record({"a": (1.0, 0.1, 8), "b": (2.0, 0.1, 1)})
        >>> together([first, later]).history
        [(1.0, 0.1, 8), (2.0, 0.1, 1)]
    """
    fits: dict[str, tuple[float, float, int]] = {}
    listed = list(records)
    for record in listed:
        for name, entry in record.fits.items():
            fits[name] = max(fits.get(name, entry), entry, key=lambda known: known[2])
    return Record(
        fits,
        tuple(dict.fromkeys(weights for record in listed for weights in record.weights)),
        tuple(sorted({gap for record in listed for gap in record.gaps})),
        tuple(dict.fromkeys(name for record in listed for name in record.exemptions)),
        tuple(dict.fromkeys(name for record in listed for name in record.of_users)),
        {name: way for record in listed for name, way in record.ways.items()},
    )


def refuse_other_units(record: Record, unit: str) -> None:
    """Refuse a history whose epsilon is about something else than the steps to come.

    That of records says nothing about users with several. That of users is about a user who is added or removed. A
    record that is added to others of its user makes another user of him: the one is removed and the other added, so
    that twice the epsilon holds for it, at a larger delta. So neither goes on as the other.

    Raises:
        FitError: There are such steps.
    """
    others = record.units - {unit}
    if others:
        raise FitError(
            f"unit is {unit!r}, and {record.steps} private steps behind these weights were made with "
            f"unit={others.pop()!r}; expected the same, because one epsilon cannot be about both. Go on with the other "
            "unit, or begin with weights that these data have no part in."
        )


# ---- with the module, and in this process -------------------------------------------------------------------------


def remember(module: nn.Module, record: Record) -> None:
    """Let a module have a record; as plain values, so that a pickled module needs nothing of this library."""
    for part in carriers(module):
        vars(part)[_ATTRIBUTE] = record.state()


def carriers(module: nn.Module) -> list[nn.Module]:
    """A module, and its parts that may be taken out and trained by themselves, or were before."""
    parts = [part for part in module.modules() if part is not module]
    return [module, *(part for part in parts if _ATTRIBUTE in vars(part) or hasattr(part, "training_step"))]


def record_of(module: nn.Module) -> Record | None:
    """What a module was given by `remember`, itself or the one that it is a copy of."""
    state = vars(module).get(_ATTRIBUTE)
    return None if state is None else Record.of_state(state)


def publish(record: Record, *, but: str) -> None:
    """Let the weights of a record be known again in this process, whichever module has them.

    Args:
        record: The private fits.
        but: The fingerprint of weights that are left out, because they were there before.
    """
    for weights in record.weights:
        if weights != but and record.steps:
            _KNOWN[weights] = record
            _KNOWN.move_to_end(weights)
    while len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.popitem(last=False)


@dataclass(frozen=True)
class Origin:
    """What is known of the weights with which a fit begins.

    Attributes:
        record: The private fits before.
        known: Whether these weights are what those fits have led to.
        weights: Their fingerprint.
    """

    record: Record
    known: bool
    weights: str


def trace(module: nn.Module, told: Iterable[Record] = ()) -> Origin:
    """Where the weights of a module come from.

    If they are, bit for bit, weights that an account ends with, then that account is right and others are beside the
    point (with a seed, two runs can come to the same weights). If not, all accounts together are an upper bound of what
    private fits have spent; what else has changed the weights is not in it.

    Args:
        module: With its present weights.
        told: Accounts from elsewhere, such as that of the checkpoint that was loaded.
    """
    prints = part_fingerprints(module)
    weights = prints[""]
    mine = record_of(module)
    accounts = [record for record in (mine, *told, _KNOWN.get(weights)) if record is not None]
    for record in accounts:
        if weights in record.weights:
            return Origin(record, True, weights)
    # A module that was trained privately may have become a part of this one, itself or by its weights.
    accounts += [record for record in map(record_of, carriers(module)[1:]) if record is not None]
    accounts += [_KNOWN[part] for part in prints.values() if part in _KNOWN]
    found = {*prints.values()}
    known = bool(accounts) and all(found & {*record.weights} for record in accounts)
    return Origin(replace(together(accounts), weights=()), known, weights)


# ---- in checkpoints -----------------------------------------------------------------------------------------------


def in_checkpoint(checkpoint: Mapping[str, Any]) -> Record | None:
    """The private fits behind the weights of a checkpoint; None if it does not say."""
    if KEY in checkpoint:
        return Record.of_state(checkpoint[KEY])
    for name, state in (checkpoint.get("callbacks") or {}).items():
        # Of a callback, in a checkpoint from before there was the key.
        if str(name).startswith("DifferentialPrivacy") and isinstance(state, Mapping) and "history" in state:
            return Record.of_history(state["history"], state.get("unit", "record"))
    return None


def read_history(source: Any) -> Record:
    """The private fits behind the weights of a checkpoint, from its file.

    Args:
        source: The path of a Lightning checkpoint, or what is in it.

    Raises:
        ArgumentError: There is no such file.
        DataError: It cannot be read, or says nothing of private fits.
    """
    if isinstance(source, Mapping):
        checkpoint, name = source, "..."
    elif isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        checkpoint = _read(Path(name))
    else:
        raise refusal("history", source, "the path of a Lightning checkpoint, or what is in it")
    record = in_checkpoint(checkpoint) if isinstance(checkpoint, Mapping) else None
    if record is None:
        raise DataError(
            f"history is {name!r}, which says nothing of private steps; expected a Lightning checkpoint of a training "
            "run with DifferentialPrivacy. Leave history out if the weights were not trained privately: epsilon "
            "then covers the steps to come."
        )
    return record


def _read(path: Path) -> Any:
    if not path.is_file():
        raise refusal("history", str(path), "the path of a Lightning checkpoint", "There is no such file.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"history is {str(path)!r}, which cannot be read as a checkpoint; expected one of plain values and tensors "
            f"({type(error).__name__}: {why}). If you trust the file, hand over what is in it: "
            "history=torch.load(path, weights_only=False)."
        ) from error
