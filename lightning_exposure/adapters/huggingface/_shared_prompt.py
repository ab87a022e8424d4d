"""Reading on from one prompt in many rows: the prompt's key-value cache is kept once, a row keeps only its own tokens.

transformers lets a model write its keys and values to a cache object and attend to what that object returns. Here one
such object notes the prompt, and another one puts prompt, own tokens and new token together for each layer.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._key_values import KeysAndValues, PromptKeyValues, RowKeyValues, join
from lightning_exposure.adapters.huggingface._attention import attending_with, attention_configs, hidden_keys
from lightning_exposure.adapters.huggingface.pretrained import PretrainedCall
from lightning_exposure.errors import ModelError


class SharedPromptReader:
    """Steps of a causal LM from a prompt that is kept once.

    Args:
        call: The model.
        in_attention: Whether the model's attention function is replaced, during a step, by one that looks the prompt
            up without copying it; False: the prompt is repeated for every row, one layer at a time, and forgotten
            again after the layer. The second is for models with an attention of their own making.

    Raises:
        ModelError: The model takes no key-value cache.
    """

    def __init__(self, call: PretrainedCall, *, in_attention: bool) -> None:
        self._call = call
        self._in_attention = in_attention
        self._configs = attention_configs(call.module) if in_attention else []
        self._last: weakref.ref[PromptKeyValues] | None = None
        if not call.accepts("past_key_values"):
            raise ModelError(f"forward of {call.name} takes no past_key_values")

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._call.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, RowKeyValues]:
        """Read a prompt with the model's own attention."""
        ids = self._call.ids(tokens)
        recording = _new(_Recording)
        logits, _ = self._call.last_logits(
            ids, past_key_values=recording, use_cache=True, attention_mask=torch.ones_like(ids)
        )
        prompt = self._known(recording.prompt(tuple(tokens)))
        return logits[:, -1], prompt.no_tokens()

    def step(self, state: RowKeyValues, tokens: Tensor, /) -> tuple[Tensor, RowKeyValues]:
        """Read one more token in each row."""
        self._call.refuse_beyond_end(len(state.prompt.tokens) + state.columns + 1)
        if self._in_attention:
            return self._read(state, tokens)
        # The model's own masks know nothing of rows that are shorter than others: each length is a call of its own.
        lengths = torch.unique(state.lengths).tolist()
        if len(lengths) == 1:
            return self._read(state, tokens)
        groups = [(state.lengths == length).nonzero()[:, 0] for length in lengths]
        parts = [self._read(self.select(state, rows), tokens[rows]) for rows in groups]
        back = torch.cat(groups).argsort()
        return torch.cat([logits for logits, _ in parts])[back], self.select(
            self.concatenate([after for _, after in parts]), back
        )

    def select(self, state: RowKeyValues, rows: Tensor, /) -> RowKeyValues:
        """Some of the rows."""
        return state.select(rows)

    def concatenate(self, states: Sequence[RowKeyValues], /) -> RowKeyValues:
        """Several batches of rows as one."""
        return join(states)

    def bytes_of(self, state: RowKeyValues, /) -> int:
        """The memory that the rows take beside the prompt, which is there once."""
        return state.nbytes

    def row_bytes(self, state: RowKeyValues, depth: int, /) -> int:
        """The memory that a row takes at most when it is `depth` tokens long, with its share of what a step needs.

        A step needs, for a while, the widest activations of a layer, the scores of its attention, and products of as
        many numbers as a row's keys; or, where the prompt is repeated for every row, the keys and values of a layer,
        prompt included, and the copies made of them. Walks make room for at least three states of every row, but only
        one step is under way: a third of it is enough.
        """
        layers = state.prompt.layers
        length = len(state.prompt.tokens) + depth
        pairs = [sum(tensor[:, 0].nbytes for tensor in pair) for pair in layers]  # of one token
        seen = max(pairs) * (depth if self._in_attention else 3 * length)
        scores = 4 * 4 * length * getattr(self._call.config, "num_attention_heads", len(layers[0][0]))
        step = seen + scores + 6 * self._widest() * layers[0][0].element_size()
        return (depth + 1) * sum(pairs) + state.lengths.element_size() + step // 3

    def contents(self, state: RowKeyValues) -> Iterator[Tensor]:
        """All that the model remembers of a batch of one row, prompt and own tokens, tensor by tensor."""
        for layer, pair in enumerate(state.prompt.layers):
            for which, prompt in enumerate(pair):
                yield torch.cat([prompt.transpose(0, 1), state.own(layer, which)[0]])

    def _read(self, state: RowKeyValues, tokens: Tensor) -> tuple[Tensor, RowKeyValues]:
        continuing = _new(_Continuing, state, repeats=not self._in_attention)
        options = {
            "past_key_values": continuing,
            "use_cache": True,
            "position_ids": (len(state.prompt.tokens) + state.lengths)[:, None],
        }
        if self._in_attention:
            with attending_with(continuing, self._configs):
                logits, _ = self._call.last_logits(tokens[:, None], **options)
        else:
            logits, _ = self._call.last_logits(tokens[:, None], **options)
        return logits[:, -1], continuing.after()

    def _known(self, prompt: PromptKeyValues) -> PromptKeyValues:
        """The prompt as it was read before, if it is still in use: a walk that comes back to it keeps one copy."""
        last = None if self._last is None else self._last()
        if last is not None and last.holds_the_same_as(prompt):
            return last
        self._last = weakref.ref(prompt)
        return prompt

    def _widest(self) -> int:
        """The widest layer between two others; the embeddings and the head are no such layers."""
        matrices = [parameter.shape for parameter in self.module.parameters() if parameter.dim() == 2]
        vocabulary = getattr(self._call.config, "vocab_size", 0)
        return max((size for shape in matrices if vocabulary not in shape for size in shape), default=0)


