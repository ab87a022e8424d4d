"""The slow and obvious reference: plain Python, every candidate written out, one full forward pass for each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from lightning_exposure import SecretFormat


def all_texts(format: SecretFormat) -> list[str]:
    return [format.render(i) for i in range(format.size)]


def shared_tokens(format: SecretFormat, tokenizer: Any) -> int:
    """How many tokens of the prompt are the same in every candidate, each of which keeps at least one of its own."""
    spelled = [tokenizer.encode(text) for text in all_texts(format)]
    count = 0
    while all(
        len(tokens) > count + 1 and tokens[count] == spelled[0][count] for tokens in spelled
    ) and format.prompt.startswith(tokenizer.decode(spelled[0][: count + 1])):
        count += 1
    return count


def cost(model: nn.Module, tokens: list[int], free: int, context: int | None = None) -> float:
    """Bits of one string after its first `free` tokens, which cost nothing."""
    total = 0.0
    with torch.no_grad():
        if context is None:
            output = model(torch.tensor([tokens]))
            rows = (output[0] if isinstance(output, tuple) else output)[0]
        for position in range(free, len(tokens)):
            if context is None:
                logits = rows[position - 1]
            else:
                logits = model(torch.tensor([tokens[max(0, position - context) : position]]))[0, -1]
            total -= float(torch.log_softmax(logits.double(), dim=-1)[tokens[position]]) / math.log(2)
    return total


def costs(model: nn.Module, format: SecretFormat, tokenizer: Any, context: int | None = None) -> dict[str, float]:
    """The cost of every secret of the format."""
    free = shared_tokens(format, tokenizer)
    return {text: cost(model, tokenizer.encode(text), free, context) for text in all_texts(format)}


def rank(of: str, costs: dict[str, float], tie: float = 1e-9) -> int:
    """How many secrets cost at most as much as this one, itself counted once."""
    return 1 + sum(cost <= costs[of] + tie for text, cost in costs.items() if text != of)
