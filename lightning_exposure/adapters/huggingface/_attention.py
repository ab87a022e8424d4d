"""Attention of many rows to one prompt that they share, without a copy of the prompt for each of them.

Rows that continue one prompt ask the same keys. One matrix product answers all of them, whatever the number of rows;
only the few tokens that a row has of its own are looked up row by row. The scores of both go through one softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightning_exposure.adapters._transformers import attention_replaced, chooses_attention
from lightning_exposure.errors import ModelError

NAME = "lightning_exposure_shared_prompt"
"""Under which transformers finds the attention function."""

_IRRELEVANT = {
    "cache_position", "is_causal", "output_attentions", "output_hidden_states", "output_router_logits",
    "past_key_values", "position_ids", "return_dict", "use_cache",
}  # fmt: skip
"""What models hand to any attention function and what does not change the numbers of a single new token."""


def attend(
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    *,
    scaling: float | None = None,
    hidden: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What one new token per row sees in a shared prompt and in its own row.

    Args:
        query: Of the new tokens `(rows, heads, size)`.
        prompt: Keys and values of the prompt `(key heads, tokens, size)`, the same for all rows.
        own: Keys and values of the tokens after it, the new one last `(rows, tokens, key heads, size)`.
        scaling: Of the scores; None: one over the root of the size.
        hidden: Which keys a row does not see `(rows, prompt tokens + own tokens)`; None: it sees all.
        softcap: Scores are squeezed smoothly into plus and minus this.
        sinks: For each head, the score of a key that leads nowhere.

    Returns:
        The values seen `(rows, heads, size)`.

    Example:
        >>> ones = torch.ones(1, 3, 2)
        >>> attend(torch.zeros(4, 1, 2), (ones, ones), (torch.zeros(4, 1, 1, 2), torch.zeros(4, 1, 1, 2)))[0].tolist()
        [[0.75, 0.75]]
    """
    (prompt_keys, prompt_values), (own_keys, own_values) = prompt, own
    rows, heads, size = query.shape
    key_heads, length, _ = prompt_keys.shape
    group = heads // key_heads
    query = query * (size**-0.5 if scaling is None else scaling)
    # Key heads first: then the scores of the prompt are one matrix product for each of them.
    by_head = query.view(rows, key_heads, group, size).permute(1, 0, 2, 3)
    to_prompt = by_head.reshape(key_heads, rows * group, size) @ prompt_keys.transpose(1, 2)
    to_own = _row_scores(by_head, own_keys)
    scores = torch.cat([to_prompt.view(key_heads, rows, group, length), to_own], dim=-1)
    weights = _weights(scores, hidden, softcap, sinks).to(own_values.dtype)
    of_prompt = weights[..., :length].reshape(key_heads, rows * group, length) @ prompt_values
    seen = of_prompt.view(key_heads, rows, group, -1) + _row_values(weights[..., length:], own_values)
    return seen.permute(1, 0, 2, 3).reshape(rows, heads, -1)


def _weights(scores: Tensor, hidden: Tensor | None, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """How much each key counts, from scores `(key heads, rows, group, keys)`; at least in float32."""
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores = scores.masked_fill(hidden[None, :, None].to(scores.device), float("-inf"))
    precise = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=precise)
    key_heads, rows, group, _ = scores.shape
    column = sinks.to(scores.dtype).view(key_heads, 1, group, 1).expand(-1, rows, -1, -1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1, dtype=precise)[..., :-1]


def _row_scores(query: Tensor, keys: Tensor) -> Tensor:
    """Scores `(key heads, rows, group, tokens)` of each row's query for its own keys."""
    if _elementwise(query):  # a product of a vector and a few others, thousands of times: no work for a GEMM
        return (keys * query[:, :, 0].transpose(0, 1)[:, None]).sum(dim=-1).permute(2, 0, 1)[:, :, None]
    return torch.einsum("hbgd,bshd->hbgs", query, keys)


def _row_values(weights: Tensor, values: Tensor) -> Tensor:
    """Each row's own values, weighed `(key heads, rows, group, size)`."""
    if _elementwise(weights):
        return (values * weights[:, :, 0].permute(1, 2, 0)[..., None]).sum(dim=1).transpose(0, 1)[:, :, None]
    return torch.einsum("hbgs,bshd->hbgd", weights, values)


def _elementwise(by_head: Tensor) -> bool:
    """Whether products may be written out: with a group they would fill memory, and in half precision be rounded."""
    return by_head.shape[2] == 1 and by_head.dtype in (torch.float32, torch.float64)


def hidden_keys(lengths: Tensor, prompt: int, columns: int, window: int | None) -> Tensor | None:
    """Which keys each row's new token does not see: filling, and what has left a sliding window.

    Args:
        lengths: How many tokens each row has after the prompt, the new one included.
        prompt: How many tokens the prompt has.
        columns: How many places there are for the tokens after it; a shorter row stands at their end.
        window: How many of the last tokens are seen, the new one included; None: all.

    Returns:
        A mask `(rows, prompt + columns)`; None if every row sees all.

    Example:
        >>> hidden_keys(torch.tensor([1, 2]), prompt=2, columns=2, window=3).int().tolist()
        [[0, 0, 1, 0], [1, 0, 0, 0]]
    """
    shortest, longest = int(lengths.min()), int(lengths.max())
    inside = window is None or prompt + longest <= window
    if inside and shortest == columns:
        return None
    device = lengths.device
    to_own = torch.arange(columns - 1, -1, -1, device=device).expand(len(lengths), -1)  # how far back each key is
    to_prompt = lengths[:, None] + torch.arange(prompt - 1, -1, -1, device=device)
    hidden = torch.cat([torch.zeros_like(to_prompt, dtype=torch.bool), to_own >= lengths[:, None]], dim=1)
    if window is not None and not inside:
        hidden |= torch.cat([to_prompt, to_own], dim=1) >= window
    return hidden


class StepUnderWay(Protocol):
    """What the attention function needs to know of the step under way."""

    def seen(self, keys: Tensor, values: Tensor, /) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Prompt and own keys and values of the layer whose update returned these keys and values."""
        ...

    def hidden(self, window: int | None, /) -> Tensor | None:
        """Which keys each row does not see."""
        ...


_READING: ContextVar[StepUnderWay] = ContextVar("the step under way")


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls, in the shape it wants.

    Raises:
        ModelError: The model asks for something that this function does not do.
    """
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _IRRELEVANT)
    if unknown or attention_mask is not None or query.shape[2] != 1:
        what = ", ".join(unknown) or ("a mask of its own" if attention_mask is not None else "several tokens at once")
        raise ModelError(f"{type(module).__name__} asks the attention function for what it does not do: {what}")
    reading = _READING.get()
    prompt, own = reading.seen(key, value)
    seen = attend(
        query[:, :, 0], prompt, own,
        scaling=scaling, hidden=reading.hidden(sliding_window), softcap=softcap, sinks=s_aux,
    )  # fmt: skip
    return seen[:, None], None


@contextmanager
def attending_with(reading: StepUnderWay, configs: Sequence[Any]) -> Iterator[None]:
    """Let the models with these configs use the shared attention; afterwards the configs are what they were."""
    token = _READING.set(reading)
    try:
        with attention_replaced(configs, NAME, shared_attention):
            yield
    finally:
        _READING.reset(token)


def attention_configs(module: nn.Module) -> list[Any]:
    """The configs of all parts of a module that say which attention function is used, each once."""
    configs: dict[int, Any] = {}
    for part in module.modules():
        config = getattr(part, "config", None)
        if chooses_attention(config):
            configs[id(config)] = config
    return list(configs.values())
