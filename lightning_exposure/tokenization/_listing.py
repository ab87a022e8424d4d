"""All secrets of a small format, each as the tokenizer itself spells it: a tree that needs no theory of tokenizers.

Used where the theory does not hold: added tokens that swallow spaces which secrets differ in, normalizers that see
what stands between two added tokens by itself, and whatever else a tokenizer may do.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization._tree_start import positions_of, shared_tokens
from lightning_exposure.tokenization.graphs.bytes import MARK
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.huggingface.tokenizer_json import unknown_of
from lightning_exposure.tokenization.tokenizers import Tokenizer


class Listing:
    """Secrets and their tokens.

    Args:
        tokenizer: What spelt them.
        secrets: The secrets, all different.
        spelt: The tokens of each.
        known: What all of them begin with.

    Attributes:
        root: The tokens that all begin with, as far as they belong to what is known.
        root_text: The text of the root.
        automaton: Exactly the paths from the root to the secrets.
        largest_token: The largest token id.

    Raises:
        TokenizerError: Two secrets have the same tokens, or nothing is left to read before the first blank.
    """

    def __init__(self, tokenizer: Tokenizer, secrets: Sequence[str], spelt: Sequence[list[int]], known: str) -> None:
        self._tokenizer, self._spelt = tokenizer, dict(zip(secrets, spelt, strict=True))
        self._texts: dict[tuple[int, ...], str] = {}
        for secret, tokens in self._spelt.items():
            other = self._texts.setdefault(tuple(tokens), secret)
            if other != secret:
                raise TokenizerError(
                    f"the tokenizer spells the secrets {other!r} and {secret!r} alike, as {tokens}: a model cannot "
                    "tell them apart. Use a format whose secrets differ in more than what the tokenizer drops (case, "
                    "spaces, characters that it lacks)."
                )
        self.largest_token = max(map(max, spelt))
        count, self.root_text = self._common(known)
        self.root = spelt[0][:count]
        self.automaton = TokenAutomaton.of_paths([tokens[count:] for tokens in spelt])

    def text(self, path: Sequence[int]) -> str:
        """The secret at the end of a path from the root; for a part of a path what its tokens decode to."""
        tokens = [*self.root, *path]
        return self._texts.get(tuple(tokens)) or self._tokenizer.decode(tokens)

    def starting_with(self, known: str) -> Listing:
        """The same for only those secrets that begin with a known text."""
        part = {secret: tokens for secret, tokens in self._spelt.items() if secret.startswith(known)}
        return Listing(self._tokenizer, list(part), list(part.values()), known)

    def _common(self, known: str) -> tuple[int, str]:
        """How many tokens all secrets begin with, within what is known, and the text of those."""
        before = len(getattr(self._tokenizer, "before", ""))
        spelt = list(self._spelt.values())
        shared = shared_tokens(spelt)
        first = next(iter(self._spelt))
        fitting = [
            (count, position - before)
            for count, position in enumerate(positions_of(self._tokenizer, first, shared))
            if count and position is not None and position - before <= len(known)
        ]
        if not fitting:
            raise TokenizerError(
                f"no token is the same for all secrets that begin with {known!r}; the model needs something to read "
                "before the first blank. Begin the pattern with the text that comes before the secret in the training "
                "data."
            )
        count, position = fitting[-1]
        return count, known[: max(0, position)]


def is_faithful(tokenizer: Tokenizer, secret: str, tokens: Sequence[int]) -> bool:
    """Whether tokens hold all of a secret: nothing unknown, nothing changed.

    What an added token was cut out for is what it stands for. The spaces beside it may be swallowed by it, or dropped
    or put there by the tokenizer, which spells what stands between two added tokens by itself.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer) or tokenizer.file is None:
        return tokenizer.decode(list(tokens)) == secret
    writing, pieces = tokenizer.file.writing, tokenizer.file.all_pieces
    if writing is None:
        return tokenizer.decode(list(tokens)) == secret
    added = {token.number for token in tokenizer.file.added} - {unknown_of(tokenizer.file.config)}
    text, at, section = tokenizer.before + secret, 0, b""
    spans = tokenizer.spans(secret)[len(tokenizer.lead) :]
    between = False  # whether an added token stands before the section
    for span in spans:
        if span.token in added:
            if not _same(section, text[at : span.start], writing.marked, loose=(between, True)):
                return False
            at, section, between = span.end, b"", True
        elif pieces[span.token] is None:
            return False
        else:
            section += pieces[span.token] or b""
    return _same(section, text[at:], writing.marked, loose=(between, False))


def _same(section: bytes, text: str, marked: bool, loose: tuple[bool, bool]) -> bool:
    """Whether the pieces of a section are its text."""
    if marked:  # spaces are dropped
        spelt = section.replace(bytes([MARK]), b"").decode("utf-8", errors="replace")
        return spelt == "".join(text.split())
    spelt = section.decode("utf-8", errors="replace")
    if not text.startswith(" ") and not loose[0]:
        spelt = spelt.removeprefix(" ")  # what some tokenizers put before a text
    if loose[0]:
        spelt, text = spelt.lstrip(), text.lstrip()
    return spelt.rstrip() == text.rstrip() if loose[1] else spelt == text
