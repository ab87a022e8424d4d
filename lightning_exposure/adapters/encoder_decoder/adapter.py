"""The adapter for encoder-decoders, such as translation models: the format is on the target side.

With the source given, the targets are a tree like any other, and everything is exact: the cost of a secret is
`-log2 P(target after its prompt | source, prompt)`. If the source has blanks of its own that are filled as the
target's are, every secret has another source. A node of the tree would then stand for as many sources as secrets go
through it, and no bound on what they cost follows from what it costs under one of them. Such pairs are scored one
by one: see `lightning_exposure.adapters.encoder_decoder.translations` and `lightning_exposure.exposure.tied`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._differences import spread, typical
from lightning_exposure.adapters.carried_state import RecurrentAdapter
from lightning_exposure.adapters.encoder_decoder._decoder_caches import CachedDecoder
from lightning_exposure.adapters.encoder_decoder._translators import (
    HuggingFaceTranslator,
    Translator,
    target_logits,
    translator_of,
)
from lightning_exposure.adapters.protocol import device_of, evaluating
from lightning_exposure.adapters.stateless import StatelessAdapter
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ArgumentError, ExposureError, ModelError
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tokenization.tokenizers import Tokenizer

_TROUBLE = (
    ExposureError, ImportError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
)  # fmt: skip
"""What a decoder may raise that cannot go on from a state."""


class Seq2SeqAdapter:
    """Reads targets with an encoder-decoder, given one source.

    The source is encoded when a walk begins, and never while it goes on. If the decoder keeps a state (an LSTM's, a
    cache of keys and values), reading one more token costs one step. Whether the state really carries what was read
    is tried out once; if not, the target is read again from its beginning each time.

    Every target begins with the token that the decoder was trained to begin with. It is put before the root of the
    tree, unless the root begins with it already: see `TargetTokenizer`, with which the target's prompt may be empty.

    Args:
        module: A Hugging Face encoder-decoder; a module with `encode(source)` and `decode(tokens, encoded, state=None)`
            such as `EncoderDecoder`; or a module that holds one of these in an attribute.
        source: The token ids of the source, as in the training data, with its end token if it had one there.
        start: The token that targets begin with; None: what the module says.

    Attributes:
        keeps_state: Whether one more token costs one step.

    Raises:
        ModelError: The module is no encoder-decoder, or fails.
        ArgumentError: The source is not a sequence of token ids, or nobody says what targets begin with.

    Example:
        >>> from lightning_exposure import SecretFormat, SecretTree
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> from lightning_exposure.modules import EncoderDecoder
        >>> english = CharTokenizer.from_text("_^my pin is")
        >>> german = CharTokenizer.from_text("_^meine pin ist 0123456789")
        >>> model = EncoderDecoder(
        ...     vocab_size=english.vocab_size, target_vocab_size=german.vocab_size, hidden_size=8, embedding_size=8
        ... )
        >>> adapter = Seq2SeqAdapter(model, english.encode("my pin is"))
        >>> SecretTree(adapter, SecretFormat("meine pin ist ####"), german).size
        10000
    """

    def __init__(self, module: nn.Module, source: Sequence[int], *, start: int | None = None) -> None:
        self._translator = translator_of(module)
        self._source = _token_ids(source)
        self._start = start_token(self._translator, start)
        self._inner = _inner(self._translator, self._source, self._start)
        self.keeps_state = not isinstance(self._inner, _RereadingDecoder)

    @property
    def module(self) -> nn.Module:
        """The encoder-decoder."""
        return self._translator.module

    @property
    def start_id(self) -> int:
        """The token that targets begin with."""
        return self._start

    @property
    def rereads(self) -> bool:
        """Whether a step is a pass over the whole target."""
        return not self.keeps_state

    def at_once(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocabulary)` of one pass of the decoder over targets, put after the start token."""
        encoded = self._translator.expand(_encode(self._translator, self._source), len(tokens))
        begun = torch.cat([torch.full_like(tokens[:, :1], self._start), tokens], dim=1)
        return target_logits(self._translator, begun, encoded)[:, 1:]

    def try_out(self, root: Sequence[int], paths: Sequence[Sequence[int]], /) -> bool:
        """Read targets to their ends in steps and at once; if that is not the same, everything is read again each time.

        Args:
            root: The tokens before the secrets.
            paths: The tokens of some secrets, as long as the longest.

        Returns:
            False: it does not show that no token sees those after it.
        """
        if self.keeps_state and len(paths[0]) > 0:
            prompt, encoded = self._prompt(root), _encode(self._translator, self._source)
            tokens = torch.tensor([[*prompt, *path] for path in paths[:3]], device=device_of(self.module))
            truth = target_logits(self._translator, tokens, self._translator.expand(encoded, 3))[:, -1]
            try:
                self.keeps_state = _reads_in_parts(self._inner, encoded, tokens, truth, begin=len(prompt))
            except _TROUBLE:
                self.keeps_state = False
            if not self.keeps_state:
                self._inner = _RereadingDecoder(_ConditionedDecoder(self._translator, encoded))
        return False

    def _prompt(self, tokens: Sequence[int]) -> list[int]:
        begun = list(tokens[:1]) == [self._start]
        return list(tokens) if begun else [self._start, *tokens]

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        """Read the source, and the beginning of the target."""
        return self._inner.start(self._prompt(tokens), _encode(self._translator, self._source))

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        """Read one more token in each row."""
        return self._inner.step(state, tokens)

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        """The state of some rows."""
        return self._inner.select(state, rows)

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        """Several batches of states as one."""
        return self._inner.concatenate(states)

    def bytes_of(self, state: ModelState, /) -> int:
        """The memory a state takes."""
        return self._inner.bytes_of(state)

    def row_bytes(self, state: ModelState, depth: int, /) -> int:
        """The memory that a row takes at most when it is `depth` tokens longer than the state of the root."""
        if isinstance(self._inner, CachedDecoder):
            return self._inner.row_bytes(state, depth)
        return self._inner.bytes_of(state)


