"""Reading on from one prompt in many rows: the prompt's key-value cache is kept once, a row keeps only its own tokens.

A state has for each row the keys and values of the tokens after the prompt, in all layers. Rows of different lengths
stand in one batch, each at the end of the columns, so that the newest token of every row is in the last one.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.language.attention import attending_with, attention_configs, hidden_keys
from lightning_exposure.language.pretrained import PretrainedCall
from lightning_exposure.language.states import bytes_of

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class SharedPrompt:
    """The key-value cache of a prompt, for all rows that go on from it.

    Attributes:
        tokens: The prompt.
        layers: Keys and values of each layer `(key heads, tokens, size)`.
        numbers: For each number by which the model calls a layer, which of the layers it is.
    """

    tokens: tuple[int, ...]
    layers: tuple[Pair, ...]
    numbers: dict[int, int]

    @cached_property
    def places(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Where rows keep their own keys (0) and values (1) of each layer: in which stack, and which of it."""
        stacks: dict[tuple[int, torch.dtype, torch.device], list[tuple[int, int]]] = {}
        for layer, pair in enumerate(self.layers):
            for which, tensor in enumerate(pair):
                kind = (tensor.shape[0] * tensor.shape[2], tensor.dtype, tensor.device)
                stacks.setdefault(kind, []).append((layer, which))
        return {of: (stack, at) for stack, kept in enumerate(stacks.values()) for at, of in enumerate(kept)}

    def holds_the_same_as(self, other: SharedPrompt) -> bool:
        """Whether another prompt was read by the same weights to the same effect."""
        return self.tokens == other.tokens and all(
            torch.equal(mine, theirs)
            for pair, others in zip(self.layers, other.layers, strict=True)
            for mine, theirs in zip(pair, others, strict=True)
        )


class Suffixes(NamedTuple):
    """What some rows have read after a prompt.

    Attributes:
        prompt: What they all read before.
        lengths: How many tokens each row has of its own.
        stacks: Their keys and values in all layers `(tensors, rows, columns, key heads x size)`, those of one size in
            one stack; a row that is shorter than others has zeros in its first columns. Few and large, because memory
            that is given back in small pieces is rarely of use to others.
    """

    prompt: SharedPrompt
    lengths: Tensor
    stacks: tuple[Tensor, ...]

    @property
    def columns(self) -> int:
        """How many tokens there is room for."""
        return self.stacks[0].shape[2]

    def own(self, layer: int, which: int) -> Tensor:
        """The rows' own keys (0) or values (1) of a layer `(rows, columns, key heads, size)`."""
        stack, at = self.prompt.places[layer, which]
        heads, _, size = self.prompt.layers[layer][which].shape
        tensor = self.stacks[stack][at]
        return tensor.view(*tensor.shape[:2], heads, size)


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
        self._last: weakref.ref[SharedPrompt] | None = None
        if not call.accepts("past_key_values"):
            raise ModelError(f"forward of {call.name} takes no past_key_values")

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._call.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, Suffixes]:
        """Read a prompt with the model's own attention."""
        ids = self._call.ids(tokens)
        recording = _new(_Recording)
        logits, _ = self._call.last_logits(
            ids, past_key_values=recording, use_cache=True, attention_mask=torch.ones_like(ids)
        )
        prompt = self._known(recording.prompt(tuple(tokens)))
        return logits[:, -1], Suffixes(prompt, torch.zeros(1, dtype=torch.long, device=ids.device), _no_tokens(prompt))

    def step(self, state: Suffixes, tokens: Tensor, /) -> tuple[Tensor, Suffixes]:
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

    def select(self, state: Suffixes, rows: Tensor, /) -> Suffixes:
        """Some of the rows, with no more columns than the longest of them needs."""
        lengths = state.lengths[rows]
        unused = state.columns - int(lengths.max()) if len(rows) else 0
        stacks = tuple(stack[:, :, unused:].index_select(1, rows.to(stack.device)) for stack in state.stacks)
        return Suffixes(state.prompt, lengths, stacks)

    def concatenate(self, states: Sequence[Suffixes], /) -> Suffixes:
        """Several batches of rows as one, with as many columns as the longest row needs."""
        if len(states) == 1:
            return states[0]
        prompt = states[0].prompt
        if any(state.prompt.tokens != prompt.tokens for state in states):
            raise ModelError("states after different prompts cannot be put together: each tree has its own.")
        stacks = tuple(_joined(stacks) for stacks in zip(*(state.stacks for state in states), strict=True))
        return Suffixes(prompt, torch.cat([state.lengths for state in states]), stacks)

    def bytes_of(self, state: Suffixes, /) -> int:
        """The memory that the rows take beside the prompt, which is there once."""
        return bytes_of(state.stacks) + bytes_of(state.lengths)

    def row_bytes(self, state: Suffixes, depth: int, /) -> int:
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
        return depth * sum(pairs) + state.lengths.element_size() + step // 3

    def contents(self, state: Suffixes) -> Iterator[Tensor]:
        """All that the model remembers of a batch of one row, prompt and own tokens, tensor by tensor."""
        for layer, pair in enumerate(state.prompt.layers):
            for which, prompt in enumerate(pair):
                yield torch.cat([prompt.transpose(0, 1), state.own(layer, which)[0]])

    def _read(self, state: Suffixes, tokens: Tensor) -> tuple[Tensor, Suffixes]:
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

    def _known(self, prompt: SharedPrompt) -> SharedPrompt:
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