class _PlainCache:
    """What transformers asks any cache: how much was read before. The layers are not sliding: all is kept."""

    def __init__(self, past: int) -> None:
        self.past = past
        self.layers: list[Any] = []
        self.offloading = False

    def __len__(self) -> int:
        return 1

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.past

    def get_mask_sizes(self, query_length: Any, *_: Any, **__: Any) -> tuple[int, int]:
        return self.past + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_max_length(self, *_: Any, **__: Any) -> int:
        return -1


class _Recording(_PlainCache):
    """Notes the keys and values of a prompt."""

    def __init__(self) -> None:
        super().__init__(past=0)
        self._recorded: dict[int, KeysAndValues] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        if layer_idx in self._recorded:
            raise ModelError(f"layer {layer_idx} wrote to the cache twice")
        self._recorded[layer_idx] = (keys[0].contiguous(), values[0].contiguous())
        return keys, values

    def prompt(self, tokens: tuple[int, ...]) -> PromptKeyValues:
        if not self._recorded or any(keys.shape[1] != len(tokens) for keys, _ in self._recorded.values()):
            raise ModelError("the model does not keep the keys and values of all tokens")
        numbers = {number: place for place, number in enumerate(self._recorded)}
        return PromptKeyValues(tokens, tuple(self._recorded.values()), numbers)


class _Continuing(_PlainCache):
    """Gives the model, layer by layer, what rows have read, and keeps what they read now."""

    def __init__(self, state: RowKeyValues, *, repeats: bool) -> None:
        super().__init__(past=len(state.prompt.tokens) + state.columns)
        self._prompt = state.prompt
        self._repeats = repeats
        self._after = state.with_one_more_column()
        self._written: set[int] = set()
        self._returned: tuple[Tensor, Tensor, int] | None = None
        self._masks: dict[int | None, Tensor | None] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        if self._returned is not None:
            raise ModelError("a layer took its keys from the cache and did not attend to them")
        layer = self._prompt.numbers[layer_idx]
        for which, new in enumerate((keys, values)):
            self._after.own(layer, which)[:, -1] = new[:, :, 0]
        self._written.add(layer)
        if self._repeats:
            return self._repeated(layer, 0), self._repeated(layer, 1)
        self._returned = (keys, values, layer)
        return keys, values

    def seen(self, keys: Tensor, values: Tensor, /) -> tuple[KeysAndValues, KeysAndValues]:
        # The very tensors: a model that does something to them in between would do it to the prompt's too.
        if self._returned is None or self._returned[0] is not keys or self._returned[1] is not values:
            raise ModelError("a layer attends to other keys and values than those of the cache")
        layer, self._returned = self._returned[2], None
        return self._prompt.layers[layer], (self._after.own(layer, 0), self._after.own(layer, 1))

    def hidden(self, window: int | None, /) -> Tensor | None:
        if window not in self._masks:  # the same in all layers with this window
            prompt, columns = len(self._prompt.tokens), self._after.columns
            self._masks[window] = hidden_keys(self._after.lengths, prompt, columns, window)
        return self._masks[window]

    def after(self) -> RowKeyValues:
        if len(self._written) < len(self._prompt.layers) or self._returned is not None:
            raise ModelError("not all layers read the cache that they wrote")
        return self._after

    def _repeated(self, layer: int, which: int) -> Tensor:
        own = self._after.own(layer, which).transpose(1, 2)
        return torch.cat([self._prompt.layers[layer][which].expand(len(own), -1, -1, -1), own], dim=2)


def _new(kind: type[Any], *arguments: Any, **options: Any) -> Any:
    """One of the caches above as a cache of transformers, which is imported only now."""
    if kind not in _OF_TRANSFORMERS:
        base: Any = importlib.import_module("transformers.cache_utils").Cache
        _OF_TRANSFORMERS[kind] = type(kind.__name__, (kind, base), {})
    return _OF_TRANSFORMERS[kind](*arguments, **options)


_OF_TRANSFORMERS: dict[type[Any], type[Any]] = {}
