"""By which rules a tokenizer of Hugging Face spells the texts of a format, read off its file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lightning_exposure.errors import TokenizerError
from lightning_exposure.secrets.formats.graph import steps_behind
from lightning_exposure.tokenization._spelling_rules import SpellingRules
from lightning_exposure.tokenization.canonical.bpe import MergeRule
from lightning_exposure.tokenization.canonical.rule import MakeRule
from lightning_exposure.tokenization.canonical.unigram import SegmentationRule, scores_of
from lightning_exposure.tokenization.canonical.wordpiece import LongestMatchRule
from lightning_exposure.tokenization.graphs.bytes import WORD_MARK
from lightning_exposure.tokenization.graphs.pretoken_cuts import PretokenCuts, find_pretoken_cuts
from lightning_exposure.tokenization.graphs.texts import Texts, fixed_part
from lightning_exposure.tokenization.huggingface._added_tokens import AddedToken, CutTexts, find_matches, fold, matters
from lightning_exposure.tokenization.huggingface._alike_characters import alike_characters
from lightning_exposure.tokenization.huggingface._pieces import fallback_of
from lightning_exposure.tokenization.huggingface._tokenizer_file import TokenizerFile
from lightning_exposure.tokenization.huggingface._tokenizer_json import added_tokens
from lightning_exposure.tokenization.protocol import Pieces

_GRIDS = (0.1, 0.01, 1e-7)
"""How exactly the competitors of a path are remembered in a Unigram model, in natural logarithms."""


def rules_of(file: TokenizerFile, texts: Texts, fixed: int) -> Iterator[SpellingRules]:
    """The ways in which a tokenizer may spell some texts, the one that is known best first.

    Args:
        file: The tokenizer's file.
        texts: The texts.
        fixed: How many characters all texts begin with.
    """
    if file.writing is None:
        return
    marked = file.writing.marked
    cuts = cuts_of(file, texts, fixed)
    if cuts is not None:
        canonical = partial(_canonical, file=file)
        yield SpellingRules(texts, _occurring(file.all_pieces, texts, file), cuts, marked, canonical)
    cut = _with_signs(texts, fixed, file)
    yield SpellingRules(cut, _occurring(_signed(file, cut), texts, file), cuts, marked)


def may_hold_added_tokens(file: TokenizerFile, texts: Texts, fixed: int) -> bool:
    """Whether some texts have an added token behind the characters that all of them begin with, or over their end."""
    return matters(find_matches(texts, file.added), fixed_part(texts, fixed)[1])


def cuts_of(file: TokenizerFile, texts: Texts, fixed: int) -> PretokenCuts | None:
    """Where texts are cut into pre-tokens; None if that is not known, or they may contain added tokens."""
    if may_hold_added_tokens(file, texts, fixed):
        return None
    characters = {character for state in range(len(texts)) for character in texts.edges(state)}

    def misleads(shape: str) -> bool:
        # The letter that stands for all letters may make an added token of what is none.
        return any(_looks_like(token, shape, fixed) for token in file.added)

    return find_pretoken_cuts(texts, fixed, file, alike_characters(file.config, characters), misleads)


def _canonical(pieces: Pieces, characters: set[str], *, file: TokenizerFile) -> tuple[Pieces, list[MakeRule]]:
    """The pieces that may occur in texts of some characters, and the rules for canonical paths.

    Characters without a token of their own become single bytes in a BPE model. What else may become of them, in other
    models, is left open.
    """
    config = file.config
    missing = _missing(characters, file)
    # Added tokens do not occur: where they may, the cuts are not known.
    absent = {*added_tokens(config)}
    pieces = [None if token in absent else piece for token, piece in enumerate(pieces)]
    kind = config["model"]["type"]
    if kind == "WordPiece":
        return pieces, [LongestMatchRule]
    if kind == "BPE" and (not missing or fallback_of(config)):
        return pieces, [partial(MergeRule, table=file.merges)]
    if kind == "Unigram" and not missing:
        scores = scores_of(config["model"])
        return pieces, [partial(SegmentationRule, scores=scores, grid=grid) for grid in _GRIDS]
    return pieces, []


def _looks_like(token: AddedToken, shape: str, fixed: int) -> bool:
    """Whether a shape has an added token behind the fixed part or over its end."""
    if not token.folded:
        return shape.find(token.content, max(0, fixed - len(token.content) + 1)) >= 0
    return token.content in fold(shape[max(0, fixed - len(token.content) + 1) :])


def _missing(characters: set[str], file: TokenizerFile) -> set[str]:
    """The characters that the vocabulary lacks."""
    assert file.writing is not None
    symbols = file.writing.symbols
    return {character for character in characters if not file.strings.issuperset(symbols(character))}


def _occurring(pieces: Pieces, texts: Texts, file: TokenizerFile) -> Pieces:
    """Without the tokens for single bytes of which no character is made that the vocabulary lacks."""
    fallback = fallback_of(file.config)
    if not fallback:
        return pieces
    needed = {byte for character in _missing(steps_behind(texts), file) for byte in character.encode()}
    absent = {token for token, byte in fallback.items() if byte not in needed}
    return [None if token in absent else piece for token, piece in enumerate(pieces)]


def _with_signs(texts: Texts, fixed: int, file: TokenizerFile) -> Texts:
    """Texts with edges for the added tokens that may stand in them, if they make a difference and can be told apart."""
    if not may_hold_added_tokens(file, texts, fixed):
        return texts
    try:
        return CutTexts(texts, file.added, file.config)
    except TokenizerError:
        return texts  # what is missing then is found when secrets are looked up


def _signed(file: TokenizerFile, texts: Texts) -> Pieces:
    """What each token adds to texts, in which added tokens are signs."""
    if not isinstance(texts, CutTexts):
        return file.all_pieces
    pieces = list(file.all_pieces)
    mark = bytes([WORD_MARK]) if file.writing is not None and file.writing.marked else b""
    for token, sign in texts.signs.items():
        pieces[token] = mark + sign.encode()
    return pieces
