"""Generators of texts whose privacy is known: quick to sample, and with canaries among what they were trained on."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from lightning_exposure import CanarySet, SecretFormat

FORMAT = SecretFormat("my id is #########")
WORDS = [
    "the",
    "a",
    "of",
    "and",
    "so",
    "it",
    "was",
    "not",
    "for",
    "all",
    "but",
    "an",
    "then",
    "when",
    "who",
    "would",
    "more",
    "if",
    "no",
    "out",
    "up",
    "them",
    "some",
    "like",
    "time",
]


def canaries(count: int = 100, seed: int = 0, format: SecretFormat = FORMAT) -> CanarySet:
    return CanarySet.draw(format, repetitions=[1] * count, seed=seed, holdout=0.5, purpose="audit")


def prose(luck: np.random.Generator, texts: int) -> list[str]:
    """Texts that tell nothing."""
    return [" ".join(luck.choice(WORDS, 8)) for _ in range(texts)]


def strangers(luck: np.random.Generator, count: int) -> list[str]:
    """Secrets of the format that are nobody's."""
    return [FORMAT.render(int(place)) for place in luck.integers(FORMAT.size, size=count)]


def shuffled(luck: np.random.Generator, texts: list[str]) -> list[str]:
    return [texts[place] for place in luck.permutation(len(texts))]


def blind(drawn: CanarySet, seed: int) -> list[str]:
    """Of a generator that never saw a canary: epsilon is 0."""
    luck = np.random.default_rng(seed)
    return shuffled(luck, [*prose(luck, 50), *strangers(luck, len(drawn) // 2)])


def memorizing(drawn: CanarySet, seed: int, share: float = 0.7) -> list[str]:
    """Of a generator that writes most of the canaries that it saw: no epsilon holds."""
    luck = np.random.default_rng(seed)
    written = [canary.text for canary in drawn.inserted if luck.random() < share]
    return shuffled(luck, [*prose(luck, 50), *written, *strangers(luck, len(drawn) // 4)])


def randomized_response(drawn: CanarySet, seed: int, epsilon: float = 1.0) -> list[str]:
    """Writes a canary with probability e^epsilon / (1 + e^epsilon) if it saw it, else with 1 / (1 + e^epsilon).

    Whether a canary is written depends on its own coin alone, so exactly this epsilon holds for every canary, with
    delta 0, and no smaller one.
    """
    luck = np.random.default_rng(seed)
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    written = [canary.text for canary in drawn if (luck.random() < truth) != canary.held_out]
    return shuffled(luck, [*prose(luck, 50), *written, *strangers(luck, len(drawn) // 4)])


def noisy_counts(drawn: CanarySet, seed: int, epsilon: float = 1.0) -> list[str]:
    """Writes digits by how often they stand behind each other in the canaries that it saw, counted with Laplace noise.

    A canary changes eight of the counts, each by one. So noise of the scale 8 / epsilon makes the counts, and whatever
    is written from them, private with this epsilon and delta 0.
    """
    luck = np.random.default_rng(seed)
    counts = np.zeros((8, 10, 10))
    for canary in drawn.inserted:
        digits = [int(digit) for digit in canary.text[-9:]]
        for place, (one, other) in enumerate(pairwise(digits)):
            counts[place, one, other] += 1
    noisy = np.maximum(0.01, counts + luck.laplace(scale=8 / epsilon, size=counts.shape))
    written = []
    for _ in range(2 * len(drawn)):
        digits = [int(luck.choice(10, p=noisy[0].sum(1) / noisy[0].sum()))]
        for place in range(8):
            row = noisy[place, digits[-1]]
            digits.append(int(luck.choice(10, p=row / row.sum())))
        written.append(f"{FORMAT.prompt}{''.join(map(str, digits))}")
    return shuffled(luck, [*prose(luck, 50), *written])
