"""The adapter for Hugging Face causal LMs: the prompt is read once, one more token costs one step.

How a model can be read on from the middle differs: by its keys and values, by a state like that of a recurrent
network, or not at all. The adapter tries the ways in turn, fastest first, on the model itself, and takes the first one
that gives the numbers of reading everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from lightning_exposure._checks import choice
from lightning_exposure.adapters._reading_in_parts import ReadsOn, difference_in_parts
from lightning_exposure.adapters.huggingface._fixed_size_states import CarriedCacheReader
from lightning_exposure.adapters.huggingface._pretrained import (
    PretrainedCall,
    is_pretrained,
    language_model_of,
    refuse_encoder_decoder,
)
from lightning_exposure.adapters.huggingface._shared_prompt import SharedPromptReader
from lightning_exposure.adapters.protocol import StepModel, evaluating
from lightning_exposure.adapters.registry import ADAPTERS
from lightning_exposure.adapters.stateless import StatelessAdapter, Tokens
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ModelError

_SHORT = 5
"""How many tokens the first trial's prompt has."""
_STEPS = 3
"""How many tokens are read one by one in a trial."""
_LONG = 512
"""A window up to this size is crossed in a trial when the adapter is made; a larger one when a prompt comes near."""
_LOGITS_AT_ONCE = 2**26
"""How many logits are compared at most in a trial, those of the last tokens."""
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "local_window_size")
"""What configs call the number of tokens after which something is no longer seen."""


class WayOfReading(ReadsOn, Protocol):
    """One way to read on: what a `StepModel` does, and what is needed to try it out and to bound its memory."""

    def bytes_of(self, state: ModelState, /) -> int:
        """The memory that the rows take."""
        ...

    def row_bytes(self, state: ModelState, depth: int, /) -> int:
        """The memory that one row takes at most, `depth` tokens after the prompt, while it is read."""
        ...


class _RereadingReader(StatelessAdapter):
    """Reads everything again for every token; no trial is needed."""

    def __init__(self, call: PretrainedCall) -> None:
        super().__init__(call.module)
        self._call = call

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, Tokens]:
        self._call.ids(tokens)  # refuses what the model cannot read
        return super().start(tokens)

    def step(self, state: Tokens, tokens: Tensor, /) -> tuple[Tensor, Tokens]:
        self._call.refuse_beyond_end(state.ids.shape[1] + 1)
        return super().step(state, tokens)

    def row_bytes(self, state: Tokens, depth: int, /) -> int:
        return self.bytes_of(state) + 8 * depth

    def contents(self, state: Tokens) -> Iterator[Tensor]:
        yield state.ids

    def at_once(self, tokens: Tensor) -> Tensor:
        return self._call.logits_without_cache(tokens, tokens.shape[1])

    def _last_logits(self, ids: Tensor) -> Tensor:
        return self._call.logits_without_cache(ids, 1)[:, -1]


WAYS: Mapping[str, Callable[[PretrainedCall], WayOfReading]] = MappingProxyType(
    {
        "attention": lambda call: SharedPromptReader(call, in_attention=True),
        "cache": lambda call: SharedPromptReader(call, in_attention=False),
        "state": CarriedCacheReader,
        "recompute": _RereadingReader,
    }
)
"""The ways to read on, in the order in which they are tried."""


