"""The adapter for encoder-decoders, such as translation models: the format is on the target side.

With the source given, the targets are a tree like any other, and everything is exact: the cost of a secret is
`-log2 P(target after its prompt | source, prompt)`. If the source has blanks of its own that are filled as the
target's are, every secret has another source. A node of the tree would then stand for as many sources as secrets go
through it, and no bound on what they cost follows from what it costs under one of them. Such pairs are scored one
by one: see `lightning_exposure.adapters.encoder_decoder.translations` and `lightning_exposure.exposure.tied`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.encoder_decoder._decoder_caches import CachedDecoder
from lightning_exposure.adapters.encoder_decoder._decoders import decoder_of, encode, goes_on, rereading_decoder
from lightning_exposure.adapters.encoder_decoder._translators import Translator, target_logits, translator_of
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tokenization.protocol import Tokenizer


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
        self._decoder = decoder_of(self._translator, self._source, self._start)
        self.keeps_state = getattr(self._decoder, "rereads", False) is not True

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
        encoded = self._translator.expand(encode(self._translator, self._source), len(tokens))
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
            self._decoder.encoded = encode(self._translator, self._source)
            self.keeps_state = goes_on(self._decoder, self._translator, self._prompt(root), paths)
            if not self.keeps_state:
                self._decoder = rereading_decoder(self._translator, self._decoder.encoded)
        return False

    def _prompt(self, tokens: Sequence[int]) -> list[int]:
        begun = list(tokens[:1]) == [self._start]
        return list(tokens) if begun else [self._start, *tokens]

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        """Read the source, and the beginning of the target."""
        self._decoder.encoded = encode(self._translator, self._source)
        return self._decoder.start(self._prompt(tokens))

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        """Read one more token in each row."""
        return self._decoder.step(state, tokens)

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        """The state of some rows."""
        return self._decoder.select(state, rows)

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        """Several batches of states as one."""
        return self._decoder.concatenate(states)

    def bytes_of(self, state: ModelState, /) -> int:
        """The memory a state takes."""
        return self._decoder.bytes_of(state)

    def row_bytes(self, state: ModelState, depth: int, /) -> int:
        """The memory that a row takes at most when it is `depth` tokens longer than the state of the root."""
        if isinstance(self._decoder, CachedDecoder):
            return self._decoder.row_bytes(state, depth)
        return self._decoder.bytes_of(state)


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
            f"start is {start!r}, and {type(translator.module).__name__} says {translator.start_id!r}; expected the "
            "id of the token that the decoder was trained to begin with. Give start=..., or set decoder_start_token_id "
            "in the model's configuration (for a module of your own, an attribute start_id)."
        )
    return found


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
