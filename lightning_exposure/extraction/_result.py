"""`Extraction`: what an attack found, and how it is written down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lightning_exposure._files import Field, read_json, write_json
from lightning_exposure._html import html_table
from lightning_exposure.secrets import Redaction, SecretFormat
from lightning_exposure.secrets.masking import masked_repr

_VERSION = 1

_BEGINNINGS, _SECRETS = ("known", "starting_with"), ("target",)
"""Settings that are how a secret begins, and those that are one."""

CERTAIN = "the tree was counted: it holds every secret once"
"""What a proof rests on where it is known that no secret is missing."""


@dataclass(frozen=True)
class Candidate:
    """A secret that an attack found.

    Attributes:
        text: The whole text, prompt included.
        bits: Its log-perplexity.
        order: 1 for the most likely candidate, 2 for the next, ...
    """

    text: str
    bits: float
    order: int

    def __repr__(self) -> str:
        """Without the secret."""
        return masked_repr(self, "text")


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
        walks_until_target: Sampling with a target only: which walk reached it first; None if none did.
        rests_on: What `optimal` rests on, in a sentence: a proof is about the secrets that are in the tree, so that it
            matters how it is known that all of them are. Empty if nothing is proven.
        format: What was looked for; None: not known, for example because it was read from a file.
    """

    candidates: tuple[Candidate, ...]
    optimal: bool
    lower_bound: float
    ended_by: str
    expansions: int
    seconds: float
    algorithm: str
    settings: Mapping[str, Any] = field(repr=False)
    walks_until_target: int | None = None
    rests_on: str = ""
    format: SecretFormat | None = field(default=None, repr=False, compare=False)

    def redacted(self, redaction: Redaction, format: SecretFormat | None = None) -> Extraction:
        """The same, with the candidates, and what the attacker knew, as they are to be shown.

        Args:
            redaction: What is shown in full: of candidates on this machine, those that are canaries.
            format: What was looked for; None: as `format` says.

        Example:
            >>> found = Extraction((Candidate("pin 1234", 3.0, 1),), False, 0.0, "width", 9, 0.1, "beam", {})
            >>> found.redacted(Redaction(), SecretFormat("pin ####")).candidates[0].text.startswith("pin ••••")
            True
        """
        format = self.format if format is None else format
        shown = (replace(candidate, text=redaction.text(candidate.text, format)) for candidate in self.candidates)
        settings = dict(self.settings)
        for names, show in ((_BEGINNINGS, redaction.beginning), (_SECRETS, redaction.text)):
            settings |= {name: show(settings[name], format) for name in names if isinstance(settings.get(name), str)}
        return replace(self, candidates=tuple(shown), settings=settings)

    def _repr_html_(self) -> str:
        """For notebooks, without the secrets: they are shared."""
        proof = "proven to be the likeliest" if self.optimal else f"not proven: ended by {self.ended_by}"
        title = f"{self.algorithm}: {proof}; {self.expansions:,} expansions"
        rows = [
            (candidate.order, candidate.text, f"{candidate.bits:.2f}")
            for candidate in self.redacted(Redaction()).candidates
        ]
        return html_table(title, rows, columns=("#", "candidate", "bits"))

    def to_dict(self) -> dict[str, Any]:
        """All attributes but the format as they are, the secrets too; `redacted` first where they must not be read."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "format"}
        return {
            "version": _VERSION,
            **content,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "extraction") -> Extraction:
        """Make what `to_dict` described.

        Args:
            content: What `to_dict` gave.
            source: Where it comes from; messages begin with it.

        Raises:
            ManifestError: A field is missing or wrong; names it.
        """
        return _from_field(Field(source, dict(content) if isinstance(content, Mapping) else content))

    def save(self, path: str | os.PathLike[str], *, reveal: bool = False) -> None:
        """Write a JSON file in one step, which nobody but its owner may read; an existing file is replaced.

        Args:
            path: The file.
            reveal: Whether to write the candidates in full; otherwise they are masked.
        """
        write_json(path, self.redacted(Redaction(reveal=reveal)).to_dict(), private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Extraction:
        """Read what `save` wrote.

        Raises:
            ManifestError: It is not such a file; names the file and the field that is wrong.
        """
        return _from_field(read_json(path))


def _from_field(field: Field) -> Extraction:
    field["version"].only(_VERSION)
    walks = field["walks_until_target"].optional()
    return Extraction(
        candidates=tuple(
            Candidate(item["text"].as_(str), item["bits"].number(), item["order"].count())
            for item in field["candidates"].items()
        ),
        optimal=field["optimal"].as_(bool),
        lower_bound=field["lower_bound"].number(),
        ended_by=field["ended_by"].as_(str),
        expansions=field["expansions"].count(),
        seconds=field["seconds"].number(),
        algorithm=field["algorithm"].as_(str),
        settings=field["settings"].as_(dict),
        walks_until_target=None if walks is None else walks.count(),
        rests_on=field["rests_on"].as_(str),
    )
