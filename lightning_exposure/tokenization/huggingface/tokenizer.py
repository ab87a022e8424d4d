"""Tokenizers of Hugging Face, as training used them: special tokens, chat templates, and what their file says.

Neither `transformers` nor `tokenizers` is imported here: an object of theirs brings what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization._spelling_rules import SpellingRules
from lightning_exposure.tokenization.graphs.texts import Stretch, Texts
from lightning_exposure.tokenization.huggingface._added_tokens import find_matches
from lightning_exposure.tokenization.huggingface._alike_characters import alike_characters
from lightning_exposure.tokenization.huggingface._rules_from_file import may_hold_added_tokens, rules_of
from lightning_exposure.tokenization.huggingface._swallowed_spaces import holds_all_of
from lightning_exposure.tokenization.huggingface._tokenizer_file import PROBE, TokenizerFile, content_of, read_file
from lightning_exposure.tokenization.protocol import (
    HasAddedTokens,
    HasAlikeCharacters,
    HasBeginnings,
    HasCuts,
    HasPieces,
    HasSpans,
    HasSpellingRules,
    Pieces,
    Span,
    Tokenizer,
)

Chat = Callable[[str], Sequence[Mapping[str, str]]]
"""The messages of a conversation in which a text stands."""

_AT_ONCE = 8192
"""How many texts are spelled at once: the tokenizer keeps much more of each than its tokens."""

_PROBES = (PROBE, "another probe")

_TOLD_BY_THE_FILE = (HasAddedTokens, HasAlikeCharacters, HasBeginnings, HasCuts, HasPieces, HasSpans, HasSpellingRules)
"""The capabilities that a tokenizer without a fast version has not."""


class HuggingFaceTokenizer:
    """A tokenizer from `transformers` or `tokenizers`, spelling texts as they were spelled for training.

    `SecretTree` and the callbacks wrap such tokenizers by themselves; do it by hand for a chat template.

    Special tokens are as the tokenizer adds them: one that it puts before a text (BOS, CLS) belongs to the root, what
    it puts behind a text (EOS, SEP) is no part of a secret and costs nothing.

    Args:
        tokenizer: A `PreTrainedTokenizerBase` or a `tokenizers.Tokenizer`. It is copied, not changed.
        chat: For a model that was trained on conversations: given a secret's whole text, the messages in which it
            stands, for `apply_chat_template`. What the template puts before the text belongs to the root.
        add_special_tokens: Whether training let the tokenizer add its special tokens (without a chat template).
        lead: The tokens before every text, if they are not those that the tokenizer adds: the token that a decoder
            begins with.

    Attributes:
        before: What the chat template puts before a text.
        lead: The special tokens before a text.

    Raises:
        TokenizerError: It spells the same text differently each time, or the template does not contain the text as it
            is.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = {"my": 0, "pin": 1, "4": 2, "2": 3, "##2": 4}
        >>> wordpiece = Tokenizer(models.WordPiece(words, unk_token="4"))
        >>> wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        >>> HuggingFaceTokenizer(wordpiece).encode("my pin 42")
        [0, 1, 2, 4]
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat: Chat | None = None,
        add_special_tokens: bool = True,
        lead: Sequence[int] | None = None,
    ) -> None:
        if not is_hugging_face(tokenizer):
            raise TokenizerError(
                f"tokenizer is {type(tokenizer).__name__}; expected a tokenizer of `transformers` or `tokenizers`. "
                "Any other object with encode, decode and vocab_size needs no wrapper."
            )
        self._tokenizer = tokenizer
        self._is_plain = not hasattr(tokenizer, "backend_tokenizer") and hasattr(tokenizer, "to_str")
        backend = tokenizer if self._is_plain else getattr(tokenizer, "backend_tokenizer", None)
        self.file: TokenizerFile | None = None
        if backend is not None:
            self.file = read_file(type(backend).from_str, content_of(backend), backend.encode_special_tokens)
        self._chat = chat
        self.before = self._behind = ""
        self.lead: list[int] = list(lead or ())
        if chat is not None:
            self.before, self._behind = self._find_template()
        elif add_special_tokens and lead is None:
            self.lead = self._find_lead()

    def __repr__(self) -> str:
        """What it wraps."""
        chat = ", with a chat template" if self._chat is not None else ""
        return f"HuggingFaceTokenizer({type(self._tokenizer).__name__}, {self.vocab_size} tokens{chat})"

    @cached_property
    def vocab_size(self) -> int:
        """How many token ids there are, up to the last one that a text may have."""
        if self.file is None:
            return len(self._tokenizer)
        used = [token for token, piece in enumerate(self.file.all_pieces) if piece is not None]
        return 1 + max([*used, *self.lead, *self._encode_plain(self.before)], default=0)

    def encode(self, text: str, /) -> list[int]:
        """The tokens of a text, with the special tokens or the template before it, and nothing behind it.

        Raises:
            TokenizerError: The template changes the text, or a token reaches from the text into what is behind it.
        """
        if self._chat is not None and self._render(text) != self.before + text + self._behind:
            raise TokenizerError(
                f"the chat template does not contain the text as it is between {self.before!r} and "
                f"{self._behind!r}. Check `chat`, or use texts that the template does not change."
            )
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
        """The tokens of many texts, as `encode` spells each."""
        if self._behind:
            return [[span.token for span in self.spans(text)] for text in texts]
        if self.file is None:
            return [self.lead + self._encode_plain(self.before + text) for text in texts]
        spelled: list[list[int]] = []
        for first in range(0, len(texts), _AT_ONCE):
            batch = [self.before + text for text in texts[first : first + _AT_ONCE]]
            found = self.file.backend.encode_batch_fast(batch, add_special_tokens=False)
            spelled.extend(self.lead + encoding.ids for encoding in found)
        return spelled

    def spans(self, text: str, /) -> list[Span]:
        """The tokens of a text, each with the characters that it covers, counted from the template's first one.

        Raises:
            TokenizerError: There is no telling which, or a token reaches over the end of the text.
        """
        encoding = self._file().backend.encode(self.before + text + self._behind, add_special_tokens=False)
        end = len(self.before) + len(text)
        spans = [Span(token, *covers) for token, covers in zip(encoding.ids, encoding.offsets, strict=True)]
        kept = [span for span in spans if span.start < end]
        if kept and kept[-1].end > end:
            raise TokenizerError(
                f"a token reaches from the end of the text into {self._behind!r}, which the chat template puts behind "
                "it: the secret has no cost of its own. End the pattern with text that is a token for itself."
            )
        return [Span(token, 0, 0) for token in self.lead] + kept

    def spans_of_beginning(self, text: str, /) -> list[Span]:
        """The tokens of a text that is not ended yet: what the template puts behind it is left out."""
        encoding = self._file().backend.encode(self.before + text, add_special_tokens=False)
        spans = [Span(token, *covers) for token, covers in zip(encoding.ids, encoding.offsets, strict=True)]
        return [Span(token, 0, 0) for token in self.lead] + spans

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of some tokens, without what always stands before it."""
        tokens = list(ids)
        if self.lead and tokens[: len(self.lead)] == self.lead:
            tokens = tokens[len(self.lead) :]
        options = {} if self._is_plain else {"clean_up_tokenization_spaces": False}
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False, **options)
        return text.removeprefix(self.before)

    def check_spelling(self, text: str, /) -> None:
        """Compare with the tokenizer itself.

        Raises:
            TokenizerError: It spells the text differently from its own file.
        """
        if self._is_plain or self._chat is not None:
            return
        with _left_as_it_is(getattr(self._tokenizer, "backend_tokenizer", None)):
            expected = self._tokenizer.encode(text, add_special_tokens=False)
        spelled = self.encode(text)[len(self.lead) :]
        if expected != spelled:
            raise TokenizerError(
                f"{type(self._tokenizer).__name__} spells {text!r} as {expected}, but its fast backend as {spelled}. "
                "Wrap it in an object of your own with encode, decode and vocab_size."
            )

    # ---- capabilities -------------------------------------------------------------------------------------

    def offers(self, kind: type, /) -> bool:
        """Whether it has a capability: without a fast version it tells nothing of its tokens."""
        if self.file is None:
            return kind not in _TOLD_BY_THE_FILE
        return self.file.writing is not None or kind is not HasPieces

    def pieces(self) -> Pieces:
        """What each token adds to a text; those of a vocabulary that drops spaces have a mark where a word begins."""
        return self._file().all_pieces

    def cuts(self, texts: Sequence[str], /) -> list[set[int]] | None:
        """For each text, the positions where it is cut into pre-tokens; None: unknown."""
        return self._file().cuts(texts)

    def alike(self, characters: set[str], /) -> dict[str, str]:
        """Characters that the cuts of texts do not tell apart, each with the one that stands for its kind."""
        return alike_characters(self._file().config, characters)

    def spelling_rules(self, texts: Texts, fixed: int, /) -> Iterator[SpellingRules]:
        """The ways in which it may spell some texts, the one that is known best first."""
        return rules_of(self._file(), texts, fixed)

    def number_of_ids(self) -> int:
        """How many token ids there are, with those of all special tokens."""
        return len(self._file().all_pieces)

    def added_tokens_in(self, texts: Texts, /) -> list[Stretch]:
        """Everywhere that an added token may stand in the texts, with the spaces that it may swallow."""
        return [match.covered for match in find_matches(texts, self._file().added)]

    def may_hold_added_tokens(self, texts: Texts, fixed: int, /) -> bool:
        """Whether some texts have an added token behind their first characters, which are fixed, or over their end."""
        return may_hold_added_tokens(self._file(), texts, fixed)

    def holds_all_of(self, text: str, tokens: Sequence[int], /) -> bool:
        """Whether tokens hold all of a text, but for spaces that added tokens swallow."""
        if not self.offers(HasPieces):
            return self.decode(tokens) == text
        return holds_all_of(self._file(), self.before + text, self.spans(text)[len(self.lead) :])

    # ---- inside -------------------------------------------------------------------------------------------

    def _file(self) -> TokenizerFile:
        if self.file is None:
            raise TokenizerError(
                f"{type(self._tokenizer).__name__} has no file that tells what its tokens are and which characters "
                "they cover, and a chat template needs that. Load the fast version of the tokenizer (use_fast=True)."
            )
        return self.file

    def _encode_plain(self, text: str) -> list[int]:
        """The tokens of a text and nothing else."""
        if self.file is not None:
            ids: list[int] = self.file.backend.encode(text, add_special_tokens=False).ids
            return ids
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _find_lead(self) -> list[int]:
        """The special tokens that the tokenizer puts before a text."""
        tokens = list(self._tokenizer.encode(PROBE)) if self.file is None else self.file.probe
        plain = self._encode_plain(PROBE)
        for count in range(len(tokens) - len(plain) + 1):
            if tokens[count : count + len(plain)] == plain:
                return tokens[:count]
        raise TokenizerError(
            f"{type(self._tokenizer).__name__} spells {PROBE!r} as {tokens} with its special tokens and as "
            f"{plain} without them; expected the same tokens with others before and behind. Use "
            "add_special_tokens=False if training did."
        )

    def _find_template(self) -> tuple[str, str]:
        """What the chat template puts before and behind a text."""
        found = []
        for probe in _PROBES:
            before, text, behind = (rendered := self._render(probe)).partition(probe)
            if not text or probe in behind:
                raise TokenizerError(
                    f"chat puts the text {probe!r} into the conversation {rendered.count(probe)} times; expected once, "
                    "as the whole content of a message or a part of it."
                )
            found.append((before, behind))
        if found[0] != found[1]:
            raise TokenizerError(
                f"the chat template depends on the text: {found[0]} surrounds {_PROBES[0]!r}, {found[1]} surrounds "
                f"{_PROBES[1]!r}. Use a template, and a `chat`, that put every text into the same surroundings."
            )
        return found[0]

    def _render(self, text: str) -> str:
        assert self._chat is not None
        try:
            rendered: str = self._tokenizer.apply_chat_template(list(self._chat(text)), tokenize=False)
        except (AttributeError, ValueError) as error:
            raise TokenizerError(
                f"{type(self._tokenizer).__name__} has no chat template: {error}. Set tokenizer.chat_template, or "
                "leave out `chat`."
            ) from error
        return rendered


@contextmanager
def _left_as_it_is(backend: Any) -> Iterator[None]:
    """Padding and truncation afterwards as before: `encode` of `transformers` switches them off for good."""
    before = (None, None) if backend is None else (backend.padding, backend.truncation)
    yield
    if before[0] is not None:
        backend.enable_padding(**before[0])
    if before[1] is not None:
        backend.enable_truncation(**before[1])


def is_hugging_face(tokenizer: object) -> bool:
    """Whether an object is a tokenizer of `transformers` or `tokenizers`, without importing either."""
    return any(base.__module__.partition(".")[0] in ("transformers", "tokenizers") for base in type(tokenizer).__mro__)


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """A tokenizer in the form that this library works with: those of Hugging Face are wrapped.

    Raises:
        TokenizerError: It is no tokenizer.
    """
    if is_hugging_face(tokenizer):
        return HuggingFaceTokenizer(tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(
            f"tokenizer is {type(tokenizer).__name__}; expected an object with encode, decode and vocab_size, or a "
            "tokenizer of `transformers` or `tokenizers`."
        )
    return tokenizer
