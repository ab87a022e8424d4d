"""How a tokenizer spells the secrets of a format: where the tree begins, which tokens may follow, what is canonical.

A string has many tokenizations, and training saw one of them: `encode(whole text)`. Only that path counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import SecretError, TokenizerError
from lightning_exposure.language.automaton import TokenAutomaton
from lightning_exposure.language.beginning import Beginning
from lightning_exposure.language.paths import as_rows
from lightning_exposure.language.tokenizers import Tokenizer

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat

_TRIAL_SECRETS = 64
"""Random secrets that help to find where the prompt's tokens end, beside one for each choice of each blank."""


class Spelling:
    """The secrets of a format as token paths from one shared root.

    Where the prompt ends inside a token of some secret (`" is"` + `" 281"`), the root is the last token boundary that
    all secrets share, and the rest of the prompt is literal text of the tree.

    Args:
        format: What the secrets look like.
        tokenizer: What spells them.

    Attributes:
        root: The tokens that every secret begins with.
        root_text: Their text.
        known: The text that every secret begins with.
        automaton: Which tokens may follow at each place.

    Raises:
        TokenizerError: The tokenizer lacks a character of the format, or spells it so that no tree holds it.
    """

    def __init__(self, format: SecretFormat, tokenizer: Tokenizer) -> None:
        self._format = format
        self._tokenizer = tokenizer
        trials = format.covering() + format.sample(min(_TRIAL_SECRETS, format.size), seed=0)
        spelt = [_encode(tokenizer, text, format) for text in trials]
        self.known = format.prompt
        self._pieces = _pieces(tokenizer, spelt[0][0])
        self.root = _shared_root(format, tokenizer, spelt, self._pieces)
        self.root_text = tokenizer.decode(self.root)
        self._lengths = np.array([len(piece or "") for piece in self._pieces], dtype=np.int64)
        self.automaton = self._automaton()
        self._letters: dict[str, int] = {}
        spelt_by_tokenizer = self.paths(trials)
        self._letters = _letters(self.automaton, self._pieces)
        if self._letters and not np.array_equal(self.paths(trials), spelt_by_tokenizer):
            self._letters = {}

    def paths(self, secrets: Sequence[str]) -> NDArray[np.int32]:
        """The tokens from the root to each secret, one row each, shorter ones filled up with -1.

        Raises:
            SecretError: A text is not a secret of the format.
            TokenizerError: The tokenizer spells one in a way the tree does not hold.
        """
        quick = self._by_letters(secrets)
        if quick is not None:
            return quick
        spelt = [_encode(self._tokenizer, secret, self._format) for secret in secrets]
        rows = as_rows([tokens[len(self.root) :] for tokens in spelt])
        places = self.automaton.walk(rows)
        fits = np.array([tokens[: len(self.root)] == self.root for tokens in spelt], dtype=bool) & (places >= 0)
        fits[fits] = self.automaton.accepting[places[fits]]
        if not (fits.all() and self._is_text_of(rows, secrets)):
            # Something is wrong with one of them: look at each.
            for secret, tokens, fit in zip(secrets, spelt, fits, strict=True):
                if not fit or self.text(tokens[len(self.root) :]) != secret:
                    self._refuse(secret, tokens)
        return rows

    def _by_letters(self, secrets: Sequence[str]) -> NDArray[np.int32] | None:
        """The paths of secrets of one length, if every token is one character; None if something is unusual.

        Many secrets in one go: the tokenizer would read the prompt again in each of them.
        """
        begin = len(self.root_text)
        widths = {len(secret) - begin for secret in secrets}
        if not self._letters or len(widths) != 1 or not all(secret.startswith(self.root_text) for secret in secrets):
            return None
        try:
            tokens = list(map(self._letters.__getitem__, "".join([secret[begin:] for secret in secrets])))
        except KeyError:
            return None
        rows = np.array(tokens, dtype=np.int32).reshape(len(secrets), widths.pop())
        places = self.automaton.walk(rows)
        return rows if (places >= 0).all() and self.automaton.accepting[places].all() else None

    def _is_text_of(self, rows: NDArray[np.int32], secrets: Sequence[str]) -> bool:
        """Whether paths spell secrets, all at once: as long as each of them, and the same text all in all."""
        used = rows[rows >= 0]
        lengths = np.zeros(rows.shape, dtype=np.int64)
        lengths[rows >= 0] = self._lengths[used]
        begin = len(self.root_text)
        if not np.array_equal(lengths.sum(axis=1), [len(secret) - begin for secret in secrets]):
            return False
        spelt = "".join([self._pieces[token] or "" for token in used.tolist()])
        same_root = all(secret.startswith(self.root_text) for secret in secrets)
        return same_root and spelt == "".join([secret[begin:] for secret in secrets])

    @property
    def size(self) -> int:
        """How many secrets there are."""
        if self.known == self._format.prompt:
            return self._format.size
        return self._beginning().completions()

    def starting_with(self, known: str) -> Spelling:
        """The same for only those secrets that begin with a known text.

        Raises:
            SecretError: None does; names the first character that does not fit.
        """
        _check_beginning(self._format, known)
        if not (known.startswith(self.known) or self.known.startswith(known)):
            raise SecretError(f"known is {known!r}, but the tree holds only secrets that begin with {self.known!r}.")
        part = copy(self)
        part.known = known if len(known) > len(self.known) else self.known
        part.automaton = part._automaton()
        # What is known and spelt in one way only belongs to the root, which costs nothing.
        while len(part.automaton.tokens[0]) == 1:
            token = int(part.automaton.tokens[0][0])
            longer = part.root_text + (part._pieces[token] or "")
            ends = part.automaton.accepting[part.automaton.targets[0][0]]  # a secret must not be the root itself
            if ends or not part.known.startswith(longer):
                break
            part.root, part.root_text = [*part.root, token], longer
            part.automaton = part._automaton()
        return part

    def text(self, path: Sequence[int]) -> str:
        """The text of a path from the root, the prompt included."""
        return self.root_text + "".join(self._pieces[token] or "" for token in path)

    def is_canonical(self, path: Sequence[int]) -> bool:
        """Whether a complete path is the way the tokenizer itself spells that text."""
        return self._tokenizer.encode(self.text(path)) == [*self.root, *path]

    def _beginning(self) -> Beginning:
        return Beginning(self._format.acceptor(), self.known)

    def _automaton(self) -> TokenAutomaton:
        """What may follow the root."""
        acceptor = self._beginning()
        start = acceptor.walk(self.root_text)
        if start is None:
            raise TokenizerError(
                f"the tokenizer decodes the prompt {self._format.prompt!r} as {self.root_text!r}; these differ."
            )
        return TokenAutomaton(acceptor, start, self._pieces)

    def _refuse(self, text: str, tokens: list[int]) -> None:
        self._format.index(text)  # a text that is no secret at all gets that error
        if not text.startswith(self.known):
            raise SecretError(f"the secret {text!r} does not begin with the known text {self.known!r}.")
        raise TokenizerError(
            f"the tokenizer spells {text!r} as {self._tokenizer.decode(tokens)!r} ({len(tokens)} tokens), which does "
            f"not fit the format {self._format.pattern!r}. It lacks characters of the format (an <unk>?), or changes "
            "the text (case, spaces). Use a format that the tokenizer can spell."
        )


