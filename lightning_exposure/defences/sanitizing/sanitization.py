"""`Sanitization`: what was learnt about every sample, what to remove, and what remains."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import number
from lightning_exposure._files import write_json, write_whole
from lightning_exposure._html import html_table
from lightning_exposure.defences.sanitizing._samples import Samples
from lightning_exposure.defences.sanitizing._splitting import Losses, count_of_share, most_suspicious_first
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report.tables import text_table

Per = Literal["symbol", "sample"]
"""What differences are compared by: bits per character (or token id) of a sample, or bits of the whole sample."""

CLEANED, REMOVED, SCORES = "cleaned.txt", "removed.txt", "sanitization.json"

_COLUMNS = ("place", "line", "difference", "held out", "seen", "length", "group", "copies")
_SHOWN = 20


class TakesDefences(Protocol):
    """A record of a run, as far as defences are concerned."""

    defences: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Sanitization:
    """What two or more models say about every sample: which of them were learnt by heart.

    Neither its `repr` nor its tables show a sample unless you ask for it: they are people's texts.

    Attributes:
        losses: What each sample costs where it was held out, and where it was seen, in bits.
        groups: The number of each sample's group of copies.
        parts: The number of the part that each sample was held out with.
        share: Which share of the samples is to be removed.
        per: Whether differences are bits per symbol or bits per sample.
        settings: How it was made, as JSON types.
    """

    samples: Samples = field(repr=False)
    losses: Losses = field(repr=False)
    groups: NDArray[np.int64] = field(repr=False)
    parts: NDArray[np.int64] = field(repr=False)
    share: float
    per: Per
    settings: dict[str, Any]

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.samples)

    # ---- the ranking --------------------------------------------------------------------------------------

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """How many characters, or token ids, each sample has."""
        return np.array([max(1, len(item)) for item in self.samples.items], dtype=np.int64)

    @cached_property
    def differences(self) -> NDArray[np.float64]:
        """The loss of each sample where it was held out minus its loss where it was seen, in bits per `per`."""
        difference = self.losses.held_out - self.losses.seen
        return difference / self.lengths if self.per == "symbol" else difference

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The numbers of the samples, the most suspicious first."""
        return most_suspicious_first(self.differences)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The place of each sample in that order, from 1."""
        places = np.empty(len(self), dtype=np.int64)
        places[self.order] = np.arange(1, len(self) + 1)
        return places

    @cached_property
    def lines(self) -> list[int]:
        """The number of the line in which each sample begins, from 1; without a text, its own number from 1."""
        return self.samples.lines()

    def to_remove(self, share: float | None = None) -> list[int]:
        """The numbers of the samples to remove, from 0, the most suspicious first.

        Args:
            share: Which share of the samples; None: the one that was asked for.

        Raises:
            ArgumentError: It is not between 0 and 1.
        """
        share = self.share if share is None else number("share", share, at_least=0, at_most=1)
        return [int(sample) for sample in self.order[: count_of_share(share, len(self))]]

    def clean(self, share: float | None = None) -> str | list[Any]:
        """The text without the samples to remove; without a text, the list of the other samples.

        Args:
            share: Which share of the samples to remove; None: the one that was asked for.
        """
        return self.samples.without(set(self.to_remove(share)))

    @property
    def cleaned(self) -> str | list[Any]:
        """What remains: the text, or the list of samples, without those to remove."""
        return self.clean()

    @property
    def split_copies(self) -> int:
        """How many samples have an equal one in another part, because there are more of them than a group may have.

        Of these the differences say nothing: every model has seen such a text.
        """
        parts: dict[bytes, set[int]] = {}
        for symbols, part in zip(self.samples.symbols, self.parts.tolist(), strict=True):
            parts.setdefault(symbols.tobytes(), set()).add(part)
        return sum(len(parts[symbols.tobytes()]) > 1 for symbols in self.samples.symbols if len(symbols))

    # ---- what it shows ------------------------------------------------------------------------------------

    def summary(self) -> str:
        """Two sentences about all of it."""
        removed = self.to_remove()
        unit = "bits per character" if self.per == "symbol" and self.samples.are_texts else f"bits per {self.per}"
        many = np.bincount(self.groups)
        said = (
            f"{len(removed):,} of {len(self):,} samples to remove ({self.share:.3g} of them); "
            f"{int((many > 1).sum()):,} groups of copies. The models differ by "
            f"{float(self.differences.mean()):.3f} {unit} on average"
        )
        said += f", by at least {self.differences[removed[-1]]:.3f} on what is to be removed." if removed else "."
        if self.split_copies:
            said += (
                f" {self.split_copies:,} samples have equal ones in another part, too many for one group: of these "
                "nothing is known."
            )
        return said

    def rows(self, top: int = _SHOWN, *, reveal: bool = False) -> list[tuple[Any, ...]]:
        """The most suspicious samples: their places, lines and numbers, and the samples themselves if asked for."""
        many = np.bincount(self.groups)
        return [
            (
                place,
                self.lines[sample],
                f"{self.differences[sample]:.3f}",
                f"{self.losses.held_out[sample]:.1f}",
                f"{self.losses.seen[sample]:.1f}",
                int(self.lengths[sample]),
                int(self.groups[sample]),
                int(many[self.groups[sample]]),
                *((self.samples.items[sample],) if reveal else ()),
            )
            for place, sample in enumerate(self.order[:top].tolist(), 1)
        ]

    def table(self, top: int = _SHOWN, *, reveal: bool = False) -> str:
        """The same as text.

        Args:
            top: How many.
            reveal: Whether to show the samples.
        """
        columns = (*_COLUMNS, "sample") if reveal else _COLUMNS
        return text_table(columns, [[str(cell) for cell in row] for row in self.rows(top, reveal=reveal)])

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(self.summary(), self.rows(), columns=_COLUMNS)

    def to_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Everything as plain values, for JSON: the samples in their order, without what they say.

        Args:
            reveal: Whether to show the samples.
        """
        removed = set(self.to_remove())
        return {
            "version": 1,
            "kind": "sanitization",
            "share": self.share,
            "per": self.per,
            "settings": self.settings,
            "removed": len(removed),
            "split_copies": self.split_copies,
            "masked": not reveal,
            "samples": [
                {
                    "line": self.lines[sample],
                    "place": int(self.places[sample]),
                    "difference": float(self.differences[sample]),
                    "held_out_bits": float(self.losses.held_out[sample]),
                    "seen_bits": float(self.losses.seen[sample]),
                    "length": int(self.lengths[sample]),
                    "group": int(self.groups[sample]),
                    "part": int(self.parts[sample]),
                    "remove": sample in removed,
                    **({"sample": self.samples.items[sample]} if reveal else {}),
                }
                for sample in range(len(self))
            ],
        }

    # ---- what it leaves behind ----------------------------------------------------------------------------

    def add_to_record(self, record: TakesDefences) -> None:
        """Say in the record of a run that it was trained on what remains of the data."""
        entry = {"name": "sanitization", "removed": len(self.to_remove()), "samples": len(self)}
        record.defences.append({**entry, "share": self.share, "per": self.per, **self.settings})

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write the scores, what was removed and what remains into a new directory, and return the files.

        `sanitization.json` has no text in it; `cleaned.txt` and `removed.txt`, which have, can be read by nobody but
        their owner. The latter are not written for samples that are not texts.

        Raises:
            ArgumentError: The directory has one of these files already.
        """
        home = Path(directory)
        check_new(home)
        written = []
        if self.samples.are_texts:
            cleaned = self.cleaned
            content = cleaned if isinstance(cleaned, str) else "".join(f"{item}\n" for item in cleaned)
            removed = "".join(f"{self.samples.items[sample]}\n" for sample in self.to_remove())
            for name, text in ((CLEANED, content), (REMOVED, removed)):
                write_whole(home / name, text, private=True)
                written.append(home / name)
        write_json(home / SCORES, self.to_dict())
        return [*written, home / SCORES]


def check_new(directory: Path, argument: str = "directory") -> None:
    """Refuse a directory that holds a sanitization already.

    Raises:
        ArgumentError: It does.
    """
    if directory.exists() and not directory.is_dir():
        raise ArgumentError(f"{argument} is {str(directory)!r}, a file; expected a new directory. Name another one.")
    there = [name for name in (CLEANED, REMOVED, SCORES) if (directory / name).exists()]
    if there:
        raise ArgumentError(
            f"{argument} is {str(directory)!r}, which has {', '.join(there)} in it; expected a directory without, "
            "because nothing is overwritten. Name another one."
        )
