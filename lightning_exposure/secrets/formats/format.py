"""`SecretFormat`: a finite set of texts, numbered, described by a pattern."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from lightning_exposure._checks import SAFE_NAME, OutOfRangeError, refusal, slug, whole_number
from lightning_exposure._registry import Registry
from lightning_exposure.errors import ArgumentError, FormatError, SecretError
from lightning_exposure.secrets.formats._ambiguity import find_ambiguity
from lightning_exposure.secrets.formats._checksum import CHECKSUMS
from lightning_exposure.secrets.formats._numbering import Numbering
from lightning_exposure.secrets.formats._reading import Reader
from lightning_exposure.secrets.formats.acceptor import Acceptor, build_acceptor
from lightning_exposure.secrets.formats.drawing import Seed, distinct_integers, generator_from
from lightning_exposure.secrets.formats.graph import accepts
from lightning_exposure.secrets.formats.misfits import misfit
from lightning_exposure.secrets.formats.pattern import RESERVED_NAMES, Slot, check_words, parse

_SHOWN_WORDS = 6


class _WithNamedFormats(type):
    """Makes every named format a constructor: `SecretFormat.ssn()` asks the registry for "ssn"."""

    def __getattr__(cls, name: str) -> Callable[..., SecretFormat]:
        named = _named_formats()
        if name.startswith("_") or name not in named:
            raise AttributeError(
                f"SecretFormat has no attribute {name!r}; expected one of its methods, or a named format: "
                f"{', '.join(named.names())}."
            )
        return named.get(name)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *_named_formats().names()]


def _named_formats() -> Registry[Callable[..., SecretFormat]]:
    # Their files need the class below, so that they can only be imported once it is there.
    from lightning_exposure.secrets.formats.named import NAMED_FORMATS

    return NAMED_FORMATS


class SecretFormat(metaclass=_WithNamedFormats):
    r"""All the secrets that look alike, such as ``"my ssn is ###-##-####"``.

    ``#`` is a digit, ``?`` a lower-case letter, ``{city}`` one of the strings given as ``city=[...]``;
    ``\#``, ``\?``, ``\{`` and ``\\`` stand for the characters themselves. A format never has two fillings
    with the same text. It is immutable and hashable.

    Well-known formats have names: ``SecretFormat.ssn()``, ``.pin()``, ``.credit_card()`` and whatever else is
    registered in `NAMED_FORMATS`.

    Attributes:
        pattern: The pattern as given.
        words: The word lists, by name.
        checksum: None, or "luhn".
        name: A short name, safe as a part of a metric's name.

    Example:
        >>> pet = SecretFormat("my {pet} is called ???", pet=["cat", "dog"])
        >>> pet.size
        35152
        >>> pet.render(0), pet.index("my dog is called zzz")
        ('my cat is called aaa', 35151)
        >>> pet.name
        'my'
    """

    pattern: str
    words: Mapping[str, tuple[str, ...]]
    checksum: str | None
    name: str
    _slots: tuple[Slot, ...]

    def __init__(
        self,
        pattern: str,
        /,
        *,
        checksum: str | None = None,
        name: str | None = None,
        **word_lists: Sequence[str],
    ) -> None:
        """Make a format; FormatError if the pattern and its word lists do not fit together.

        Args:
            pattern: Literal text with blanks in it.
            checksum: "luhn" if the last ``#`` is the Luhn check digit of the other ``#``.
            name: A short name of ``a-z 0-9 . _ -``; without it, one is made from the prompt.
            **word_lists: The strings for each ``{...}`` in the pattern.
        """
        # First these two, for they may hold a word list that was meant for {name} or {checksum}.
        check_name(name)
        _check_checksum(checksum)
        words = {key: check_words(key, word_lists[key]) for key in sorted(word_lists)}
        slots = parse(pattern, words)
        _check_digits(checksum, slots)
        self.__dict__.update(pattern=pattern, words=MappingProxyType(words), checksum=checksum, _slots=slots)
        self.__dict__.update(name=slug(self.prompt) if name is None else name)
        self._refuse_ambiguity()

    def __setattr__(self, attribute: str, value: object) -> None:
        """Refuse: a format is immutable."""
        raise AttributeError(f"{attribute}: a SecretFormat cannot be changed; make a new one.")

    def __delattr__(self, attribute: str) -> None:
        """Refuse: a format is immutable."""
        raise AttributeError(f"{attribute}: a SecretFormat cannot be changed; make a new one.")

    # ---- identity -----------------------------------------------------------------------------------------

    @property
    def _key(self) -> tuple[object, ...]:
        return self.pattern, tuple(self.words.items()), self.checksum, self.name

    def __eq__(self, other: object) -> bool:
        """Formats are equal if pattern, word lists, checksum and name are."""
        return self._key == other._key if isinstance(other, SecretFormat) else NotImplemented

    def __hash__(self) -> int:
        """Equal formats have equal hashes."""
        return hash(self._key)

    def __repr__(self) -> str:
        """Show how the format is made, with long word lists cut short."""
        arguments = [repr(self.pattern)]
        if self.checksum is not None:
            arguments.append(f"checksum={self.checksum!r}")
        if self.name != slug(self.prompt):
            arguments.append(f"name={self.name!r}")
        for key, words in self.words.items():
            shown = ", ".join(map(repr, words[:_SHOWN_WORDS]))
            more = f", ... {len(words) - _SHOWN_WORDS} more" if len(words) > _SHOWN_WORDS else ""
            arguments.append(f"{key}=[{shown}{more}]")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what defines the format; the acceptor is made again when it is needed."""
        return type(self).from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Return the format as plain lists, strings and dictionaries, ready for JSON."""
        return {
            "pattern": self.pattern,
            "words": {key: list(words) for key, words in self.words.items()},
            "checksum": self.checksum,
            "name": self.name,
        }

    @classmethod
    def regex(cls, pattern: str, /, *, name: str | None = None) -> SecretFormat:
        r"""All the texts that a regular expression matches as a whole, as long as they are finitely many.

        What all of them begin with is the prompt. ``\d``, ``\w`` and ``\s`` stand for ASCII characters.

        Args:
            pattern: The expression.
            name: A short name of ``a-z 0-9 . _ -``; without it, one is made from the prompt.

        Raises:
            FormatError: It matches infinitely many texts, none, or only one; or it is not regular: it looks ahead or
                back, or refers to a group.

        >>> password = SecretFormat.regex(r"password: [a-z0-9]{6,8}")
        >>> password.size == 36**6 + 36**7 + 36**8
        True
        >>> password.render(0), password.prompt
        ('password: 000000', 'password: ')
        """
        from lightning_exposure.secrets.formats._regex import RegexFormat  # it is a kind of this

        return RegexFormat(pattern, name=name)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], /) -> SecretFormat:
        """Make the format that `to_dict` described.

        >>> ssn = SecretFormat.ssn()
        >>> SecretFormat.from_dict(ssn.to_dict()) == ssn
        True
        """
        if not isinstance(data, Mapping) or "pattern" not in data:
            expected = "a dictionary with a 'pattern', as made by to_dict()"
            raise refusal("data", data, expected, error=FormatError)
        if data.get("kind") == "regex":
            return cls.regex(data["pattern"], name=data.get("name"))
        unknown = sorted(map(str, data.keys() - {"pattern", "words", "checksum", "name"}))
        if unknown:
            raise FormatError(f"data has the keys {unknown}; expected pattern, words, checksum and name. Remove them.")
        words = data.get("words", {})
        if not isinstance(words, Mapping) or any(not isinstance(key, str) or key in RESERVED_NAMES for key in words):
            expected = f"word lists by name, none of them called {' or '.join(RESERVED_NAMES)}"
            raise refusal("words", words, expected, "Rename it.", error=FormatError)
        return cls(data["pattern"], checksum=data.get("checksum"), name=data.get("name"), **words)

    # ---- numbering ----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many secrets there are, exactly."""
        return self._numbering.size

    @cached_property
    def bits(self) -> float:
        """The binary logarithm of `size`: the exposure of the most exposed secret."""
        return math.log2(self.size)  # exact integers of any length are fine here

    @property
    def prompt(self) -> str:
        """The literal text before the first blank."""
        return "" if self._slots[0].is_blank else self._slots[0].choices[0]

    @property
    def masked(self) -> str:
        """What all its secrets look like: every blank hidden, a word whatever its length.

        >>> SecretFormat("{who} has pin ####", who=["Al", "Beatrice"]).masked
        '•••• has pin ••••'
        """
        hidden = {"digit": "•", "letter": "•", "words": "••••"}
        return "".join(hidden[slot.kind] if slot.is_blank else slot.choices[0] for slot in self._slots)

    def render(self, index: int) -> str:
        """Return the secret of a number from 0 to ``size - 1``; the first blank counts most.

        >>> SecretFormat("pin ##").render(42)
        'pin 42'
        """
        number = whole_number("index", index)
        if not 0 <= number < self.size:
            raise OutOfRangeError(
                f"index is {_short(number)}; expected an integer from 0 to {_short(self.size - 1)}. See the format's "
                "size."
            )
        return self._numbering.text_of(number)

    def index(self, text: str) -> int:
        """Return the number of a secret, the inverse of `render`; SecretError says where a text does not fit.

        >>> SecretFormat("##").index("4x")
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.SecretError: text does not fit: position 1 is a lower-case letter, where a digit ...
        """
        return self._numbering.number_of(self.fillings(text))

    def fits(self, text: str) -> bool:
        """Whether a text is a secret of this format."""
        return isinstance(text, str) and accepts(self.acceptor(), text)

    def fillings(self, text: str) -> tuple[str, ...]:
        """Return the strings in the blanks of a secret, the check digit included.

        >>> SecretFormat.ssn().fillings("my ssn is 123-45-6789")
        ('1', '2', '3', '4', '5', '6', '7', '8', '9')
        """
        if not isinstance(text, str):
            remedy = f"Give a text of the format {self.pattern!r}."
            raise refusal("text", text, "a string", remedy, error=SecretError, with_type=True)
        try:
            owners = self._reader.slots_of(text)
        except SecretError:
            problem = misfit(self.acceptor(), text)
            raise SecretError(f"text does not fit: {problem}. Give a text of the format {self.pattern!r}.") from None
        return _gather(text, owners, self._numbering.blanks)

    def alternatives(self, text: str) -> list[frozenset[str]]:
        """Return for each character of a secret those that its blank allows in its place, itself included.

        Outside of blanks that is the character alone. In a word list they are what its words have at that place.

        >>> sorted(SecretFormat("pin #").alternatives("pin 7")[4]) == list("0123456789")
        True
        """
        self.fillings(text)  # a text that does not fit gets its error here
        owners = self._reader.slots_of(text)
        found, offset = [], 0
        for position, (character, owner) in enumerate(zip(text, owners, strict=True)):
            offset = offset + 1 if position and owners[position - 1] == owner else 0
            slot = self._slots[owner]
            same_place = (choice[offset : offset + 1] for choice in slot.choices) if slot.is_blank else ()
            found.append(frozenset({character, *filter(None, same_place)}))
        return found

    def sample(self, n: int, seed: Seed, exclude: Iterable[str] = ()) -> list[str]:
        """Draw `n` different secrets, uniformly and in random order.

        Time and memory grow with `n` and not with the size of the format.

        Args:
            n: How many; at most as many as there are.
            seed: An integer, a `random.Random` or a `numpy.random.Generator`.
            exclude: Secrets of this format that must not be drawn.

        >>> sorted(SecretFormat("#").sample(8, seed=0, exclude=["3", "4"]))
        ['0', '1', '2', '5', '6', '7', '8', '9']
        """
        if isinstance(exclude, str):
            raise refusal("exclude", exclude, "a list of secrets", "Put it in a list.", with_type=True)
        count = whole_number("n", n, at_least=0)
        excluded = {self.index(text) for text in exclude}
        left = self.size - len(excluded)
        if count > left:
            raise ArgumentError(
                f"n is {count}; expected at most {_short(left)}, as the format {self.pattern!r} has "
                f"{_short(self.size)} secrets of which {len(excluded)} are excluded. "
                "Ask for fewer, or widen the format."
            )
        numbers = distinct_integers(count, self.size, generator_from(seed), excluded)
        return [self._numbering.text_of(number) for number in numbers]

    def covering(self) -> list[str]:
        """Return a few secrets in which every choice of every blank occurs.

        >>> SecretFormat("{greeting} #", greeting=["hi", "hello"]).covering()[:3]
        ['hi 0', 'hello 1', 'hi 2']
        """
        return self._numbering.covering()

    def acceptor(self) -> Acceptor:
        """Return the deterministic acceptor of exactly the texts of this format, made once."""
        return self._acceptor

    # ---- inside -------------------------------------------------------------------------------------------

    @cached_property
    def _acceptor(self) -> Acceptor:
        return build_acceptor(self._reader)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._slots, luhn=self.checksum is not None)

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering(self._slots, luhn=self.checksum is not None)

    def _refuse_ambiguity(self) -> None:
        witness = find_ambiguity(self._reader)
        if witness is None:
            return
        one, other = sorted(_gather(witness.text, owners, self._numbering.blanks) for owners in witness.slots)
        raise FormatError(
            f"pattern is {self.pattern!r}, and the fillings {one} and {other} give the same text {witness.text!r}; "
            "expected a different text for every filling. "
            "Put a separator between the blanks, or change the words."
        )


