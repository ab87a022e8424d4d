"""`Extraction`: what an attack found, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_exposure._html import html_table
from lightning_exposure.errors import ManifestError

_VERSION = 1

CERTAIN = "the tree was counted: it holds every secret once"
"""What a proof rests on where it is known that no secret is missing."""


@dataclass(frozen=True)
class Candidate:
    """A secret that an attack came up with.

    Attributes:
        text: The whole text, prompt included.
        bits: Its log-perplexity.
        order: 1 for the most likely candidate, 2 for the next, ...
    """

    text: str
    bits: float
    order: int


@dataclass(frozen=True)
class Extraction:
    """What an attack found.

    Attributes:
        candidates: The secrets, most likely first.
        optimal: Whether it is proven that no other secret of the format is more likely than these.
        lower_bound: No secret that is not among the candidates costs less than this many bits; 0 says nothing.
        ended_by: What ended the attack: "proof", "expansions", "seconds", "memory", "paper", "width", "samples" or
            "interrupt".
        expansions: How many nodes the model read.
        seconds: How long it took.
        algorithm: Which attack.
        settings: What it was called with.
        walks_until_target: Sampling with a target only: which walk came to it first; None if none did.
        rests_on: What `optimal` rests on, in a sentence: a proof is about the secrets that are in the tree, so that it
            matters how it is known that all of them are. Empty if nothing is proven.
    """

    candidates: tuple[Candidate, ...]
    optimal: bool
    lower_bound: float
    ended_by: str
    expansions: int
    seconds: float
    algorithm: str
    settings: Mapping[str, Any]
    walks_until_target: int | None = None
    rests_on: str = ""

    def _repr_html_(self) -> str:
        """For notebooks."""
        proof = "proven to be the likeliest" if self.optimal else f"not proven: ended by {self.ended_by}"
        title = f"{self.algorithm}: {proof}; {self.expansions:,} expansions"
        rows = [(candidate.order, candidate.text, f"{candidate.bits:.2f}") for candidate in self.candidates]
        return html_table(title, rows, columns=("#", "candidate", "bits"))

    def to_dict(self) -> dict[str, Any]:
        """All attributes, for JSON."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            "version": _VERSION,
            **content,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "extraction") -> Extraction:
        """What `to_dict` gave.

        Raises:
            ManifestError: A field is missing or the version is unknown; names the source and the field.
        """
        if content.get("version") != _VERSION:
            raise ManifestError(f"{source}: version is {content.get('version')!r}; expected {_VERSION}.")
        content = {"rests_on": "", **content}  # older files do not have it
        missing = [name for name in cls.__dataclass_fields__ if name not in content]
        if missing:
            raise ManifestError(f"{source}: the field {missing[0]!r} is missing; write the file again with save().")
        fields = {name: content[name] for name in cls.__dataclass_fields__}
        try:
            fields["candidates"] = tuple(Candidate(**candidate) for candidate in content["candidates"])
        except TypeError as error:
            raise ManifestError(f"{source}: candidates is not a list of candidates ({error}).") from error
        return cls(**fields)

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Extraction:
        """Read a file that `save` wrote.

        Raises:
            ManifestError: It is not one; names the file and the field.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: not a JSON file ({error}); expected one that save() wrote.") from error
        if not isinstance(content, dict):
            raise ManifestError(f"{path}: holds {type(content).__name__}; expected an object that save() wrote.")
        return cls.from_dict(content, str(path))
