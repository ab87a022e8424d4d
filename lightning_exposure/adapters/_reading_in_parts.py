"""Whether a Hugging Face model that is read in parts gives what it gives when it reads everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_exposure.adapters._differences import comparable, difference, eps_of, spread, typical
from lightning_exposure.adapters.huggingface.pretrained import PretrainedCall
from lightning_exposure.adapters.protocol import device_of

if TYPE_CHECKING:
    from lightning_exposure.adapters.huggingface.adapter import WayOfReading

_LOGITS_AT_ONCE = 2**26
"""How many logits are compared at most, those of the last tokens."""


def difference_in_parts(reader: WayOfReading, call: PretrainedCall, prompt: list[int], more: list[int]) -> str | None:
    """What is different when tokens are read one by one instead of at once; None if nothing is.

    The memory is compared too: logits of an untrained head may be the same whatever was read before. In the end rows
    of two lengths are read together.
    """
    tokens = prompt + more
    expected = call.at_once(tokens, _compared(call, len(more) + 1))
    twice = call.logits_without_cache(call.ids(tokens).repeat(2, 1), len(expected))[0]
    same = _Same(eps_of(call.module, expected), expected, twice)
    logits, state = reader.start(prompt)
    states, found = [state], [logits[0]]
    for token in more:
        logits, state = reader.step(state, _row(call, [token]))
        states = [*states[-2:], state]
        found.append(logits[0])
    if not same.logits(torch.stack(found[-len(expected) :]), expected):
        return f"{len(prompt)} + {len(more)} tokens read in parts give other logits than read at once"
    _, at_once = reader.start(tokens)
    if not all(map(same.memory, reader.contents(states[-1]), reader.contents(at_once))):
        return f"{len(prompt)} + {len(more)} tokens read in parts are remembered differently than read at once"
    if len(more) < 2:
        return None
    _, first = reader.start(prompt)
    together, _ = reader.step(reader.concatenate([first, states[-2]]), _row(call, [more[0], more[-1]]))
    if not same.logits(together, torch.stack([found[1], found[-1]])):
        return "rows of different lengths give other logits together than alone"
    return None


class _Same:
    """Equal but for rounding: what the precision of the model, and reading in batches of two shapes, come to."""

    def __init__(self, eps: float, logits: Tensor, again: Tensor) -> None:
        self._slack = max(1e-4, 16.0 * eps)
        self._eps = eps
        self._noise = float(difference(comparable(logits), comparable(again)).max())

    def logits(self, one: Tensor, other: Tensor) -> bool:
        one, other = comparable(one), comparable(other)
        close = self._slack * spread(other) + 4.0 * self._eps * typical(other) + 4.0 * self._noise
        return one.shape == other.shape and bool(difference(one, other).max() <= close)

    def memory(self, one: Tensor, other: Tensor) -> bool:
        if one.shape != other.shape:
            return False
        if not one.numel():
            return True
        slack = self._slack if one.is_floating_point() else 0.0
        return bool((one - other).abs().max() <= slack * float(other.abs().max()))


def _compared(call: PretrainedCall, tokens: int) -> int:
    """After how many of the last tokens logits are compared."""
    return max(2, min(tokens, _LOGITS_AT_ONCE // max(1, getattr(call.config, "vocab_size", 1)))) if tokens > 1 else 1


def _row(call: PretrainedCall, tokens: Sequence[int]) -> Tensor:
    return torch.tensor(tokens, dtype=torch.long, device=device_of(call.module))
