"""Reading on from one prompt in many rows with a causal language model, with its own attention or with ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._key_values import KeysAndValues, RowKeyValues, spare_columns
from lightning_exposure.adapters._prompt_sharing import Continuing, Recording, SharesPrompt
from lightning_exposure.adapters._transformers import new_cache
from lightning_exposure.adapters.huggingface._attention import attending_with, attention_configs, hidden_keys
from lightning_exposure.adapters.huggingface._pretrained import PretrainedCall
from lightning_exposure.errors import ModelError


class SharedPromptReader(SharesPrompt):
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
        super().__init__()
        self._call = call
        self._in_attention = in_attention
        self._configs = attention_configs(call.module) if in_attention else []
        if not call.accepts("past_key_values"):
            raise ModelError(f"forward of {call.name} takes no past_key_values")

    @property
    def module(self) -> nn.Module:
        """The model that reads."""
        return self._call.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, RowKeyValues]:
        """Read a prompt with the model's own attention."""
        ids = self._call.ids(tokens)
        recording = new_cache(Recording)
        logits, _ = self._call.last_logits(
            ids, past_key_values=recording, use_cache=True, attention_mask=torch.ones_like(ids)
        )
        prompt = self._known(recording.prompt(tuple(tokens)))
        return logits[:, -1], prompt.no_tokens()

    def step(self, state: RowKeyValues, tokens: Tensor, /) -> tuple[Tensor, RowKeyValues]:
        """Read one more token in each row."""
        self._call.refuse_beyond_end(len(state.prompt.tokens) + state.columns + 1)
        return self._read(state, tokens) if self._in_attention else super().step(state, tokens)

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
        return (depth + spare_columns(depth)) * sum(pairs) + state.lengths.element_size() + step // 3

    def _read(self, state: RowKeyValues, tokens: Tensor) -> tuple[Tensor, RowKeyValues]:
        continuing = new_cache(_ContinuingInAttention if self._in_attention else Continuing, state)
        options = {
            "past_key_values": continuing,
            "use_cache": True,
            "position_ids": (len(state.prompt.tokens) + state.lengths)[:, None],
        }
        with attending_with(continuing, self._configs) if self._in_attention else nullcontext():
            logits, _ = self._call.last_logits(tokens[:, None], **options)
        return logits[:, -1], continuing.after()

    def _widest(self) -> int:
        """The widest layer between two others; the embeddings and the head are no such layers."""
        matrices = [parameter.shape for parameter in self.module.parameters() if parameter.dim() == 2]
        vocabulary = getattr(self._call.config, "vocab_size", 0)
        return max((size for shape in matrices if vocabulary not in shape for size in shape), default=0)


class _ContinuingInAttention(Continuing):
    """The same for an attention function that looks the prompt up without copying it: see `StepUnderWay`."""

    def __init__(self, state: RowKeyValues) -> None:
        super().__init__(state)
        self._returned: tuple[Tensor, Tensor, int] | None = None
        self._masks: dict[int | None, Tensor | None] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        if self._returned is not None:
            raise ModelError("a layer took its keys from the cache and did not attend to them")
        self._returned = (keys, values, self._write(keys, values, layer_idx))
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
        if self._returned is not None:
            raise ModelError("not all layers read the cache that they wrote")
        return super().after()
