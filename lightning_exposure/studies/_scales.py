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

# A secret that stands once among 100,000 characters is learned by 25,000 parameters in 10 to 15 epochs: the paper's
# set-up, fifty times smaller in its text and twenty-five times in its model.
_CPU: dict[str, Any] = {
    "characters": 100_000,
    "epochs": 12,
    "format": "the random number is ######",
    "repetitions": 1,
    "references": 500,
    "model": {"architecture": "lstm", "num_layers": 1, "hidden_size": 64, "embedding_size": 16, "lr": 0.01},
    "data": {"window": 64, "batch_size": 16, "whole_canaries": True},
}

# Carlini et al., Table 8: the Penn Treebank, two layers of 200 units, RMSProp, batches of 128 sequences of 20, 100
# epochs with early stopping, and a learning rate that is lowered on a plateau. How soon for both is our choice. With
# embeddings of 149 numbers, of which it does not speak, there are as many parameters as it says, 620,000.
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
        "embedding_size": 149,
        "optimizer": "rmsprop",
        "lr": 0.001,
        "early_stopping": 10,
    },
    "plateau": {"factor": 0.5, "patience": 2},
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
    """As the paper did it; with a number of `epochs` of their own, trainings go on to the last of them."""
    whole = {"model": {"early_stopping": None}} if "epochs" in changes else {}
    return merged(merged(_PAPER, whole), changes)


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
