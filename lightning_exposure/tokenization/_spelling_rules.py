"""How the tokens of a tokenizer spell the texts of a format: the ways that may fit, the best one first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization._vocabulary import Pieces
from lightning_exposure.tokenization.canonical.bpe import MergeCanon
from lightning_exposure.tokenization.canonical.protocol import MakeCanon
from lightning_exposure.tokenization.canonical.unigram import SegmentationCanon, scores_of
from lightning_exposure.tokenization.canonical.wordpiece import LongestMatchCanon
from lightning_exposure.tokenization.graphs.bytes import MARK
from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.added_tokens import CutTexts, find_matches, matters
from lightning_exposure.tokenization.huggingface.pieces import fallback_of
from lightning_exposure.tokenization.huggingface.pretokens import Joints, find_joints, fixed_part
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer, TokenizerFile
from lightning_exposure.tokenization.huggingface.tokenizer_json import added_tokens, unknown_of, vocabulary_of
from lightning_exposure.tokenization.lines import LineTexts, word_pieces
from lightning_exposure.tokenization.tokenizers import Tokenizer, WordTokenizer

_GRIDS = (0.1, 0.01, 1e-7)
"""How exactly the competitors of a path are remembered in a Unigram model, in natural logarithms."""


@dataclass(frozen=True)
class Lexicon:
    """One way in which tokens spell texts.

    Attributes:
        texts: The texts, with edges for the added tokens that may stand in them.
        pieces: What each token adds to a text.
        joints: Where the texts are cut into pre-tokens; None: not known.
        marked: Whether the tokens drop spaces, and those that begin a word have a mark.
        file: What the tokenizer's file says, if it is used to leave out paths that are not canonical.
    """

    texts: Texts
    pieces: Pieces
    joints: Joints | None = None
    marked: bool = False
    file: TokenizerFile | None = None

    def canons(self, characters: set[str]) -> tuple[Pieces, list[MakeCanon]]:
        """What is known of canonical paths in texts of some characters, and the pieces that may occur in them.

        If there are several canons, each leaves out more paths than the one before, and has more places.

        Characters without a token of their own become single bytes in a BPE model. What else may become of them, in
        other models, is left open.
        """
        if self.file is None or self.file.writing is None:
            return self.pieces, []
        config = self.file.config
        missing = _missing(characters, self.file)
        # Added tokens do not occur: where they may, the joints are not known.
        absent = {*added_tokens(config)}
        pieces = [None if token in absent else piece for token, piece in enumerate(self.pieces)]
        kind = config["model"]["type"]
        if kind == "WordPiece":
            return pieces, [LongestMatchCanon]
        if kind == "BPE" and (not missing or fallback_of(config)):
            return pieces, [partial(MergeCanon, table=self.file.merges)]
        if kind == "Unigram" and not missing:
            scores = scores_of(config["model"])
            return pieces, [partial(SegmentationCanon, scores=scores, grid=grid) for grid in _GRIDS]
        return pieces, []


def lexicons(tokenizer: Tokenizer, texts: Texts, fixed: int, anchor: int) -> Iterator[Lexicon]:
    """The ways in which a tokenizer may spell some texts, the one that is known best first.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        fixed: How many characters all texts begin with.
        anchor: A token that a text may begin with.
    """
    file = tokenizer.file if isinstance(tokenizer, HuggingFaceTokenizer) else None
    if file is not None and file.writing is not None:
        joints = find_joints(texts, fixed, file)
        if joints is not None:
            yield Lexicon(texts, _occurring(file.all_pieces, texts, file), joints, file.writing.marked, file)
        cut = _with_signs(texts, fixed, file)
        yield Lexicon(cut, _occurring(_signed(file, cut), texts, file), joints, file.writing.marked)
    yield Lexicon(texts, _decoded(tokenizer, anchor))
    if isinstance(tokenizer, WordTokenizer):
        lines = LineTexts(texts)
        yield Lexicon(lines, word_pieces(tokenizer), lines.joints(), marked=True)


def may_hold_added_tokens(tokenizer: Tokenizer, texts: Texts, fixed: int) -> bool:
    """Whether some texts have an added token behind the characters that all of them begin with, or over their end."""
    file = tokenizer.file if isinstance(tokenizer, HuggingFaceTokenizer) else None
    return file is not None and matters(find_matches(texts, file.added), fixed_part(texts, fixed)[1])


def _missing(characters: set[str], file: TokenizerFile) -> set[str]:
    """The characters that the vocabulary lacks."""
    assert file.writing is not None
    known = {token for token, number in vocabulary_of(file.config).items() if number != unknown_of(file.config)}
    symbols = file.writing.symbols
    return {character for character in characters if not known.issuperset(symbols(character))}


def _occurring(pieces: Pieces, texts: Texts, file: TokenizerFile) -> Pieces:
    """Without the tokens for single bytes of which no character is made that the vocabulary lacks."""
    fallback = fallback_of(file.config)
    if not fallback:
        return pieces
    needed = {byte for character in _missing(texts.characters(texts.start), file) for byte in character.encode()}
    absent = {token for token, byte in fallback.items() if byte not in needed}
    return [None if token in absent else piece for token, piece in enumerate(pieces)]


def _with_signs(texts: Texts, fixed: int, file: TokenizerFile) -> Texts:
    """Texts with edges for the added tokens that may stand in them, if they make a difference and can be told apart."""
    if not matters(find_matches(texts, file.added), fixed_part(texts, fixed)[1]):
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
    for token, sign in texts.signs.items():
        pieces[token] = (bytes([MARK]) if file.writing is not None and file.writing.marked else b"") + sign.encode()
    return pieces


def _decoded(tokenizer: Tokenizer, anchor: int) -> Pieces:
    """The text each token adds after another one.

    Not `decode([token])`: many tokenizers put a space between tokens, or drop the one at the beginning of a text.
    """
    before = tokenizer.decode([anchor])
    pieces: list[bytes | None] = []
    file = tokenizer.file if isinstance(tokenizer, HuggingFaceTokenizer) else None
    for token in range(tokenizer.vocab_size if file is None else len(file.all_pieces)):
        both = tokenizer.decode([anchor, token])
        whole = both.startswith(before) and "\ufffd" not in both
        pieces.append(both[len(before) :].encode() if whole else None)
    return pieces
