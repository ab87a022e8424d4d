"""Priors by brute force: every secret written out, and one full forward pass for every beginning of it."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from lightning_exposure import SecretTree
from tests import oracle


def chances(model: nn.Module, tokens: tuple[int, ...]) -> torch.Tensor:
    """The probabilities of all tokens after these."""
    with torch.no_grad():
        output: Any = model(torch.tensor([tokens]))
    logits = (output[0] if isinstance(output, tuple) else output)[0, -1]
    return torch.softmax(logits.double(), dim=-1)


def prior(reference: nn.Module, tree: SecretTree) -> dict[str, float]:
    """The probability of each secret: renormalised among the tokens that go on with a secret.

    Where a secret ends and others go on, they get what the reference gives to the tokens that go on, and it gets the
    rest.
    """
    paths = {text: tuple(tree.tokenizer.encode(text)) for text in oracle.all_texts(tree.format)}
    below: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for path in paths.values():
        for length in range(1, len(path)):
            below[path[:length]].add(path[length])
    ends = set(paths.values())
    steps: dict[tuple[int, ...], float] = {}
    stays: dict[tuple[int, ...], float] = {}
    for start, tokens in below.items():
        after = chances(reference, start)
        goes_on = float(after[sorted(tokens)].sum())
        stays[start] = 1.0 - goes_on
        for token in tokens:
            steps[(*start, token)] = float(after[token]) / (1.0 if start in ends else goes_on)
    found = {}
    for text, path in paths.items():
        found[text] = math.prod(steps[path[:length]] for length in range(2, len(path) + 1)) * stays.get(path, 1.0)
    return found


def exposure(secret: str, costs: dict[str, float], prior: dict[str, float], tie: float = 1e-9) -> float:
    """-log2 of the prior probability of everything that costs at most as much."""
    return -math.log2(sum(prior[text] for text, cost in costs.items() if cost <= costs[secret] + tie))