def _no_tokens(prompt: SharedPrompt) -> tuple[Tensor, ...]:
    """The stacks of one row that has read nothing after the prompt."""
    kept: dict[int, list[Tensor]] = {}
    for (layer, which), (stack, _) in prompt.places.items():
        kept.setdefault(stack, []).append(prompt.layers[layer][which])
    return tuple(of[0].new_empty(len(of), 1, 0, of[0].shape[0] * of[0].shape[2]) for of in kept.values())


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several stacks, each at the end of its columns; never uninitialised, not even where unseen."""
    columns = max(part.shape[2] for part in parts)
    if all(part.shape[2] == columns for part in parts):
        return torch.cat(list(parts), dim=1)
    tensors, _, _, width = parts[0].shape
    joined = parts[0].new_empty(tensors, sum(part.shape[1] for part in parts), columns, width)
    first = 0
    for part in parts:
        rows = joined[:, first : first + part.shape[1]]
        rows[:, :, : columns - part.shape[2]] = 0
        rows[:, :, columns - part.shape[2] :] = part
        first += part.shape[1]
    return joined


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
        self._recorded: dict[int, Pair] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> Pair:
        if layer_idx in self._recorded:
            raise ModelError(f"layer {layer_idx} wrote to the cache twice")
        self._recorded[layer_idx] = (keys[0].contiguous(), values[0].contiguous())
        return keys, values

    def prompt(self, tokens: tuple[int, ...]) -> SharedPrompt:
        if not self._recorded or any(keys.shape[1] != len(tokens) for keys, _ in self._recorded.values()):
            raise ModelError("the model does not keep the keys and values of all tokens")
        numbers = {number: place for place, number in enumerate(self._recorded)}
        return SharedPrompt(tokens, tuple(self._recorded.values()), numbers)


class _Continuing(_PlainCache):
    """Gives the model, layer by layer, what rows have read, and keeps what they read now."""

    def __init__(self, state: Suffixes, *, repeats: bool) -> None:
        super().__init__(past=len(state.prompt.tokens) + state.columns)
        self._prompt = state.prompt
        self._repeats = repeats
        self._after = Suffixes(state.prompt, state.lengths + 1, tuple(map(_with_one_more_column, state.stacks)))
        self._written: set[int] = set()
        self._returned: tuple[Tensor, Tensor, int] | None = None
        self._masks: dict[int | None, Tensor | None] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> Pair:
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

    def seen(self, keys: Tensor, values: Tensor, /) -> tuple[Pair, Pair]:
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

    def after(self) -> Suffixes:
        if len(self._written) < len(self._prompt.layers) or self._returned is not None:
            raise ModelError("not all layers read the cache that they wrote")
        return self._after

    def _repeated(self, layer: int, which: int) -> Tensor:
        own = self._after.own(layer, which).transpose(1, 2)
        return torch.cat([self._prompt.layers[layer][which].expand(len(own), -1, -1, -1), own], dim=2)


def _with_one_more_column(stack: Tensor) -> Tensor:
    """A copy with room for one more token, which is not written yet."""
    tensors, rows, columns, width = stack.shape
    longer = stack.new_empty(tensors, rows, columns + 1, width)
    longer[:, :, :columns] = stack
    return longer


def _new(kind: type[Any], *arguments: Any, **options: Any) -> Any:
    """One of the caches above as a cache of transformers, which is imported only now."""
    if kind not in _OF_TRANSFORMERS:
        base: Any = importlib.import_module("transformers.cache_utils").Cache
        _OF_TRANSFORMERS[kind] = type(kind.__name__, (kind, base), {})
    return _OF_TRANSFORMERS[kind](*arguments, **options)


_OF_TRANSFORMERS: dict[type[Any], type[Any]] = {}
