"""Reading with the key-value caches of a Hugging Face decoder: what all rows share is kept once.

A node of the tree is one row. Its own part of the cache holds the tokens after the prompt; the prompt's part and what
the decoder made of the source are the same for every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.encoder_decoder._translators import HuggingFaceTranslator
from lightning_exposure.adapters.protocol import device_of, logits_of
from lightning_exposure.adapters.states import bytes_of
from lightning_exposure.errors import ModelError

Layers = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of each layer, `(rows, heads, tokens, size)`."""


class Shared(NamedTuple):
    """What is the same in all rows, kept once.

    Attributes:
        encoded: The encoder's output for the source.
        source: What each layer of the decoder looks up in the source.
        prompt: What each layer of the decoder keeps of the prompt.
    """

    encoded: Tensor
    source: Layers
    prompt: Layers


class CachedRows(NamedTuple):
    """Some rows of a cache, of different lengths; the unused end of a row is filled with zeros.

    Attributes:
        shared: What all rows have in common.
        own: What each layer keeps of the tokens after the prompt.
        lengths: How many tokens that are, for each row.
    """

    shared: Shared
    own: Layers
    lengths: Tensor


class CachedDecoder:
    """Steps with the caches of a decoder. Rows of different lengths are never padded into one call.

    Args:
        translator: The model.
    """

    def __init__(self, translator: HuggingFaceTranslator) -> None:
        self._translator = translator

    def start(self, tokens: Sequence[int], encoded: Tensor, /) -> tuple[Tensor, CachedRows]:
        """Read the beginning of the target.

        Raises:
            ModelError: The decoder keeps something else than all keys and values of all layers.
        """
        prompt = torch.tensor([list(tokens)], device=device_of(self._translator.module))
        empty = _cache([], [])
        logits = logits_of(self._translator.decode(prompt, encoded, empty), *prompt.shape)
        kept, source = _layers(empty.self_attention_cache), _layers(empty.cross_attention_cache)
        if not kept or any(keys.shape[2] != len(tokens) for keys, _ in kept):
            raise ModelError(f"{type(self._translator.module).__name__} does not keep all tokens in its cache.")
        own = tuple((keys[:, :, :0], values[:, :, :0]) for keys, values in kept)
        lengths = torch.zeros(1, dtype=torch.long, device=prompt.device)
        return logits[:, -1], CachedRows(Shared(encoded, source, kept), own, lengths)

    def step(self, state: CachedRows, tokens: Tensor, /) -> tuple[Tensor, CachedRows]:
        """Read one more token in each row."""
        lengths = torch.unique(state.lengths).tolist()
        if len(lengths) == 1:
            own = _cut(state.own, lengths[0])
            logits, new = self._step(state.shared, own, tokens)
            longer = _map(lambda old, last: torch.cat([old, last], dim=2), own, new)
            return logits, CachedRows(state.shared, longer, state.lengths + 1)
        groups = [(state.lengths == length).nonzero()[:, 0] for length in lengths]
        parts = [
            self._step(state.shared, _cut(_map(lambda t, rows=rows: t[rows], state.own), length), tokens[rows])
            for rows, length in zip(groups, lengths, strict=True)
        ]
        back = torch.cat(groups).argsort()
        logits = torch.cat([logits for logits, _ in parts])[back]
        new = _map(lambda *tensors: torch.cat(tensors)[back], *(new for _, new in parts))
        rows = torch.arange(len(tokens), device=tokens.device)

        def append(old: Tensor, last: Tensor) -> Tensor:
            longer = nn.functional.pad(old, (0, 0, 0, 1))
            longer[rows, :, state.lengths] = last[:, :, 0]
            return longer

        return logits, CachedRows(state.shared, _map(append, state.own, new), state.lengths + 1)

    def select(self, state: CachedRows, rows: Tensor, /) -> CachedRows:
        """The caches of some rows."""
        own = _map(lambda tensor: tensor.index_select(0, rows), state.own)
        return CachedRows(state.shared, own, state.lengths[rows])

    def concatenate(self, states: Sequence[CachedRows], /) -> CachedRows:
        """Several batches of rows as one, filled up to the longest."""
        if len(states) == 1:
            return states[0]
        width = max(state.own[0][0].shape[2] for state in states)

        def join(*tensors: Tensor) -> Tensor:
            return torch.cat([nn.functional.pad(tensor, (0, 0, 0, width - tensor.shape[2])) for tensor in tensors])

        own = _map(join, *(state.own for state in states))
        return CachedRows(states[0].shared, own, torch.cat([state.lengths for state in states]))

    def bytes_of(self, state: CachedRows, /) -> int:
        """The memory that rows take beside what they share, which is there once."""
        return bytes_of(state.own) + bytes_of(state.lengths)

    def row_bytes(self, state: CachedRows, depth: int, /) -> int:
        """The memory that a row takes at most when it is `depth` tokens long, and while it is read.

        Then the keys and values of one layer, with those of the prompt before them, are put together for each row.
        """
        sizes = [sum(tensor[0, :, 0].numel() for tensor in layer) for layer in state.shared.prompt]
        length = state.shared.prompt[0][0].shape[2] + depth + 1
        element = state.shared.prompt[0][0].element_size()
        return (2 * (depth + 1) * sum(sizes) + length * max(sizes)) * element

    def _step(self, shared: Shared, own: Layers, tokens: Tensor) -> tuple[Tensor, Layers]:
        """Logits, and what each layer adds to its cache, for rows of one length."""
        rows = len(tokens)
        continued = [_kind("Continued")(prompt, mine) for prompt, mine in zip(shared.prompt, own, strict=True)]
        looked_up = [_kind("LookedUp")(pair, rows) for pair in shared.source]
        output = self._translator.decode(
            tokens[:, None], self._translator.expand(shared.encoded, rows), _cache(continued, looked_up)
        )
        return logits_of(output, rows, 1)[:, -1], tuple(layer.new for layer in continued)


