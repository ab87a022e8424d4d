"""`CanarySet`: the canaries of one experiment."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from lightning_exposure._checks import OutOfRangeError, UnknownIdError, instance, refusal, whole_number
from lightning_exposure._files import Field, read_json, write_json
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets.canaries._manifest import canaries_from_field, canaries_to_dict
from lightning_exposure.secrets.canaries.canary import Canary, Purpose, check_holdout, first_duplicate
from lightning_exposure.secrets.formats.drawing import Seed, generator_from
from lightning_exposure.secrets.formats.format import SecretFormat

__all__ = ["Canary", "CanarySet"]


class CanarySet(Sequence[Canary]):
    """An immutable sequence of canaries with different ids and different texts.

    Example:
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 4], seed=0)
        >>> [canary.id for canary in canaries]
        ['ssn-1x', 'ssn-4x', 'ssn-4x-2']
        >>> canaries["ssn-4x"] is canaries[1]
        True
    """

    _canaries: tuple[Canary, ...]
    _by_id: dict[str, Canary]

    def __init__(self, canaries: Iterable[Canary]) -> None:
        """Collect canaries; ArgumentError if two have the same id or the same text."""
        collected = tuple(canaries)
        for place, canary in enumerate(collected):
            remedy = "Make one with Canary(id, text, format, repetitions)."
            instance(f"canaries[{place}]", canary, Canary, "a Canary", remedy)
        for key in ("id", "text"):
            duplicate = first_duplicate([getattr(canary, key) for canary in collected])
            if duplicate is not None:
                first, second = duplicate
                given = repr(collected[second].id) if key == "id" else "a secret"  # which is not quoted
                raise ArgumentError(
                    f"canaries[{second}].{key} is {given}, as canaries[{first}].{key} is; "
                    f"expected a different {key} for every canary. Change one of them."
                )
        self.__dict__.update(_canaries=collected, _by_id={canary.id: canary for canary in collected})

    @classmethod
    def draw(
        cls,
        formats: SecretFormat | Iterable[SecretFormat],
        *,
        repetitions: Sequence[int],
        seed: Seed = 0,
        holdout: float = 0.0,
        purpose: Purpose = "exposure",
    ) -> CanarySet:
        """Draw, for every format, one random secret for every number of repetitions.

        The ids say the format's name and the repetitions; they do not depend on the seed. The secrets of a seed are
        the same with and without a holdout.

        Args:
            formats: One format, or several different ones.
            repetitions: How often each canary of a format is inserted; 0 makes a control.
            seed: An integer, a `random.Random` or a `numpy.random.Generator`.
            holdout: The probability with which each canary, by a coin of its own, is left out of the training data.
                An audit needs fair coins: 0.5.
            purpose: What they are for: "audit" makes canaries that `AuditCallback` takes, and exposure refuses.

        Example:
            >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1] * 100, seed=0, holdout=0.5)
            >>> len(canaries.inserted), len(canaries.held_out)
            (49, 51)
        """
        listed = _listed_formats(formats)
        counts = _listed_repetitions(repetitions)
        holdout = check_holdout(holdout)
        # One stream for all formats: starting each from the same seed would give formats of equal size
        # canaries with equal numbers.
        generator = generator_from(seed)
        times_used: Counter[str] = Counter()
        canaries: list[Canary] = []
        for format_ in listed:
            # Two formats may share texts, for example if they differ only in name.
            taken = [canary.text for canary in canaries if format_.fits(canary.text)]
            for text, count in zip(format_.sample(len(counts), generator, exclude=taken), counts, strict=True):
                identifier = f"{format_.name}-{count}x"
                times_used[identifier] += 1
                if times_used[identifier] > 1:
                    identifier += f"-{times_used[identifier]}"
                canaries.append(Canary(identifier, text, format_, count, purpose=purpose))
        if not holdout:
            return cls(canaries)
        # The coins come from a stream of their own, begun after the last secret was drawn.
        coins = random.Random(generator.getrandbits(128))
        return cls(canary.replace(held_out=coins.random() < holdout, holdout=holdout) for canary in canaries)

    def __setattr__(self, attribute: str, value: object) -> None:
        """Refuse: a canary set is immutable."""
        raise AttributeError(f"{attribute}: a CanarySet cannot be changed; make a new one.")

    @overload
    def __getitem__(self, key: int | str, /) -> Canary: ...
    @overload
    def __getitem__(self, key: slice, /) -> CanarySet: ...
    def __getitem__(self, key: int | str | slice, /) -> Canary | CanarySet:
        """Return the canary at a position or with an id, or the set of those in a slice."""
        if isinstance(key, slice):
            return type(self)(self._canaries[key])
        if isinstance(key, str):
            if key not in self._by_id:
                raise refusal("id", key, f"one of {', '.join(self._by_id)}", error=UnknownIdError)
            return self._by_id[key]
        position = whole_number("position", key)
        if not -len(self) <= position < len(self):
            raise refusal("position", position, f"one of the {len(self)} canaries, from 0 on", error=OutOfRangeError)
        return self._canaries[position]

    def __len__(self) -> int:
        """Return the number of canaries."""
        return len(self._canaries)

    def __iter__(self) -> Iterator[Canary]:
        """Go through the canaries in order."""
        return iter(self._canaries)

    def __contains__(self, item: object) -> bool:
        """Whether a canary, or a canary with this id, is in the set."""
        return item in self._by_id if isinstance(item, str) else item in self._canaries

    def __eq__(self, other: object) -> bool:
        """Sets are equal if they have equal canaries in the same order."""
        return self._canaries == other._canaries if isinstance(other, CanarySet) else NotImplemented

    def __hash__(self) -> int:
        """Equal sets have equal hashes."""
        return hash(self._canaries)

    def __repr__(self) -> str:
        """Show the ids; the texts are secrets and stay out of logs."""
        return f"<CanarySet of {len(self)}: {', '.join(self._by_id)}>"

    def __reduce__(self) -> tuple[type[CanarySet], tuple[tuple[Canary, ...]]]:
        """Pickle the canaries."""
        return type(self), (self._canaries,)

    @property
    def texts(self) -> tuple[str, ...]:
        """The secrets, in order."""
        return tuple(canary.text for canary in self._canaries)

    @property
    def inserted(self) -> CanarySet:
        """Those that belong in the training data at least once."""
        return type(self)(canary for canary in self._canaries if canary.copies)

    @property
    def held_out(self) -> CanarySet:
        """Those that are left out of the training data, to compare the others with."""
        return type(self)(canary for canary in self._canaries if canary.held_out)

    @property
    def for_exposure(self) -> CanarySet:
        """Those whose exposure can be measured; without the ones that were made for an audit."""
        return type(self)(canary for canary in self._canaries if canary.purpose == "exposure")

    @property
    def for_audit(self) -> CanarySet:
        """Those that were made for an audit, and for nothing else."""
        return type(self)(canary for canary in self._canaries if canary.purpose == "audit")

    def refuse_made_for_audits(self) -> None:
        """Refuse if there are canaries that were made for an audit: exposure would say nothing about them.

        Raises:
            ArgumentError: There are; names them.
        """
        made = self.for_audit._canaries
        if made:
            more = f" and {len(made) - 3} more" if len(made) > 3 else ""
            raise ArgumentError(
                f"canaries has {', '.join(canary.id for canary in made[:3])}{more}, with purpose='audit'; expected "
                "canaries that were drawn uniformly, because exposure compares them with all others of their format. "
                "Give canaries.for_exposure, and the others to AuditCallback."
            )

    def by_format(self) -> dict[SecretFormat, list[Canary]]:
        """Return the canaries of each format, both in the order of the set."""
        groups: dict[SecretFormat, list[Canary]] = {}
        for canary in self._canaries:
            groups.setdefault(canary.format, []).append(canary)
        return groups

    def to_dict(self) -> dict[str, Any]:
        """Return the set as plain lists, strings and dictionaries, ready for JSON; it is what `save` writes.

        Every format is in it once, and each canary says by number which one is its own.

        Example:
            >>> described = CanarySet.draw(SecretFormat.pin(), repetitions=[4]).to_dict()
            >>> described["formats"][0]["pattern"], described["canaries"][0]["id"]
            ('my pin is ####', 'pin-4x')
        """
        return canaries_to_dict(self._canaries)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "content") -> CanarySet:
        """Make the set that `to_dict` described.

        Args:
            content: What `to_dict` gave.
            source: Where it comes from; messages begin with it.

        Raises:
            ManifestError: A field is missing or wrong; names it.

        Example:
            >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4])
            >>> CanarySet.from_dict(canaries.to_dict()) == canaries
            True
        """
        return canaries_from_field(cls, Field(source, dict(content) if isinstance(content, Mapping) else content))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file in one step, which nobody but its owner may read; an existing file is replaced."""
        write_json(path, self.to_dict(), private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CanarySet:
        """Read what `save` wrote.

        Raises:
            ManifestError: It is not such a file; names the file and the field that is wrong.
        """
        return canaries_from_field(cls, read_json(path))


def _listed_formats(formats: SecretFormat | Iterable[SecretFormat]) -> list[SecretFormat]:
    expected = "a SecretFormat or a list of different ones"
    if not isinstance(formats, SecretFormat | Iterable) or isinstance(formats, str):
        raise refusal("formats", formats, expected, f"Make one with SecretFormat({str(formats)!r}).")
    listed = [formats] if isinstance(formats, SecretFormat) else list(formats)
    if not listed:
        raise refusal("formats", listed, expected, "Give at least one.")
    for place, format_ in enumerate(listed):
        instance(f"formats[{place}]", format_, SecretFormat, expected, "Make one with SecretFormat(pattern).")
        if format_ in listed[:place]:
            raise refusal(
                f"formats[{place}]", format_, "every format once", "For more canaries, make `repetitions` longer."
            )
    return listed


def _listed_repetitions(repetitions: Sequence[int]) -> list[int]:
    expected = "a list of integers such as [1, 4, 16]"
    if isinstance(repetitions, str) or not isinstance(repetitions, Iterable):
        raise refusal("repetitions", repetitions, expected, f"Write [{repetitions}] for one canary.")
    counts = [whole_number(f"repetitions[{place}]", count, at_least=0) for place, count in enumerate(repetitions)]
    if not counts:
        raise refusal("repetitions", counts, expected, "Each entry makes one canary.")
    return counts