@ADAPTERS.register("huggingface", priority=-10)
class HuggingFaceAdapter:
    """Reads with a Hugging Face causal LM, with or without PEFT's adapters.

    The key-value cache of the prompt is computed once and shared by all rows; a row keeps the keys and values of its
    own tokens only. There is no padding: rows of different lengths are read together and each as if it were alone.
    Nothing of the model or its config is changed.

    Ways to read on, tried in this order on the model itself:

    - "attention": during a step the model's attention function is replaced by one that looks the prompt up without
      copying it. For every model that goes through transformers' attention interface; sliding windows, grouped
      queries, sinks and capped scores included.
    - "cache": the prompt's keys and values are repeated for the rows of a batch, one layer at a time.
    - "state": each row carries a state of constant size (Mamba, RWKV).
    - "recompute": the whole row is read again for each token. Always right, and slow.

    Args:
        model: An `AutoModelForCausalLM`, or PEFT's shell around one.
        adapters: Whether PEFT's adapters are on; False measures the base model.
        way: One of the ways above; None: the first that gives the numbers of reading everything at once.

    Attributes:
        way: The way that is used. A prompt longer than any tried before is a new trial, after which it may be another.
        why: Why the ways before it are not used; None if it is the first.

    Raises:
        ModelError: The model is no causal LM, or the given way does not give the right numbers.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
        >>> adapter = HuggingFaceAdapter(GPT2LMHeadModel(config))
        >>> adapter.way
        'attention'
        >>> logits, state = adapter.start([1, 2, 3])
        >>> logits, state = adapter.step(adapter.select(state, torch.tensor([0, 0])), torch.tensor([4, 5]))
        >>> logits.shape, len(state.prompt.tokens), state.lengths.tolist()
        (torch.Size([2, 20]), 3, [1, 1])
    """

    def __init__(self, model: nn.Module, *, adapters: bool = True, way: str | None = None) -> None:
        _refuse_other_models(model)
        if way is not None:
            choice("way", way, WAYS, remedy="None tries them.")
        self._call = PretrainedCall(model, adapters=adapters)
        self._left = list(WAYS) if way is None else [way]
        self._refused: dict[str, str] = {}
        self._tried = 0  # the longest row that was read both ways
        with evaluating(model):
            _refuse_failing(self._call)
            self._reader = self._next_reader()
            for length in _trial_lengths(self._call):
                self._try_out(_tokens(self._call, length))

    @classmethod
    def recognise(cls, module: nn.Module, /, *, context: int | None = None) -> StepModel | None:
        """An adapter for the Hugging Face causal LM that a module is or holds; None if there is none.

        Raises:
            ModelError: There are several and nothing says which; or it is an encoder-decoder, which needs a source.
        """
        model = language_model_of(module)
        if model is None:
            return None
        return cls(model) if context is None else StatelessAdapter(model, context=context)

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._call.module

    @property
    def way(self) -> str:
        """How it is read."""
        return self._left[0]

    @property
    def why(self) -> str | None:
        """Why not in one of the ways that were tried before."""
        return "; ".join(f"{way}: {reason}" for way, reason in self._refused.items()) or None

    @property
    def rereads(self) -> bool:
        """Whether a step is a pass over all tokens."""
        return self.way == "recompute"

    @property
    def longest(self) -> int | None:
        """The largest number of tokens that the model can read."""
        return self._call.positions

    def at_once(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocabulary)` of one pass over rows, without a cache."""
        return self._call.logits_without_cache(tokens, tokens.shape[1])

    def try_out(self, root: Sequence[int], paths: Sequence[Sequence[int]], /) -> bool:
        """Read a secret to its end, in parts and at once, and go on to other ways until both are the same.

        What a model does may change with the length of a text: a window that is left, frequencies of positions that
        change beyond a limit.

        Args:
            root: The tokens before the secrets.
            paths: The tokens of some secrets, as long as the longest.

        Returns:
            Whether that shows that no token sees those after it; reading everything again shows nothing of the kind.
        """
        self._call.ids(root)
        room = len(paths[0]) if self._call.positions is None else self._call.positions - len(root)
        if len(paths[0][:room]) > 0:
            self._try_out(list(root), [list(path[:room]) for path in paths[:2]])
        return not self.rereads

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        """Read a prompt."""
        self._call.ids(tokens)
        with torch.no_grad():
            if len(tokens) + _STEPS > self._tried:
                self._try_out(list(tokens))
            return self._reader.start(tokens)

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        """Read one more token in each row."""
        with torch.no_grad():
            return self._reader.step(state, tokens)

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        """Some of the rows."""
        return self._reader.select(state, rows)

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        """Several batches of rows as one."""
        return self._reader.concatenate(states)

    def bytes_of(self, state: ModelState, /) -> int:
        """The memory that the rows take; what they share is not counted."""
        return self._reader.bytes_of(state)

    def row_bytes(self, state: ModelState, depth: int, /) -> int:
        """The memory that one row takes at most, `depth` tokens after a prompt, while it is read."""
        return self._reader.row_bytes(state, depth)

    def _next_reader(self) -> WayOfReading:
        """The first of the ways that are left that does not fail at once."""
        while True:
            try:
                return WAYS[self.way](self._call)
            except Exception as error:  # whatever a model of unknown making does
                self._give_up(repr(error) if not isinstance(error, ModelError) else str(error))

    def _give_up(self, reason: str) -> None:
        """Go on to the next way."""
        self._refused[self.way] = reason
        if len(self._left) == 1:
            raise ModelError(
                f"{self._call.name} cannot be read in the way that was asked for: {self.why}. Leave way out to try "
                "the others."
            )
        self._left.pop(0)

    def _try_out(self, prompt: Sequence[int], paths: Sequence[list[int]] | None = None) -> None:
        """Read a prompt and some more tokens one by one, and everything at once; go on to other ways until it fits."""
        if paths is None:
            steps = _STEPS if self._call.positions is None else min(_STEPS, self._call.positions - len(prompt))
            more = list(prompt[-steps:]) if steps > 0 else []
            paths = [more, more[::-1]]
        steps = len(paths[0])
        last = _compared(self._call, steps + 1)
        while self.way != "recompute":
            try:
                reason = difference_in_parts(self._reader, self._call.logits_without_cache, prompt, paths, last=last)
            except Exception as error:  # whatever a model of unknown making does
                reason = repr(error) if not isinstance(error, ModelError) else str(error)
            if reason is None:
                break
            self._give_up(reason)
            self._reader = self._next_reader()
        self._tried = max(self._tried, len(prompt) + max(_STEPS, steps))


def _compared(call: PretrainedCall, tokens: int) -> int:
    """After how many of the last tokens logits are compared."""
    return max(2, min(tokens, _LOGITS_AT_ONCE // max(1, getattr(call.config, "vocab_size", 1)))) if tokens > 1 else 1


def _trial_lengths(call: PretrainedCall) -> list[int]:
    """Lengths of the prompts to try when the adapter is made: a short one, and those that come up to a window."""
    windows = {getattr(call.config, name, None) for name in _WINDOWS}
    lengths = [_SHORT, *sorted(w - 1 for w in windows if isinstance(w, int) and 1 < w <= _LONG)]
    if call.positions is not None:
        lengths = [min(length, max(1, call.positions - _STEPS)) for length in lengths]
    return lengths


def _tokens(call: PretrainedCall, length: int) -> list[int]:
    """Tokens that any vocabulary has, in an order without a short period."""
    vocabulary = max(2, min(97, getattr(call.config, "vocab_size", 2)))
    return [(i * i + 3 * i + 1) % vocabulary for i in range(length)]


def _refuse_failing(call: PretrainedCall) -> None:
    """A model that cannot read at all cannot be read in any way."""
    try:
        call.at_once(_tokens(call, 1), 1)
    except Exception as error:
        raise ModelError(
            f"forward of {call.name} failed on one token alone: {error!r}. It must take token ids (batch, time) and "
            "return logits; hand SecretTree a StepModel of your own if it needs more than that."
        ) from error


def _refuse_other_models(model: nn.Module) -> None:
    if not is_pretrained(model):
        raise ModelError(
            f"model is {type(model).__name__}; expected a Hugging Face model with a language-model head "
            "(AutoModelForCausalLM), or PEFT's shell around one. Use step_model(module) for other modules."
        )
    refuse_encoder_decoder(model)
