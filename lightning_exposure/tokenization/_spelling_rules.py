"""How the tokens of a tokenizer spell the texts of a format: the ways that may fit, the best one first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lightning_exposure.secrets.formats.graph import steps_behind
from lightning_exposure.tokenization.canonical.rule import MakeRule
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.pretoken_cuts import PretokenCuts, find_pretoken_cuts
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.protocol import (
    HasAddedTokens,
    HasAlikeCharacters,
    HasCuts,
    HasPieces,
    HasSpellingRules,
    Pieces,
    Tokenizer,
    capability,
)


@dataclass(frozen=True)
class SpellingRules:
    """One way in which tokens spell texts.

    Attributes:
        texts: The texts, with edges for the added tokens that may stand in them.
        pieces: What each token adds to a text.
        cuts: Where the texts are cut into pre-tokens; None: not known.
        marked: Whether the tokens drop spaces, and those that begin a word have a mark.
        canonical: Given the pieces and the characters of some texts, the pieces that may occur in them and the rules
            for canonical paths; None: nothing is known of what is canonical.
    """

    texts: Texts
    pieces: Pieces
    cuts: PretokenCuts | None = None
    marked: bool = False
    canonical: Callable[[Pieces, set[str]], tuple[Pieces, list[MakeRule]]] | None = None

    def as_bytes(self, texts: Texts) -> ByteTexts:
        """Texts as tokens spell them: these, or a part of them with a known beginning.

        Raises:
            TokenizerError: Without spaces, which tokens drop, texts cannot be told apart.
        """
        return ByteTexts(texts, self.cuts, marked=self.marked)

    def for_characters(self, characters: set[str]) -> tuple[Pieces, list[MakeRule]]:
        """The pieces that may occur in texts of some characters, and the rules for canonical paths in them.

        If there are several rules, each leaves out more paths than the one before, and has more places.
        """
        return (self.pieces, []) if self.canonical is None else self.canonical(self.pieces, characters)


def spelling_rules(tokenizer: Tokenizer, texts: Texts, fixed: int, anchor: int) -> Iterator[SpellingRules]:
    """The ways in which a tokenizer may spell some texts, the one that is known best first.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        fixed: How many characters all texts begin with.
        anchor: A token that a text may begin with.
    """
    knows_rules = capability(tokenizer, HasSpellingRules)
    if knows_rules is not None:
        yield from knows_rules.spelling_rules(texts, fixed)
        yield SpellingRules(texts, _decoded(tokenizer, anchor))
        return
    cuts = _cuts(tokenizer, texts, fixed)
    knows_pieces = capability(tokenizer, HasPieces)
    if knows_pieces is not None:
        yield SpellingRules(texts, knows_pieces.pieces(), cuts)
    decoded = _decoded(tokenizer, anchor)
    if cuts is not None:
        yield SpellingRules(texts, decoded, cuts)
    yield SpellingRules(texts, decoded)


def _cuts(tokenizer: Tokenizer, texts: Texts, fixed: int) -> PretokenCuts | None:
    """Where texts are cut; None if the tokenizer does not tell."""
    cutter = capability(tokenizer, HasCuts)
    if cutter is None:
        return None
    knows_alike = capability(tokenizer, HasAlikeCharacters)
    alike = {} if knows_alike is None else knows_alike.alike(steps_behind(texts))
    return find_pretoken_cuts(texts, fixed, cutter, alike)


def _decoded(tokenizer: Tokenizer, anchor: int) -> Pieces:
    """The text each token adds after another one.

    Not `decode([token])`: many tokenizers put a space between tokens, or drop the one at the beginning of a text.
    """
    before = tokenizer.decode([anchor])
    pieces: list[bytes | None] = []
    has_added = capability(tokenizer, HasAddedTokens)
    for token in range(tokenizer.vocab_size if has_added is None else has_added.number_of_ids()):
        both = tokenizer.decode([anchor, token])
        whole = both.startswith(before) and "\ufffd" not in both
        pieces.append(both[len(before) :].encode() if whole else None)
    return pieces
