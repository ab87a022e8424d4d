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
from lightning_exposure.secrets.formats.graph import steps_behind, walk
from lightning_exposure.tokenization._completeness import all_can_be_looked_up, drawn_texts, in_words
from lightning_exposure.tokenization._encoding import check_batches, check_beginning, encode, encode_all, letters_of
from lightning_exposure.tokenization._listing import Listing
from lightning_exposure.tokenization._spelling_rules import SpellingRules, spelling_rules
from lightning_exposure.tokenization._text_samples import all_texts
from lightning_exposure.tokenization._tree_start import TreeStart
from lightning_exposure.tokenization._vocabulary import FittingTokens, Vocabulary
from lightning_exposure.tokenization.canonical.rule import FRESH, AnySpelling, CanonicalRule
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.huggingface.tokenizer import as_tokenizer
from lightning_exposure.tokenization.paths import as_rows, tokens_of
from lightning_exposure.tokenization.protocol import (
    HasAddedTokens,
    HasOwnCheck,
    HasPieces,
    Tokenizer,
    capability,
    surroundings_of,
)

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat

_TRIAL_SECRETS = 64
"""Random secrets that help to find where the prompt's tokens end, beside one for each choice of each blank."""

_AT_ONCE = 8192
"""How many secrets are looked up at once."""

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
        format: What the secrets look like.
        tokenizer: The tokenizer; one of Hugging Face's is wrapped.
        root: The tokens that every secret begins with.
        known: The text that every secret begins with.
        automaton: Which tokens may follow at each place.
        exact: Whether every path of the automaton is canonical, so that leaves need no look at the tokenizer.
        rests_on: Empty if it is certain that the tree holds every secret once; otherwise what speaks for it.

    Raises:
        TokenizerError: The tokenizer lacks a character of the format, or spells it so that no tree holds it.
    """

    def __init__(self, format: SecretFormat, tokenizer: Tokenizer | Any) -> None:
        self.format = format
        self.tokenizer = as_tokenizer(tokenizer)
        self.known = format.prompt
        trials = format.covering() + format.sample(min(_TRIAL_SECRETS, format.size), seed=0)
        spelled = [encode(self.tokenizer, text, format, is_sample=True) for text in trials]
        lead = len(surroundings_of(self.tokenizer).lead)
        for text, tokens in zip(trials, spelled, strict=True):
            if len(tokens) <= lead:
                self._refuse(text, tokens, is_sample=True)
        check_batches(self.tokenizer, trials, spelled, format)
        has_check = capability(self.tokenizer, HasOwnCheck)
        if has_check is not None:
            has_check.check_spelling(trials[0])
        self._ahead = self._what_stands_ahead(trials[0], spelled[0])
        texts = Texts.of(format, self._ahead)
        self._texts: Texts = texts
        self._listing: Listing | None = None
        self._fixed = len(self._ahead) + len(format.prompt)
        refusals: list[TokenizerError] = []
        for rules in spelling_rules(self.tokenizer, texts, self._fixed, anchor=spelled[0][lead]):
            try:
                self._spell_with(rules, trials, spelled)
                self._certify()
                break
            except TokenizerError as refusal:
                refusals.append(refusal)
        else:
            self._texts = texts
            self._list_all(refusals)

    @property
    def root_text(self) -> str:
        """The text of the root, as far as it belongs to the secrets."""
        return self._full_root[len(self._ahead) :]

    @property
    def vocab_size(self) -> int:
        """How many token ids a model needs: the tokenizer's, and those of special tokens that stand in secrets."""
        return max(self.tokenizer.vocab_size, self._largest_token + 1)

    @property
    def size(self) -> int:
        """How many secrets there are."""
        return self.format.size if self.known == self.format.prompt else self._texts.count()

    def paths(self, secrets: Sequence[str]) -> NDArray[np.int32]:
        """The tokens from the root to each secret, one row each, shorter ones filled up with -1.

        Raises:
            SecretError: A text is not a secret of the format.
            TokenizerError: The tokenizer spells one in a way the tree does not hold.
        """
        quick = self._by_letters(secrets)
        if quick is not None:
            return quick
        spelled = encode_all(self.tokenizer, secrets, self.format)
        rows = as_rows([tokens[len(self.root) :] for tokens in spelled])
        places = self.automaton.walk(rows)
        fits = np.array([tokens[: len(self.root)] == self.root for tokens in spelled], dtype=bool) & (places >= 0)
        fits[fits] = self.automaton.accepting(places[fits])
        if not (fits.all() and self._is_text_of(rows, secrets)):
            # Something is wrong with one of them: look at each.
            for secret, tokens, fit in zip(secrets, spelled, fits, strict=True):
                if not fit or self.text(tokens[len(self.root) :]) != secret:
                    self._refuse(secret, tokens)
        return rows

    def starting_with(self, known: str) -> Spelling:
        """The same for only those secrets that begin with a known text.

        Raises:
            SecretError: None does; names the first character that does not fit.
        """
        check_beginning(self.format, known)
        if not (known.startswith(self.known) or self.known.startswith(known)):
            expected = "a beginning of secrets that begin as all of this tree do"
            raise SecretError(f"known begins otherwise; expected {expected}. Make the tree anew without it.")
        part = copy(self)
        part.known = known if len(known) > len(self.known) else self.known
        part._texts = self._texts.narrowed(part.known)
        if self._listing is not None:
            part._take(self._listing.starting_with(part.known))
            return part
        part._fitting = FittingTokens(self._rules.as_bytes(part._texts), self._fitting.vocabulary)
        part._build()
        part._certify()
        return part

    def text(self, path: Sequence[int]) -> str:
        """The text of a path from the root, the prompt included."""
        if self._listing is not None:
            return self._listing.text(path)
        data = b"".join([self._pieces[token] or b"" for token in path])
        return (self._full_root + self._fitting.texts.text(data, self._start))[len(self._ahead) :]

    def canonical(self, paths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether complete paths, one row each, are the way the tokenizer itself spells their texts."""
        rows = [tokens_of(row) for row in paths]
        spelled = encode_all(self.tokenizer, [self.text(row) for row in rows], self.format)
        return np.array([tokens == [*self.root, *row] for tokens, row in zip(spelled, rows, strict=True)], dtype=bool)

    # ---- building -----------------------------------------------------------------------------------------

    def _what_stands_ahead(self, text: str, spelled: Sequence[int]) -> str:
        """The template before the secrets, or the space that some tokenizers put before a text."""
        around = surroundings_of(self.tokenizer)
        has_pieces = capability(self.tokenizer, HasPieces)
        if around.before or has_pieces is None:
            return around.before
        first = has_pieces.pieces()[spelled[len(around.lead)]] or b""
        return " " if first.startswith(b" ") and not text.startswith(" ") else ""

    def _spell_with(self, rules: SpellingRules, trials: Sequence[str], spelled: Sequence[list[int]]) -> None:
        """Begin the tree with one way of spelling.

        Raises:
            TokenizerError: It does not fit.
        """
        self._texts, self._rules = rules.texts, rules
        as_bytes = rules.as_bytes(rules.texts)
        self._letters: dict[str, int] = {}
        start = TreeStart(self.tokenizer, rules, as_bytes, self._fixed).find(trials[0], spelled)
        if start is None:
            self._refuse_prompt()
        self._tree_start = start
        self.root = spelled[0][: start.tokens]
        self._pieces, self._canonical = rules.for_characters(steps_behind(self._texts, start.state))
        self._lengths = np.array([len(piece or b"") for piece in self._pieces], dtype=np.int64)
        self._fitting = FittingTokens(as_bytes, Vocabulary(self._pieces, steps_behind(as_bytes, start.state)))
        self._largest_token = max(self._fitting.vocabulary.texts, default=0)
        self._full_root = (self._ahead + self.format.prompt)[: start.position]
        self._build()
        spelled_by_tokenizer = self.paths(trials)
        self._letters = {} if self._texts.readings else letters_of(self._fitting.vocabulary)
        if self._letters and not np.array_equal(self.paths(trials), spelled_by_tokenizer):
            self._letters = {}

    def _build(self) -> None:
        """Make the automaton behind the root; what is spelled in one way only then belongs to the root."""
        self.automaton = self._finest() or self._any_spelling()
        self.exact = self.automaton.paths == self.size
        if self.automaton.paths != 0:
            self._lengthen_root()

    def _certify(self) -> None:
        """Make sure that the tree holds every secret once, or say what speaks for it.

        Raises:
            TokenizerError: It does not.
        """
        self._check_count()
        everything = all_can_be_looked_up(self._texts, self.size, counted=self.exact)
        secrets = list(all_texts(self._texts.plain)) if everything else drawn_texts(self._texts, self.tokenizer)
        for first in range(0, len(secrets), _AT_ONCE):
            self.paths(secrets[first : first + _AT_ONCE])
        self.rests_on = "" if everything or self.exact else in_words(self.automaton.paths, self.size, len(secrets))

    def _list_all(self, refusals: Sequence[TokenizerError]) -> None:
        """Where no way of spelling fits for the sake of added tokens, a small format is spelled secret by secret.

        Raises:
            TokenizerError: There are too many secrets, or the tokens of one do not hold all of it.
        """
        has_added = capability(self.tokenizer, HasAddedTokens)
        if has_added is None or not has_added.may_hold_added_tokens(self._texts, self._fixed):
            raise refusals[0]
        if not all_can_be_looked_up(self._texts, self.size, counted=False):
            raise refusals[0]
        secrets = list(all_texts(self._texts.plain))
        spelled = encode_all(self.tokenizer, secrets, self.format)
        if not all(has_added.holds_all_of(*pair) for pair in zip(secrets, spelled, strict=True)):
            raise refusals[0]
        try:
            self._take(Listing(self.tokenizer, secrets, spelled, self.known))
        except TokenizerError as alike:
            raise TokenizerError(f"{refusals[0]} Besides, {alike}") from alike

    def _take(self, listing: Listing) -> None:
        """Have the tree that a list of all secrets makes."""
        self._listing, self._letters, self.exact, self.rests_on = listing, {}, True, ""
        self.root, self.automaton = listing.root, listing.automaton
        self._largest_token = listing.largest_token
        self._full_root = self._ahead + listing.root_text

    def _check_count(self) -> None:
        """Refuse if some secrets cannot be spelled: every secret has one path that is never left out."""
        if self.automaton.paths is not None and self.automaton.paths < self.size:
            raise TokenizerError(
                f"the tokenizer spells {self.automaton.paths:,} of the {self.size:,} secrets of "
                f"{self.format.pattern!r}; for the others it lacks characters or words (an <unk>?). Use a format that "
                "the tokenizer can spell."
            )

    def _finest(self) -> TokenAutomaton | None:
        """The automaton that leaves out most; None if nothing is known of what is canonical."""
        finest: TokenAutomaton | None = None
        for make in self._canonical:
            if finest is not None and (finest.paths in (None, self.size) or finest.number_of_edges > _REFINABLE):
                break
            rule = make(self._fitting)
            behind_root = self._through_root(rule)
            if behind_root is None:
                break
            self._start, past = behind_root
            found = TokenAutomaton(self._fitting, self._start, rule, past)
            finest = found if finest is None or found.paths is not None else finest
        return finest

    def _any_spelling(self) -> TokenAutomaton:
        """The automaton of all spellings."""
        behind_root = self._through_root(AnySpelling(self._fitting))
        assert behind_root is not None, "the root is one of all spellings"
        self._start, _ = behind_root
        return TokenAutomaton(self._fitting, self._start)

    def _through_root(self, rule: CanonicalRule) -> tuple[int, int] | None:
        """The state behind the root and the past there; None if a rule does not let a longer root through."""
        state, past = self._tree_start.state, FRESH
        for token in self.root[self._tree_start.tokens :]:
            tokens, targets, pasts = rule.children(state, past)
            at = int(np.searchsorted(tokens, token))
            if at == len(tokens) or tokens[at] != token:
                return None
            state, past = int(targets[at]), int(pasts[at])
        return state, past

    def _lengthen_root(self) -> None:
        """What is known and spelled in one way only belongs to the root, which costs nothing."""
        known = self._ahead + self.known
        while True:
            tokens, targets = self.automaton.children(self.automaton.start)
            if len(tokens) != 1 or self.automaton.accepting(int(targets[0])):  # a secret must not be the root itself
                return
            piece = self._pieces[int(tokens[0])] or b""
            state = walk(self._fitting.texts, piece, self._start)
            longer = self._full_root + self._fitting.texts.text(piece, self._start)
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
        return rows if (places >= 0).all() and self.automaton.accepting(places).all() else None

    def _is_text_of(self, rows: NDArray[np.int32], secrets: Sequence[str]) -> bool:
        """Whether paths spell secrets, all at once: as long as each of them, and the same text all in all."""
        if self._listing is not None or not self._fitting.texts.plain:
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

    def _refuse(self, text: str, tokens: list[int], *, is_sample: bool = False) -> NoReturn:
        self.format.index(text)  # a text that is no secret at all gets that error
        if not text.startswith(self.known):
            raise SecretError("secret begins otherwise; expected one that begins with the known text. Leave it out.")
        as_what = f"{text!r} as {self.tokenizer.decode(tokens)!r}" if is_sample else "a secret as other text"
        raise TokenizerError(
            f"the tokenizer spells {as_what} ({len(tokens)} tokens), which does not fit the format "
            f"{self.format.pattern!r}. It lacks characters of the format (an <unk>?), or changes the text (case, "
            "spaces). Use a format that the tokenizer can spell."
        )

    def _refuse_prompt(self) -> NoReturn:
        raise TokenizerError(
            f"pattern {self.format.pattern!r} has the prompt {self.format.prompt!r}, in which no token is the same "
            "for all secrets; the model needs something to read before the first blank. Begin the pattern with the "
            "text that comes before the secret in the training data."
        )
