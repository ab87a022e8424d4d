"""Runs that never happened, but look as if they had."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_exposure.exposure import ExposureEstimate, SkewNormal
from lightning_exposure.extraction import Candidate, Extraction
from lightning_exposure.report import Measurement, References, RunRecord
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat


def make_estimate(canary: Canary, bits: float, **changes: Any) -> ExposureEstimate:
    """An exact estimate where the secret is nearly the most likely, one with an interval elsewhere."""
    size_bits = math.log2(canary.format.size)
    bits = min(max(bits, 0.0), size_bits)
    exact = bits > 0.6 * size_bits
    rank: int | float = max(1, round(2.0 ** (size_bits - bits))) if exact else 2.0 ** (size_bits - bits)
    margin = 0.0 if exact else 0.6
    estimate = ExposureEstimate(
        secret=canary.text,
        bits=bits,
        low=max(0.0, bits - margin),
        high=min(size_bits, bits + margin),
        method="exact" if exact else "importance",
        rank=rank,
        log_perplexity=34.0 - 0.9 * bits - 0.1 * canary.repetitions,
        size_bits=size_bits,
        is_bound=False,
        confidence=0.95,
        expansions=40_123,
    )
    return replace(estimate, **changes)


def make_history(canaries: CanarySet, epochs: int) -> list[Measurement]:
    """Exposure that rises the earlier and the higher, the more often a canary was inserted."""
    history = []
    for epoch in range(1, epochs + 1):
        bits = {
            canary.id: 1.5 + place % 3 + 29.0 / (1.0 + math.exp(5.0 - 0.35 * epoch * math.log2(1 + canary.repetitions)))
            for place, canary in enumerate(canaries)
        }
        history.append(
            Measurement(
                epoch=epoch,
                step=250 * epoch,
                train_loss=1.2 + 1.6 * math.exp(-0.45 * epoch),
                val_loss=1.5 + 1.4 * math.exp(-0.5 * epoch) + 0.01 * epoch,
                seconds=0.8,
                estimates={canary.id: make_estimate(canary, bits[canary.id]) for canary in canaries},
            )
        )
    return history


def make_extraction(texts: Sequence[str], **changes: Any) -> Extraction:
    """An attack that found these texts."""
    candidates = tuple(Candidate(text, 3.1 + 2.3 * place, place + 1) for place, text in enumerate(texts))
    found = Extraction(
        candidates=candidates,
        optimal=True,
        lower_bound=candidates[-1].bits if candidates else 0.0,
        ended_by="proof",
        expansions=12_345,
        seconds=1.8,
        algorithm="shortest_path",
        settings={"top_k": 5, "known": None, "budget": 1_000_000},
    )
    return replace(found, **changes)


def make_references(seed: int = 0) -> References:
    costs = np.random.default_rng(seed).gamma(30.0, 0.35, size=800) + 24.0
    return References(costs.tolist(), SkewNormal(2.1, 32.6, 2.9, 0.021, 0.66))


def make_record(repetitions: Sequence[int] = (1, 4, 16), epochs: int = 10) -> RunRecord:
    """Social security numbers; the two that were inserted most often are extracted."""
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=repetitions, seed=0)
    often = sorted(canaries, key=lambda canary: -canary.repetitions)[: 2 if len(canaries) > 1 else 1]
    others = [canary.format.render(number) for canary, number in zip(often, (123_456_789, 42), strict=False)]
    return RunRecord(
        canaries=canaries,
        settings={
            "model": {"architecture": "lstm", "layers": 2, "units": 200},
            "optimizer": {"name": "adam", "lr": 0.001, "betas": [0.9, 0.999]},
            "method": "auto",
            "seed": 0,
            "private": False,
            "versions": {"torch": "2.8.0", "lightning": "2.5.2"},
        },
        baseline={canary.id: make_estimate(canary, 0.7 + 0.4 * place % 3) for place, canary in enumerate(canaries)},
        history=make_history(canaries, epochs),
        references={"ssn": make_references()},
        extractions={"ssn": make_extraction([canary.text for canary in often] + others)},
    )
