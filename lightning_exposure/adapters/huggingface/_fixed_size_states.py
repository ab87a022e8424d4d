"""Reading on with a Hugging Face model whose state has one size whatever it has read, such as Mamba or RWKV.

Such a model hands over a cache, an object or a list, with tensors in it that follow the batch and do not grow. Each
row of a state has its own; there is nothing that rows of one prompt could share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._transformers import tensors_in_cache
from lightning_exposure.adapters.huggingface._pretrained import PretrainedCall
from lightning_exposure.adapters.protocol import device_of
from lightning_exposure.adapters.states import batch_dimensions, bytes_of, concatenate, select_rows
from lightning_exposure.errors import ModelError

_ARGUMENTS = ("cache_params", "state", "past_key_values")
"""What models call the state that they take and return."""


class CarriedCache(NamedTuple):
    """The states of some rows.

    Attributes:
        template: A cache of the model's own kind, from which one with other tensors in it is made.
        tensors: The tensors of the cache, in the order in which they stand in it.
    """

    template: Any
    tensors: tuple[Tensor, ...]


class CarriedCacheReader:
    """Steps of a causal LM that carries a state of constant size.

    Args:
        call: The model.

    Raises:
        ModelError: The model has no such state.
    """

    def __init__(self, call: PretrainedCall) -> None:
        self._call = call
        self._argument = next((name for name in _ARGUMENTS if call.accepts(name)), "")
        if not self._argument:
            raise ModelError(f"forward of {call.name} takes none of {', '.join(_ARGUMENTS)}")
        two, three, longer = (self._probe(batch, time) for batch, time in ((2, 2), (3, 2), (2, 3)))
        dimensions = () if len(two) != len(three) else tuple(map(batch_dimensions, two, three))
        if not dimensions or min(dimensions) < 0 or [t.shape for t in two] != [t.shape for t in longer]:
            raise ModelError(f"the state of {call.name} grows with what it reads, or does not follow the batch")
        self._dimensions = dimensions

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._call.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, CarriedCache]:
        """Read a prompt."""
        logits, cache = self._read(self._call.ids(tokens), None)
        return logits, CarriedCache(cache, tuple(tensors_in_cache(cache)))

    def step(self, state: CarriedCache, tokens: Tensor, /) -> tuple[Tensor, CarriedCache]:
        """Read one more token in each row."""
        # Models write into the tensors of their cache: they get copies.
        copies = {
            id(old): mine.clone() for old, mine in zip(tensors_in_cache(state.template), state.tensors, strict=True)
        }
        logits, cache = self._read(tokens[:, None], deepcopy(state.template, copies))
        return logits, CarriedCache(state.template, tuple(tensors_in_cache(cache)))

    def select(self, state: CarriedCache, rows: Tensor, /) -> CarriedCache:
        """Some of the rows."""
        return CarriedCache(state.template, select_rows(state.tensors, self._dimensions, rows))

    def concatenate(self, states: Sequence[CarriedCache], /) -> CarriedCache:
        """Several batches of rows as one."""
        return CarriedCache(states[0].template, concatenate([state.tensors for state in states], self._dimensions))

    def bytes_of(self, state: CarriedCache, /) -> int:
        """The memory that the rows take."""
        return bytes_of(state.tensors)

    def row_bytes(self, state: CarriedCache, depth: int, /) -> int:
        """The memory that a row takes, and the copies of it while it is read; the same at any depth."""
        return 4 * bytes_of(state.tensors)

    def contents(self, state: CarriedCache) -> Iterator[Tensor]:
        """All that the model remembers of a batch of one row, tensor by tensor."""
        yield from state.tensors

    def _probe(self, batch: int, time: int) -> list[Tensor]:
        tokens = torch.zeros(batch, time, dtype=torch.long, device=device_of(self.module))
        return list(tensors_in_cache(self._read(tokens, None)[1]))

    def _read(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        logits, output = self._call.last_logits(tokens, use_cache=True, **{self._argument: cache})
        after = getattr(output, self._argument, None)
        if after is None:
            raise ModelError(f"{self._call.name} takes {self._argument} and returns none")
        return logits[:, -1], after
