"""How likely a secret is to leak: a walk with certain bounds against drawing samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import beta, chi2

from benchmarks.models import Subject
from benchmarks.table import Row, Target
from lightning_exposure import LeakEstimate, leak_probability

_ONE_BIT = 1.0
"""What is open weighs no more than what was found: the interval is at most one bit wide."""


def benchmark_leakage(subject: Subject, *, samples: int = 20_000, edits: int = 1) -> list[Row]:
    """The probability of a leak of every canary, one bit wide, and what the same costs by sampling.

    Args:
        subject: The model.
        samples: How many texts to draw from the model, to compare the two where sampling can see anything.
        edits: Near misses within so many edits are counted in one more walk.
    """
    digits = subject.recipe.digits
    tree = subject.tree(digits)
    leaks = leak_probability(tree, subject.canaries.texts, tolerance=_ONE_BIT)
    rows = [
        _beside_sampling(leak, canary.repetitions, digits) for leak, canary in zip(leaks, subject.canaries, strict=True)
    ]
    likeliest = max(leaks, key=lambda leak: leak.low)
    (near,) = leak_probability(tree, [likeliest.secret], edits=edits, tolerance=_ONE_BIT)
    # As many steps of the model as sampling would take for one of these texts alone.
    rows.append(
        Row(
            f"the likeliest with {edits} edit: model steps of sampling per expansion",
            samples_for_one_bit(near.low) * digits / near.expansions,
            "x",
            None,
            f"{1 + len(near.near_misses):,} texts in {near.expansions:,} expansions",
        )
    )
    hits = _draw(subject, likeliest.secret, samples)
    low, high = _clopper_pearson(hits, samples, 1e-6)
    outside = max(0.0, low - likeliest.high, likeliest.low - high)
    beside = f"{hits:,} of {samples:,} samples begin with it; the walk says [{likeliest.low:.2e}, {likeliest.high:.2e}]"
    rows.append(Row("the likeliest: between walk and samples", outside, "", Target("below", 1e-9), beside))
    return rows


def samples_for_one_bit(probability: float, confidence: float = 0.95) -> float:
    """How many samples it takes on average until an exact interval for a rare event is at most one bit wide.

    Its width depends on the number of hits alone, as long as they are few among many.
    """
    tail = (1.0 - confidence) / 2.0
    hits = 1
    while chi2.ppf(1.0 - tail, 2 * hits + 2) > 2.0 * chi2.ppf(tail, 2 * hits):
        hits += 1
    return hits / probability


def _beside_sampling(leak: LeakEstimate, repetitions: int, digits: int) -> Row:
    samples = samples_for_one_bit(leak.low)
    return Row(
        f"canary inserted {repetitions} times: model steps of sampling per expansion",
        samples * digits / leak.expansions,
        "x",
        Target("at least", 10.0),
        f"leaks once in {1.0 / leak.low:,.0f} samples; {leak.expansions:,} expansions against {samples:,.0f} samples, "
        f"{math.log2(leak.high / leak.low):.2f} bits wide",
    )


def _draw(subject: Subject, secret: str, samples: int, batch_size: int = 4096) -> int:
    """How many texts drawn from the model, behind the prompt, begin with a secret."""
    prompt = subject.tree(subject.recipe.digits).format.prompt
    wanted = torch.tensor(subject.tokenizer.encode(secret[len(prompt) :]))
    generator = torch.Generator().manual_seed(0)
    hits = 0
    with torch.no_grad():
        logits, state = subject.model(torch.tensor([subject.tokenizer.encode(prompt)]))
        for first in range(0, samples, batch_size):
            rows = min(batch_size, samples - first)
            here = tuple(part.expand(-1, rows, -1).contiguous() for part in state)
            chances = torch.softmax(logits[:, -1].double(), -1).expand(rows, -1)
            alive = torch.ones(rows, dtype=torch.bool)
            for token in wanted:
                drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
                alive &= drawn == token
                out, here = subject.model(drawn[:, None], here)
                chances = torch.softmax(out[:, -1].double(), -1)
            hits += int(alive.sum())
    return hits


def _clopper_pearson(hits: int, samples: int, error: float) -> tuple[float, float]:
    low = float(beta.ppf(error / 2, hits, samples - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - error / 2, hits + 1, samples - hits)) if hits < samples else 1.0
    return float(np.nan_to_num(low)), high
