"""Reading on from one prompt in many rows: the prompt's key-value cache is kept once, a row keeps only its own tokens.

transformers lets a model write its keys and values to a cache object and attend to what that object returns. Here one
such object notes the prompt, and another one puts prompt, own tokens and new token together for each layer. Causal
language models and the decoders of encoder-decoders are read in this way alike.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_exposure.adapters._key_values import KeysAndValues, PromptKeyValues, RowKeyValues, join
from lightning_exposure.adapters._transformers import PlainCache
from lightning_exposure.errors import ModelError


class SharesPrompt(ABC):
    """Steps of a model from a prompt that is kept once."""

    def __init__(self) -> None:
        self._last: weakref.ref[PromptKeyValues] | None = None

    def step(self, state: RowKeyValues, tokens: Tensor, /) -> tuple[Tensor, RowKeyValues]:
        """Read one more token in each row.

        A model's own masks know nothing of rows that are shorter than others: each length is a call of its own.
        """
        lengths = torch.unique(state.lengths).tolist()
        if len(lengths) == 1:
            return self._read(state, tokens)
        groups = [(state.lengths == length).nonzero()[:, 0] for length in lengths]
        parts = [self._read(state.select(rows), tokens[rows]) for rows in groups]
        back = torch.cat(groups).argsort()
        return torch.cat([logits for logits, _ in parts])[back], join([after for _, after in parts]).select(back)

    def select(self, state: RowKeyValues, rows: Tensor, /) -> RowKeyValues:
        """Some of the rows."""
        return state.select(rows)

    def concatenate(self, states: Sequence[RowKeyValues], /) -> RowKeyValues:
        """Several batches of rows as one."""
        return join(states)

    def bytes_of(self, state: RowKeyValues, /) -> int:
        """The memory that the rows take beside the prompt, which is there once."""
        return state.nbytes

    def contents(self, state: RowKeyValues, /) -> Iterator[Tensor]:
        """All that a batch of one row carries, prompt and own tokens, tensor by tensor."""
        for layer, pair in enumerate(state.prompt.layers):
            for which, prompt in enumerate(pair):
                yield torch.cat([prompt.transpose(0, 1), state.own(layer, which)[0]])

    @abstractmethod
    def _read(self, state: RowKeyValues, tokens: Tensor) -> tuple[Tensor, RowKeyValues]:
        """Read one more token in each row, the rows all of one length or the model able to tell."""

    def _known(self, prompt: PromptKeyValues) -> PromptKeyValues:
        """The prompt as it was read before, if it is still in use: a walk that comes back to it keeps one copy."""
        last = None if self._last is None else self._last()
        if last is not None and last.holds_the_same_as(prompt):
            return last
        self._last = weakref.ref(prompt)
        return prompt


class Recording(PlainCache):
    """Notes the keys and values of a prompt."""

    def __init__(self) -> None:
        super().__init__(past=0)
        self._recorded: dict[int, KeysAndValues] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        """Note those of a layer."""
        if layer_idx in self._recorded:
            raise ModelError(f"layer {layer_idx} wrote to the cache twice")
        self._recorded[layer_idx] = (keys[0].contiguous(), values[0].contiguous())
        return keys, values

    def prompt(self, tokens: tuple[int, ...], beside: Any = None) -> PromptKeyValues:
        """What was noted, with what else all rows share."""
        if not self._recorded or any(keys.shape[1] != len(tokens) for keys, _ in self._recorded.values()):
            raise ModelError("the model does not keep the keys and values of all tokens")
        numbers = {number: place for place, number in enumerate(self._recorded)}
        return PromptKeyValues(tokens, tuple(self._recorded.values()), numbers, beside)


class Continuing(PlainCache):
    """Gives the model, layer by layer, what rows have read, and keeps what they read now.

    Args:
        state: The rows.
    """

    def __init__(self, state: RowKeyValues) -> None:
        super().__init__(past=len(state.prompt.tokens) + state.columns)
        self._prompt = state.prompt
        self._after = state.with_one_more_column()
        self._written: set[int] = set()

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        """Keep the new keys and values of a layer; what it attends to is put together for it, and then forgotten."""
        layer = self._write(keys, values, layer_idx)
        return self._repeated(layer, 0), self._repeated(layer, 1)

    def after(self) -> RowKeyValues:
        """The rows, with the new token."""
        if len(self._written) < len(self._prompt.layers):
            raise ModelError("not all layers read the cache that they wrote")
        return self._after

    def _write(self, keys: Tensor, values: Tensor, layer_idx: int) -> int:
        layer = self._prompt.numbers[layer_idx]
        for which, new in enumerate((keys, values)):
            self._after.own(layer, which)[:, -1] = new[:, :, 0]
        self._written.add(layer)
        return layer

    def _repeated(self, layer: int, which: int) -> Tensor:
        own = self._after.own(layer, which).transpose(1, 2)
        return torch.cat([self._prompt.layers[layer][which].expand(len(own), -1, -1, -1), own], dim=2)