def _letters(automaton: TokenAutomaton, pieces: list[str | None]) -> dict[str, int]:
    """The token of each character, if all tokens that can follow anywhere are single characters; otherwise nothing."""
    used = {int(token) for tokens in automaton.tokens for token in tokens}
    letters = {pieces[token] or "": token for token in used}
    return letters if len(letters) == len(used) and all(len(letter) == 1 for letter in letters) else {}


def _check_beginning(format: SecretFormat, known: str) -> None:
    """Refuse a text that no secret begins with."""
    acceptor = format.acceptor()
    if acceptor.walk(known) is not None:
        return
    fits = next(n for n in range(len(known), -1, -1) if acceptor.walk(known[:n]) is not None)
    state = acceptor.walk(known[:fits])
    expected = "".join(sorted(acceptor.edges(state))) if state is not None else ""
    raise SecretError(
        f"known is {known!r}, and no secret of {format.pattern!r} begins with it: after {known[:fits]!r} comes "
        f"{known[fits]!r}; expected {'one of ' + repr(expected) if expected else 'the end'}. Give the prompt and the "
        "first characters of a secret."
    )


def _encode(tokenizer: Tokenizer, text: str, format: SecretFormat) -> list[int]:
    try:
        tokens = tokenizer.encode(text)
        return tokens if isinstance(tokens, list) else list(tokens)
    except TokenizerError as error:
        format.index(text)  # a text that is no secret at all gets that error
        raise TokenizerError(
            f"format {format.pattern!r} needs what the tokenizer cannot spell, for example {text!r}: {error}"
        ) from error


def _shared_root(
    format: SecretFormat, tokenizer: Tokenizer, spelt: list[list[int]], pieces: list[str | None]
) -> list[int]:
    """The longest run of tokens that all secrets begin with and that lies within the prompt."""
    shared = min(spelt, key=len)[:-1]  # no secret may be the root itself
    for tokens in spelt:
        same = 0
        while same < len(shared) and tokens[same] == shared[same]:
            same += 1
        shared = shared[:same]
    while shared and not _ends_at_a_boundary(format, tokenizer.decode(shared), pieces):
        shared = shared[:-1]
    if not shared:
        raise TokenizerError(
            f"pattern {format.pattern!r} has the prompt {format.prompt!r}, in which no token is the same for all "
            "secrets; the model needs something to read before the first blank. Begin the pattern with the text that "
            "comes before the secret in the training data."
        )
    return shared


def _ends_at_a_boundary(format: SecretFormat, root: str, pieces: list[str | None]) -> bool:
    """Whether a root lies within the prompt, and no token could reach over its end in any secret.

    The secrets that were tried may not show such a token: it may occur in a few of the many others only.
    """
    acceptor = format.acceptor()
    state = acceptor.walk(root) if format.prompt.startswith(root) else None
    if state is None:
        return False
    return not any(
        root.endswith(piece[:cut]) and acceptor.walk(piece[cut:], state) is not None
        for piece in pieces
        if piece
        for cut in range(1, len(piece))
    )


def _pieces(tokenizer: Tokenizer, anchor: int) -> list[str | None]:
    """The text each token adds after another one.

    Not `decode([token])`: many tokenizers put a space between tokens, or drop the one at the beginning of a text.
    """
    before = tokenizer.decode([anchor])
    pieces: list[str | None] = []
    for token in range(tokenizer.vocab_size):
        both = tokenizer.decode([anchor, token])
        pieces.append(both[len(before) :] if both.startswith(before) else None)
    return pieces