class TargetTokenizer:
    """A tokenizer whose texts begin with the token that a decoder begins with.

    With it the format on the target side needs no text before its first blank.

    Args:
        tokenizer: The tokenizer of the target language.
        start: The token that targets begin with, which stands for no text.

    Example:
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> tokenizer = TargetTokenizer(CharTokenizer("^0123456789"), start=0)
        >>> tokenizer.encode("42"), tokenizer.decode([0, 5, 3])
        ([0, 5, 3], '42')
    """

    def __init__(self, tokenizer: Tokenizer, start: int) -> None:
        self._tokenizer = tokenizer
        self._start = start

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return max(self._tokenizer.vocab_size, self._start + 1)

    def encode(self, text: str, /) -> list[int]:
        """The token ids of a text, after the start token."""
        return [self._start, *self._tokenizer.encode(text)]

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of some token ids; the start token has none."""
        return self._tokenizer.decode([token for token in ids if token != self._start])


def start_token(translator: Translator, start: int | None) -> int:
    """The token that targets begin with: what was asked for, or what the module says.

    Raises:
        ArgumentError: Neither.
    """
    found = translator.start_id if start is None else start
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ArgumentError(
            f"start is {start!r}, and {type(translator.module).__name__} says {translator.start_id!r}; expected the id of "
            "the token that the decoder was trained to begin with. Give start=..., or set decoder_start_token_id in the "
            "model's configuration (for a module of your own, an attribute start_id)."
        )
    return found


class _Stepping(Protocol):
    """A `StepModel` that is told what the encoder made of the source."""

    def start(self, tokens: Sequence[int], encoded: ModelState, /) -> tuple[Tensor, ModelState]: ...

    def step(self, state: Any, tokens: Tensor, /) -> tuple[Tensor, ModelState]: ...

    def select(self, state: Any, rows: Tensor, /) -> ModelState: ...

    def concatenate(self, states: Sequence[Any], /) -> ModelState: ...

    def bytes_of(self, state: Any, /) -> int: ...


class _ConditionedDecoder(nn.Module):
    """A decoder with its source: token ids to logits, or to logits and a state."""

    def __init__(self, translator: Translator, encoded: ModelState) -> None:
        super().__init__()
        self.module = translator.module
        self.translator = translator
        self.encoded = encoded

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        return self.translator.decode(tokens, self.translator.expand(self.encoded, len(tokens)), state)


class _RecurrentDecoder(RecurrentAdapter):
    """Goes on from the state that `decode` returns."""

    _module: _ConditionedDecoder

    def start(self, tokens: Sequence[int], encoded: ModelState, /) -> tuple[Tensor, ModelState]:  # type: ignore[override]
        self._module.encoded = encoded
        return super().start(tokens)


class _RereadingDecoder(StatelessAdapter):
    """Reads the target from its beginning each time."""

    _module: _ConditionedDecoder

    def start(self, tokens: Sequence[int], encoded: ModelState, /) -> tuple[Tensor, Any]:  # type: ignore[override]
        self._module.encoded = encoded
        return super().start(tokens)


def _inner(translator: Translator, source: list[int], start: int) -> _Stepping:
    """What steps with the decoder: the fastest that reads as the decoder itself does when it reads all at once."""
    with evaluating(translator.module):
        encoded = _encode(translator, source)
        try:
            tokens, truth = _trial(translator, encoded, start)
        except Exception as error:
            raise ModelError(
                f"{type(translator.module).__name__} failed on a source of {len(source)} tokens and a target that "
                f"begins with token {start}: {error!r}. Are these ids within its vocabularies, and the source not too long?"
            ) from error
        try:
            inner: _Stepping
            if isinstance(translator, HuggingFaceTranslator):
                inner = CachedDecoder(translator)
            else:
                inner = _RecurrentDecoder(_ConditionedDecoder(translator, encoded), state_argument="state")
            if _reads_in_parts(inner, encoded, tokens, truth):
                return inner
        except _TROUBLE:
            pass
        return _RereadingDecoder(_ConditionedDecoder(translator, encoded))


def _encode(translator: Translator, source: list[int]) -> ModelState:
    return translator.encode(torch.tensor([source], device=device_of(translator.module)))


def _trial(translator: Translator, encoded: ModelState, start: int) -> tuple[Tensor, Tensor]:
    """Three targets of six tokens, and the logits after each, read at once."""
    begin = torch.full((3, 1), start, device=device_of(translator.module))
    vocabulary = target_logits(translator, begin, translator.expand(encoded, 3)).shape[-1]
    places = torch.arange(1, 6, device=begin.device)
    # Different tokens among the first, which every vocabulary has; but not the very first, where padding often is.
    tokens = places**2 + torch.arange(3, device=begin.device)[:, None] * places
    tokens = 3 + tokens % 8 if vocabulary > 11 else tokens % vocabulary
    tokens = torch.cat([begin, tokens], dim=1)
    return tokens, target_logits(translator, tokens, translator.expand(encoded, 3))[:, -1]


def _reads_in_parts(inner: _Stepping, encoded: ModelState, tokens: Tensor, truth: Tensor, begin: int = 1) -> bool:
    """Whether steps from a state give what reading at once gives, also in rows that are chosen and put together.

    Args:
        inner: What steps.
        encoded: What the encoder made of the source.
        tokens: Three targets, all with the same beginning.
        truth: The logits after each of them, read at once.
        begin: How many tokens the beginning has.
    """
    _, state = inner.start(tokens[0, :begin].tolist(), encoded)
    state = inner.select(state, torch.zeros(3, dtype=torch.long, device=tokens.device))
    logits, state = inner.step(state, tokens[:, begin])
    state = inner.concatenate([inner.select(state, torch.tensor(rows, device=tokens.device)) for rows in ([2, 0], [1])])
    order = torch.tensor([2, 0, 1], device=tokens.device)
    logits = logits[order]
    for column in tokens[order, begin + 1 :].T:
        logits, state = inner.step(state, column)
    truth = truth[order]
    # Beside rounding, an error must be small beside the difference that it makes what was read: in an untrained model
    # that may be very little.
    eps = torch.finfo(truth.dtype).eps
    rounding = min(0.05, 128.0 * eps) * max(1.0, spread(truth)) + 4.0 * eps * typical(truth)
    difference = float((truth - truth.roll(1, dims=0)).abs().max())
    return logits.shape == truth.shape and bool((logits - truth).abs().max() <= rounding + 1e-3 * difference)


def _token_ids(source: object) -> list[int]:
    """The ids of a source, as a list.

    Raises:
        ArgumentError: Something else was given; a source with blanks is sent to where it belongs.
    """
    if isinstance(source, SecretFormat):
        raise ArgumentError(
            f"source is the format {source.pattern!r}: every secret would have a source of its own, and secrets with "
            "different sources share no tree. Give the token ids of one source, or measure such translations with "
            "lightning_exposure.exposure.tied.measure_tied_exposure."
        )
    ids = source.tolist() if isinstance(source, Tensor) else source
    if isinstance(ids, Sequence) and not isinstance(ids, str) and len(ids):
        whole = [token for token in ids if isinstance(token, int) and not isinstance(token, bool) and token >= 0]
        if len(whole) == len(ids):
            return whole
    raise ArgumentError(
        f"source is {source!r:.80}; expected the token ids of one source, for example tokenizer.encode('...')."
    )
