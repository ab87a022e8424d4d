"""Whether tokens hold all of a text, where added tokens swallow the spaces beside them."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.tokenization.graphs.bytes import WORD_MARK
from lightning_exposure.tokenization.huggingface._tokenizer_file import TokenizerFile
from lightning_exposure.tokenization.huggingface._tokenizer_json import unknown_of
from lightning_exposure.tokenization.protocol import Span


def holds_all_of(file: TokenizerFile, text: str, spans: Sequence[Span]) -> bool:
    """Whether the tokens of a text hold all of it: nothing unknown, nothing changed.

    What an added token was cut out for is what it stands for. The spaces beside it may be swallowed by it, or dropped
    or put there by the tokenizer, which spells what stands between two added tokens by itself.

    Args:
        file: The tokenizer's file, in which it is known what each token adds to a text.
        text: The text, with the template before it.
        spans: Its tokens, without special ones before them.
    """
    assert file.writing is not None
    pieces, marked = file.all_pieces, file.writing.marked
    added = {token.number for token in file.added} - {unknown_of(file.config)}
    at, section = 0, b""
    between = False  # whether an added token stands before the section
    for span in spans:
        if span.token in added:
            if not _same(section, text[at : span.start], marked, loose=(between, True)):
                return False
            at, section, between = span.end, b"", True
        elif pieces[span.token] is None:
            return False
        else:
            section += pieces[span.token] or b""
    return _same(section, text[at:], marked, loose=(between, False))


def _same(section: bytes, text: str, marked: bool, loose: tuple[bool, bool]) -> bool:
    """Whether the pieces of a section are its text."""
    if marked:  # spaces are dropped
        spelled = section.replace(bytes([WORD_MARK]), b"").decode("utf-8", errors="replace")
        return spelled == "".join(text.split())
    spelled = section.decode("utf-8", errors="replace")
    if not text.startswith(" ") and not loose[0]:
        spelled = spelled.removeprefix(" ")  # what some tokenizers put before a text
    if loose[0]:
        spelled, text = spelled.lstrip(), text.lstrip()
    return spelled.rstrip() == text.rstrip() if loose[1] else spelled == text
