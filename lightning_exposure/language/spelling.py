"""How a tokenizer spells the secrets of a format: where the tree begins, which tokens may follow, what is canonical.

A string has many tokenizations, and training saw one of them: `encode(whole text)`. Only that path counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import SecretError, TokenizerError
from lightning_exposure.language.automaton import TokenAutomaton
from lightning_exposure.language.byte_texts import ByteTexts
from lightning_exposure.language.canonical import FRESH, AnySpelling, Canon
from lightning_exposure.language.lexicon import Lexicon, lexicons
from lightning_exposure.language.paths import as_rows, tokens_of
from lightning_exposure.language.root import Boundary, is_cut, positions_of, reaches_over, shared_tokens
from lightning_exposure.language.subwords import HuggingFaceTokenizer, as_tokenizer
from lightning_exposure.language.texts import Texts
from lightning_exposure.language.tokenizers import Tokenizer
from lightning_exposure.language.trie import Vocabulary, alphabet_of

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat

_TRIAL_SECRETS = 64
"""Random secrets that help to find where the prompt's tokens end, beside one for each choice of each blank."""

_REFINABLE = 20_000
"""Up to this many edges it is worth while to look for an automaton that leaves out more."""


class Spelling:
    """The secrets of a format as token paths from one shared root.

    Where the prompt ends inside a token of some secret (`" is"` + `" 281"`), the root is the last token boundary that
    all secrets share, and the rest of the prompt is literal text of the tree.

    Args:
        format: What the secrets look like.
        tokenizer: What spells them: an object with `encode`, `decode` and `vocab_size`, or one of Hugging Face's.

    Attributes:
        tokenizer: The tokenizer; one of Hugging Face's is wrapped.
        root: The tokens that every secret begins with.
        known: The text that every secret begins with.
        automaton: Which tokens may follow at each place.
        exact: Whether every path of the automaton is canonical, so that leaves need no look at the tokenizer.

    Raises:
        TokenizerError: The tokenizer lacks a character of the format, or spells it so that no tree holds it.
    """

    def __init__(self, format: SecretFormat, tokenizer: Tokenizer | Any) -> None:
        self._format = format
        self.tokenizer = as_tokenizer(tokenizer)
        self.known = format.prompt
        trials = format.covering() + format.sample(min(_TRIAL_SECRETS, format.size), seed=0)
        spelt = [_encode(self.tokenizer, text, format) for text in trials]
        before = len(getattr(self.tokenizer, "lead", ()))
        for text, tokens in zip(trials, spelt, strict=True):
            if len(tokens) <= before:
                self._refuse(text, tokens)
        if isinstance(self.tokenizer, HuggingFaceTokenizer):
            self.tokenizer.check(trials[0])
        self._ahead = self._what_stands_ahead(trials[0], spelt[0])
        texts = Texts.of(format, self._ahead)
        refusals: list[TokenizerError] = []
        self._fixed = len(self._ahead) + len(format.prompt)
        for lexicon in lexicons(self.tokenizer, texts, self._fixed, anchor=spelt[0][before]):
            try:
                self._spell_with(lexicon, texts, trials, spelt)
                break
            except TokenizerError as refusal:
                refusals.append(refusal)
        else:
            raise refusals[0]
        self._check_count()

    @property
    def root_text(self) -> str:
        """The text of the root, as far as it belongs to the secrets."""
        return self._full_root[len(self._ahead) :]

    @property
    def size(self) -> int:
        """How many secrets there are."""
        return self._format.size if self.known == self._format.prompt else self._texts.count()

    def paths(self, secrets: Sequence[str]) -> NDArray[np.int32]:
        """The tokens from the root to each secret, one row each, shorter ones filled up with -1.

        Raises:
            SecretError: A text is not a secret of the format.
            TokenizerError: The tokenizer spells one in a way the tree does not hold.
        """
        quick = self._by_letters(secrets)
        if quick is not None:
            return quick
        spelt = _encode_all(self.tokenizer, secrets, self._format)
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
        part._texts = self._texts.narrowed(part.known)
        part._bytes = ByteTexts(part._texts, self._lexicon.joints, marked=self._lexicon.marked)
        part._build()
        part._check_count()
        return part

    def text(self, path: Sequence[int]) -> str:
        """The text of a path from the root, the prompt included."""
        data = b"".join([self._pieces[token] or b"" for token in path])
        return (self._full_root + self._bytes.text(data, self._start))[len(self._ahead) :]

    def canonical(self, paths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether complete paths, one row each, are the way the tokenizer itself spells their texts."""
        rows = [tokens_of(row) for row in paths]
        spelt = _encode_all(self.tokenizer, [self.text(row) for row in rows], self._format)
        return np.array([tokens == [*self.root, *row] for tokens, row in zip(spelt, rows, strict=True)], dtype=bool)

    # ---- building -----------------------------------------------------------------------------------------

    def _what_stands_ahead(self, text: str, spelt: Sequence[int]) -> str:
        """The template before the secrets, or the space that some tokenizers put before a text."""
        if not isinstance(self.tokenizer, HuggingFaceTokenizer) or self.tokenizer.file is None:
            return ""
        if self.tokenizer.before or self.tokenizer.file.writing is None:
            return self.tokenizer.before
        first = self.tokenizer.file.all_pieces[spelt[len(self.tokenizer.lead)]] or b""
        return " " if first.startswith(b" ") and not text.startswith(" ") else ""

    def _spell_with(self, lexicon: Lexicon, texts: Texts, trials: Sequence[str], spelt: Sequence[list[int]]) -> None:
        """Begin the tree with one way of spelling.

        Raises:
            TokenizerError: It does not fit.
        """
        self._texts, self._lexicon = texts, lexicon
        self._bytes = ByteTexts(texts, lexicon.joints, marked=lexicon.marked)
        self._letters: dict[str, int] = {}
        self._root = self._find_root(trials[0], spelt)
        self.root = spelt[0][: self._root.tokens]
        self._pieces, self._canons = lexicon.canons(texts.characters(self._root.state))
        self._lengths = np.array([len(piece or b"") for piece in self._pieces], dtype=np.int64)
        self._vocabulary = Vocabulary(self._pieces, alphabet_of(self._bytes, self._root.state))
        self._full_root = (self._ahead + self._format.prompt)[: self._root.position]
        self._build()
        spelt_by_tokenizer = self.paths(trials)
        self._letters = _letters(self._vocabulary)
        if self._letters and not np.array_equal(self.paths(trials), spelt_by_tokenizer):
            self._letters = {}

    def _find_root(self, text: str, spelt: Sequence[list[int]]) -> Boundary:
        """The last token boundary within the prompt that all secrets have, not only those that were tried.

        Nothing is ever merged over it, so that what follows does not depend on what stands before.
        """
        boundaries = self._find_boundaries(text, shared_tokens(spelt))
        # No token reaches over a cut, so that what stands before the last one does not matter.
        cuts = [boundary for boundary in boundaries if is_cut(self._bytes, boundary.state)]
        if cuts and cuts[-1] == boundaries[-1]:
            return cuts[-1]
        start = cuts[-1].state if cuts else self._texts.start
        near = Vocabulary(self._lexicon.pieces, alphabet_of(self._bytes, start))
        longest = max(map(len, near.texts.values()), default=1)
        for boundary in reversed(boundaries):
            before = b"".join([self._lexicon.pieces[token] or b"" for token in spelt[0][: boundary.tokens]])[-longest:]
            if (
                boundary.position == 0
                or boundary in cuts
                or not reaches_over(self._bytes, near.trie, before, boundary.state)
            ):
                return boundary
        self._refuse_prompt()

    def _find_boundaries(self, text: str, shared: Sequence[int]) -> list[Boundary]:
        """The token boundaries within the prompt that the tried secrets share."""
        fixed = self._ahead + self._format.prompt
        # A space that the tokenizer itself puts before a text is not counted in positions, but for the root alone.
        extra = len(self._ahead) - len(getattr(self.tokenizer, "before", ""))
        found = []
        for count, position in enumerate(positions_of(self.tokenizer, text, shared)):
            if position is None or count == 0:
                continue
            position += extra if position else 0
            state = self._texts.after(fixed[:position]) if position <= len(fixed) else None
            if state is not None:
                found.append(Boundary(count, position, state))
        return found

    def _build(self) -> None:
        """Make the automaton behind the root; what is spelt in one way only then belongs to the root."""
        self.automaton = self._finest() or self._any_spelling()
        self.exact = self.automaton.paths == self.size
        if self.automaton.paths != 0:
            self._lengthen_root()

    def _check_count(self) -> None:
        """Refuse if some secrets cannot be spelt: every secret has one path that is never left out."""
        if self.automaton.paths is not None and self.automaton.paths < self.size:
            raise TokenizerError(
                f"the tokenizer spells {self.automaton.paths:,} of the {self.size:,} secrets of "
                f"{self._format.pattern!r}; for the others it lacks characters or words (an <unk>?). Use a format that "
                "the tokenizer can spell."
            )

    def _finest(self) -> TokenAutomaton | None:
        """The automaton that leaves out most; None if nothing is known of what is canonical."""
        finest: TokenAutomaton | None = None
        for make in self._canons:
            if finest is not None and (finest.paths in (None, self.size) or finest.edges > _REFINABLE):
                break
            canon = make(self._bytes, self._vocabulary)
            behind_root = self._through_root(canon)
            if behind_root is None:
                break
            self._start, memory = behind_root
            found = TokenAutomaton(self._bytes, self._start, self._vocabulary, canon, memory)
            finest = found if finest is None or found.paths is not None else finest
        return finest

    def _any_spelling(self) -> TokenAutomaton:
        """The automaton of all spellings."""
        behind_root = self._through_root(AnySpelling(self._bytes, self._vocabulary))
        assert behind_root is not None, "the root is one of all spellings"
        self._start, _ = behind_root
        return TokenAutomaton(self._bytes, self._start, self._vocabulary)

    def _through_root(self, canon: Canon) -> tuple[int, int] | None:
        """The state and the memory of a canon behind the root; None if it does not let a longer root through."""
        state, memory = self._root.state, FRESH
        for token in self.root[self._root.tokens :]:
            tokens, targets, memories = canon.children(state, memory)
            at = int(np.searchsorted(tokens, token))
            if at == len(tokens) or tokens[at] != token:
                return None
            state, memory = int(targets[at]), int(memories[at])
        return state, memory

    def _lengthen_root(self) -> None:
        """What is known and spelt in one way only belongs to the root, which costs nothing."""
        known = self._ahead + self.known
        while True:
            tokens, targets = self.automaton.children(self.automaton.start)
            if len(tokens) != 1 or self.automaton.accepting[targets[0]]:  # a secret must not be the root itself
                return
            piece = self._pieces[int(tokens[0])] or b""
            state = self._bytes.after(piece, self._start)
            longer = self._full_root + self._bytes.text(piece, self._start)
            if state is None or not known.startswith(longer):
                return
            self.root, self._full_root, self._start = [*self.root, int(tokens[0])], longer, state
            self.automaton = self.automaton.starting_at(int(targets[0]))

    # ---- many secrets at once -----------------------------------------------------------------------------

    def _by_letters(self, secrets: Sequence[str]) -> NDArray[np.int32] | None:
        """The paths of secrets of one length, if every token is one character; None if something is unusual.

        Many secrets in one go: the tokenizer would read the prompt again in each of them.
        """
        root = self.root_text
        begin = len(root)
        lengths = set(map(len, secrets))
        if not self._letters or len(lengths) != 1 or {secret[:begin] for secret in secrets} != {root}:
            return None
        try:
            tokens = list(map(self._letters.__getitem__, "".join([secret[begin:] for secret in secrets])))
        except KeyError:
            return None
        rows = np.array(tokens, dtype=np.int32).reshape(len(secrets), lengths.pop() - begin)
        places = self.automaton.walk(rows)
        return rows if (places >= 0).all() and self.automaton.accepting[places].all() else None

    def _is_text_of(self, rows: NDArray[np.int32], secrets: Sequence[str]) -> bool:
        """Whether paths spell secrets, all at once: as long as each of them, and the same text all in all."""
        if self._bytes.marked:
            return [self.text(tokens_of(row)) for row in rows] == list(secrets)
        whole = [self._ahead + secret for secret in secrets]
        if not all(text.startswith(self._full_root) for text in whole):
            return False
        rest = [text[len(self._full_root) :].encode() for text in whole]
        used = rows[rows >= 0]
        lengths = np.zeros(rows.shape, dtype=np.int64)
        lengths[rows >= 0] = self._lengths[used]
        if not np.array_equal(lengths.sum(axis=1), [len(text) for text in rest]):
            return False
        return b"".join([self._pieces[token] or b"" for token in used.tolist()]) == b"".join(rest)

    # ---- refusals -----------------------------------------------------------------------------------------

    def _refuse(self, text: str, tokens: list[int]) -> NoReturn:
        self._format.index(text)  # a text that is no secret at all gets that error
        if not text.startswith(self.known):
            raise SecretError(f"the secret {text!r} does not begin with the known text {self.known!r}.")
        raise TokenizerError(
            f"the tokenizer spells {text!r} as {self.tokenizer.decode(tokens)!r} ({len(tokens)} tokens), which does "
            f"not fit the format {self._format.pattern!r}. It lacks characters of the format (an <unk>?), or changes "
            "the text (case, spaces). Use a format that the tokenizer can spell."
        )

    def _refuse_prompt(self) -> NoReturn:
        raise TokenizerError(
            f"pattern {self._format.pattern!r} has the prompt {self._format.prompt!r}, in which no token is the same "
            "for all secrets; the model needs something to read before the first blank. Begin the pattern with the "
            "text that comes before the secret in the training data."
        )


def _letters(vocabulary: Vocabulary) -> dict[str, int]:
    """The token of each character, if all tokens that can follow anywhere are single characters; otherwise nothing."""
    texts = vocabulary.texts
    letters = {text.decode("utf-8", errors="replace"): token for token, text in texts.items()}
    return letters if len(letters) == len(texts) and all(len(letter) == 1 for letter in letters) else {}


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


def _encode_all(tokenizer: Tokenizer, texts: Sequence[str], format: SecretFormat) -> list[list[int]]:
    """How a tokenizer spells some texts; Hugging Face's are much faster with many at once."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.encode_batch(texts)
    return [_encode(tokenizer, text, format) for text in texts]