def _gather(text: str, owners: Sequence[int], blanks: Sequence[int]) -> tuple[str, ...]:
    """Return for each blank the characters of `text` that it owns."""
    pieces: dict[int, list[str]] = {place: [] for place in blanks}
    for character, owner in zip(text, owners, strict=True):
        if owner in pieces:
            pieces[owner].append(character)
    return tuple("".join(pieces[place]) for place in blanks)


def check_name(name: object) -> None:
    """Refuse a name that cannot be a part of a metric's name."""
    if name is None:
        return
    if not isinstance(name, str):
        remedy = "A word list needs a name other than 'name'."
        raise refusal("name", name, "the name of the format, a string", remedy, error=FormatError)
    if not SAFE_NAME.fullmatch(name):
        remedy = f"For example name={slug(name)!r}."
        raise refusal("name", name, "only the characters a-z 0-9 . _ -", remedy, error=FormatError)


def _check_checksum(checksum: object) -> None:
    if checksum is not None and checksum not in CHECKSUMS:
        remedy = "Leave it out; a word list needs a name other than 'checksum'."
        raise refusal("checksum", checksum, "None or 'luhn'", remedy, error=FormatError)


def _check_digits(checksum: str | None, slots: Sequence[Slot]) -> None:
    digits = sum(slot.kind == "digit" for slot in slots)
    if checksum is not None and digits < 2:
        raise FormatError(
            f"checksum is {checksum!r}, and the pattern has {digits} '#'; expected at least two, the last of which "
            "is the check digit. Add more '#', or leave out the checksum."
        )


def _short(number: int) -> str:
    """Write a number, or its magnitude if it has more digits than anybody wants to read."""
    if abs(number) < 10**30:
        return str(number)
    return f"about {'-' if number < 0 else ''}2^{math.log2(abs(number)):.1f}"
