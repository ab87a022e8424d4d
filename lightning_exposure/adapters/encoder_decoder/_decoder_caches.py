"""Reading with the key-value caches of a Hugging Face decoder: what all rows share is kept once.

A node of the tree is one row. Its own part of the cache holds the tokens after the prompt; the prompt's part and what
the decoder made of the source are the same for every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._key_values import KeysAndValues, RowKeyValues
from lightning_exposure.adapters._prompt_sharing import Continuing, Recording, SharesPrompt
from lightning_exposure.adapters._transformers import encoder_decoder_cache, looked_up_in, new_cache
from lightning_exposure.adapters.encoder_decoder._translators import HuggingFaceTranslator
from lightning_exposure.adapters.protocol import device_of, logits_of


class SharedSource(NamedTuple):
    """What all rows share beside the prompt.

    Attributes:
        encoded: The encoder's output for the source.
        layers: What each layer of the decoder looks up in the source, `(1, heads, tokens, size)`.
    """

    encoded: Tensor
    layers: tuple[KeysAndValues, ...]


class CachedDecoder(SharesPrompt):
    """Steps with the caches of a decoder. Rows of different lengths are never padded into one call.

    Args:
        translator: The model.
        encoded: The source.
    """

    def __init__(self, translator: HuggingFaceTranslator, encoded: Tensor) -> None:
        super().__init__()
        self._translator = translator
        self.encoded = encoded

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._translator.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, RowKeyValues]:
        """Read the beginning of the target.

        Raises:
            ModelError: The decoder keeps something else than all keys and values of all layers.
        """
        prompt = torch.tensor([list(tokens)], device=device_of(self.module))
        recording = new_cache(Recording)
        cache = encoder_decoder_cache(recording, (), rows=1)
        logits = logits_of(self._translator.decode(prompt, self.encoded, cache), *prompt.shape)
        source = SharedSource(self.encoded, looked_up_in(cache))
        return logits[:, -1], self._known(recording.prompt(tuple(tokens), source)).no_tokens()

    def row_bytes(self, state: RowKeyValues, depth: int, /) -> int:
        """The memory that a row takes at most when it is `depth` tokens long, and while it is read.

        Then the keys and values of one layer, with those of the prompt before them, are put together for each row.
        """
        layers = state.prompt.layers
        sizes = [sum(tensor[:, 0].numel() for tensor in layer) for layer in layers]
        length = len(state.prompt.tokens) + depth + 1
        return (2 * (depth + 1) * sum(sizes) + length * max(sizes)) * layers[0][0].element_size()

    def _read(self, state: RowKeyValues, tokens: Tensor) -> tuple[Tensor, RowKeyValues]:
        rows, source = len(tokens), state.prompt.beside
        continuing = new_cache(Continuing, state)
        cache = encoder_decoder_cache(continuing, source.layers, rows)
        output = self._translator.decode(tokens[:, None], self._translator.expand(source.encoded, rows), cache)
        return logits_of(output, rows, 1)[:, -1], continuing.after()