def _map(function: Any, *layers: Layers) -> Layers:
    """Apply a function to the keys of each layer, and to its values."""
    return tuple(
        (function(*(keys for keys, _ in layer)), function(*(values for _, values in layer)))
        for layer in zip(*layers, strict=True)
    )


def _cut(layers: Layers, length: int) -> Layers:
    return _map(lambda tensor: tensor[:, :, :length], layers)


def _cache(past: Sequence[Any], source: Sequence[Any]) -> Any:
    """A cache of the library that consists of some layers; without any, one that begins empty."""
    caches: Any = import_module("transformers.cache_utils")
    made = caches.DynamicCache(), caches.DynamicCache()
    for part, layers in zip(made, (past, source), strict=True):
        part.layers.extend(layers)
    return caches.EncoderDecoderCache(*made)


def _layers(part: Any) -> Layers:
    return tuple((layer.keys, layer.values) for layer in part.layers)


@cache
def _kind(name: str) -> Any:
    """A kind of cache layer, made when it is first needed: its base class is in an optional package."""
    base: Any = import_module("transformers.cache_utils").DynamicLayer

    class Continued(base):  # type: ignore[misc]
        """Goes on from the prompt and the row's own tokens; all three together exist while the layer is read."""

        def __init__(self, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> None:
            super().__init__()
            self.lazy_initialization(*own)
            self.parts = tuple(zip(prompt, own, strict=True))
            self.past = sum(keys.shape[2] for keys in self.parts[0])
            self.new: tuple[Tensor, Tensor] | None = None

        def get_seq_length(self) -> int:
            return self.past

        def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            self.new = keys, values
            (prompt_keys, own_keys), (prompt_values, own_values) = self.parts
            rows = len(keys)
            return (
                torch.cat([prompt_keys.expand(rows, -1, -1, -1), own_keys, keys], dim=2),
                torch.cat([prompt_values.expand(rows, -1, -1, -1), own_values, values], dim=2),
            )

    class LookedUp(base):  # type: ignore[misc]
        """What is looked up in the source: the same for all rows, which see it through views."""

        def __init__(self, pair: tuple[Tensor, Tensor], rows: int) -> None:
            super().__init__()
            self.lazy_initialization(*pair)
            self.keys, self.values = (tensor.expand(rows, -1, -1, -1) for tensor in pair)

    return {"Continued": Continued, "LookedUp": LookedUp}[name]
