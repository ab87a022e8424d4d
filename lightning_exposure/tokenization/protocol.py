"""What a tokenizer is to this library, and what it may be able to do beyond that.

Anything with `encode`, `decode` and `vocab_size` is a `Tokenizer`. For whatever else would be good to know, the library
asks with `capability`: by what is needed, and never by the class of the tokenizer.

- `HasBatches`: spells many texts at once, which is faster;
- `HasSpans`: tells which characters each token covers;
- `HasPieces`: tells what each token adds to a text;
- `HasCuts`: tells where texts are cut before tokens are looked for.

A tokenizer of your own has a capability if it has the methods. None of them is needed, and none is believed blindly:
spellings are compared with `encode`, and a tree that does not hold every secret is refused. The other protocols of this
module are for tokenizers that put something around texts, cut tokens out of them, or know by which rules they spell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from lightning_exposure.tokenization._spelling_rules import SpellingRules
    from lightning_exposure.tokenization.graphs.texts import Stretch, Texts

Pieces = Sequence[bytes | None]
"""What each token adds to a text, by token id; None or nothing for a token that is no part of a text."""

_Capability = TypeVar("_Capability")


@runtime_checkable
class Tokenizer(Protocol):
    """What the library asks of a tokenizer. Hugging Face's and ours both fit."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are: ids run from 0 to `vocab_size - 1`."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of some token ids."""
        ...


class Span(NamedTuple):
    """A token, and which characters it covers of the text with what stands before it."""

    token: int
    start: int
    end: int


@runtime_checkable
class HasBatches(Protocol):
    """Spells many texts at once."""

    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
        """The token ids of each text, as `encode` gives them."""
        ...


@runtime_checkable
class HasSpans(Protocol):
    """Tells which characters each token of a text covers."""

    def spans(self, text: str, /) -> Sequence[tuple[int, int, int]]:
        """The tokens of a text as `encode` gives them, each with where it starts and ends (a `Span`).

        Positions are counted from the first character of what stands before the text (`HasSurroundings`), if anything
        does. Special tokens before the text cover nothing: (token, 0, 0).
        """
        ...


@runtime_checkable
class HasBeginnings(Protocol):
    """Spells a text that is not ended yet: what always stands behind a text is left out."""

    def spans_of_beginning(self, text: str, /) -> Sequence[tuple[int, int, int]]:
        """The tokens of a beginning, with what stands before it, each with where it starts and ends as in `spans`."""
        ...


@runtime_checkable
class HasPieces(Protocol):
    """Tells what each token adds to a text, wherever it stands."""

    def pieces(self) -> Pieces:
        """The UTF-8 bytes of each token, by token id; None for a token that is no part of a text."""
        ...


@runtime_checkable
class HasCuts(Protocol):
    """Tells where a text is cut before tokens are looked for: no token reaches over a cut."""

    def cuts(self, texts: Sequence[str], /) -> Sequence[set[int]] | None:
        """For each text, the positions before which a pre-token begins or behind which one ends; None: unknown."""
        ...


@runtime_checkable
class HasAlikeCharacters(Protocol):
    """Tells which characters make no difference to where texts are cut, so that few texts show the cuts of many."""

    def alike(self, characters: set[str], /) -> Mapping[str, str]:
        """Characters that the cuts of texts do not tell apart, each with the one that stands for its kind.

        Args:
            characters: Those that the texts are made of.
        """
        ...


@runtime_checkable
class HasSurroundings(Protocol):
    """Puts something before every text."""

    @property
    def lead(self) -> Sequence[int]:
        """The special tokens before a text."""
        ...

    @property
    def before(self) -> str:
        """The characters before a text, such as those of a chat template."""
        ...


@runtime_checkable
class HasOwnCheck(Protocol):
    """Can tell whether it spells texts as the tokenizer that it stands for."""

    def check_spelling(self, text: str, /) -> None:
        """Compare the two.

        Raises:
            TokenizerError: They differ.
        """
        ...


@runtime_checkable
class HasSpellingRules(Protocol):
    """Knows by which rules it spells: more than pieces and cuts tell."""

    def spelling_rules(self, texts: Texts, fixed: int, /) -> Iterator[SpellingRules]:
        """The ways in which it may spell some texts, the one that is known best first.

        Args:
            texts: The texts.
            fixed: How many characters all texts begin with.
        """
        ...


@runtime_checkable
class HasAddedTokens(Protocol):
    """Cuts some tokens out of a text before all else."""

    def number_of_ids(self) -> int:
        """How many token ids there are, with those of special tokens that no text is expected to have."""
        ...

    def added_tokens_in(self, texts: Texts, /) -> Sequence[Stretch]:
        """Everywhere that such a token may stand in the texts, with the spaces that it may swallow."""
        ...

    def may_hold_added_tokens(self, texts: Texts, fixed: int, /) -> bool:
        """Whether some texts have one behind the characters that all of them begin with, or over their end."""
        ...

    def holds_all_of(self, text: str, tokens: Sequence[int], /) -> bool:
        """Whether tokens hold all of a text: nothing unknown, nothing changed but spaces that are swallowed."""
        ...


@runtime_checkable
class OffersCapabilities(Protocol):
    """Has methods that not every object of its class can answer: a wrapper, for what it wraps."""

    def offers(self, kind: type, /) -> bool:
        """Whether this object has a capability."""
        ...


def capability(tokenizer: object, kind: type[_Capability]) -> _Capability | None:
    """A tokenizer as something that has a capability; None if it has not.

    Example:
        >>> from lightning_exposure import CharTokenizer
        >>> tokenizer = CharTokenizer.from_text("pin 0123")
        >>> capability(tokenizer, HasSpans) is None
        True
        >>> capability(tokenizer, HasPieces).pieces()[1]
        b'0'
    """
    if not isinstance(tokenizer, kind):
        return None
    if isinstance(tokenizer, OffersCapabilities) and not tokenizer.offers(kind):
        return None
    return tokenizer


class TextSurroundings(NamedTuple):
    """What stands before every text."""

    lead: list[int]
    """Special tokens."""
    before: str
    """Characters."""


def surroundings_of(tokenizer: object) -> TextSurroundings:
    """What a tokenizer puts before every text: nothing, unless it says so."""
    found = capability(tokenizer, HasSurroundings)
    return TextSurroundings([], "") if found is None else TextSurroundings(list(found.lead), found.before)
