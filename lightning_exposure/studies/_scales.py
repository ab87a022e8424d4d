"""Settings that most studies share, at each scale; a study changes what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TINY: dict[str, Any] = {
    "characters": 3_000,
    "epochs": 1,
    "format": "the random number is ###",
    "repetitions": 1,
    "references": 32,
    "model": {"architecture": "lstm", "num_layers": 1, "hidden_size": 8, "embedding_size": 8, "lr": 0.01},
    "data": {"window": 32, "batch_size": 16, "whole_canaries": True},
}

# A secret that stands once among 40,000 characters is learned by 25,000 parameters in 10 to 20 epochs: the paper's
# set-up, a hundred times smaller.
_CPU: dict[str, Any] = {
    "characters": 40_000,
    "epochs": 15,
    "format": "the random number is ######",
    "repetitions": 1,
    "references": 500,
    "model": {"architecture": "lstm", "num_layers": 1, "hidden_size": 64, "embedding_size": 16, "lr": 0.01},
    "data": {"window": 64, "batch_size": 16, "whole_canaries": True},
}

# Carlini et al., Table 8: the Penn Treebank, two layers of 200 units, RMSProp, batches of 128 sequences of 20.
_PAPER: dict[str, Any] = {
    "characters": 5_000_000,
    "epochs": 100,
    "format": "The random number is #########",
    "repetitions": 1,
    "references": 10_000,
    "budget": 1_000_000,
    "model": {
        "architecture": "lstm",
        "num_layers": 2,
        "hidden_size": 200,
        "embedding_size": 200,
        "optimizer": "rmsprop",
        "lr": 0.001,
    },
    "data": {"window": 20, "batch_size": 128},
    "trainer": {"accelerator": "auto"},
}


def tiny(**changes: Any) -> dict[str, Any]:
    """Seconds on one core: for tests."""
    return merged(_TINY, changes)


def cpu(**changes: Any) -> dict[str, Any]:
    """Minutes on one core: for the documentation."""
    return merged(_CPU, changes)


def paper(**changes: Any) -> dict[str, Any]:
    """As the paper did it."""
    return merged(_PAPER, changes)


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, also inside of settings.

    >>> merged({"model": {"lr": 0.1, "units": 8}, "epochs": 1}, {"model": {"units": 4}})
    {'model': {'lr': 0.1, 'units': 4}, 'epochs': 1}
    """
    result = dict(settings)
    for name, value in changes.items():
        before = result.get(name)
        nested = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merged(before, value) if nested else value  # type: ignore[arg-type]
    return result
