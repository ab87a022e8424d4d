"""How far the estimates are off, where the truth is known: at ranks from 1 to 10^5 of 10^6."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from benchmarks.mixture import exposure_by_mixture
from benchmarks.models import Subject
from benchmarks.table import Row, Target
from lightning_exposure import SecretTree, measure_exposure
from lightning_exposure.exposure import PoorFitWarning
from lightning_exposure.tokenization.paths import stack_rows
from lightning_exposure.walks import enumerate_leaves

RANKS = (1, 10, 100, 1_000, 10_000, 100_000)
RECOMMENDED = "importance"
TARGET = Target("below", 0.3)


@dataclass(frozen=True)
class KnownSecret:
    """A secret and its exact rank and exposure, from an enumeration of all secrets."""

    text: str
    rank: int
    bits: float


@dataclass(frozen=True)
class Answer:
    """What a method says about a secret; whether it found that out exactly; and what it took."""

    bits: float
    exact: bool
    expansions: int


Method = Callable[[SecretTree, Sequence[str], int, int], list[Answer]]
"""From a tree, secrets, a number of walks and a seed to one answer per secret."""


def benchmark_estimates(
    subject: Subject,
    *,
    digits: int = 6,
    ranks: Sequence[int] = RANKS,
    samples: int = 4_096,
    seeds: int = 20,
    skew_normal_seeds: int = 5,
) -> list[Row]:
    """Mean absolute errors of the estimates, with the same number of walks.

    Each secret is measured alone, as if it were the only one of interest. That is easy for the library's own method:
    it walks only to what is cheaper than the secret, and where that is little it finds all of it. So it is also
    measured on all secrets in one call, where its walks go as far as the most expensive secret.

    Args:
        subject: The model.
        digits: Of the secrets.
        ranks: Where to look.
        samples: Walks of each estimate.
        seeds: How many estimates of each kind to average over.
        skew_normal_seeds: The same for the skew-normal estimate, which is slow and whose error is mostly bias.
    """
    tree = subject.tree(digits)
    secrets = known_secrets(tree, ranks)
    rows = []
    for name, method in METHODS.items():
        runs = skew_normal_seeds if name == "skew-normal" else seeds
        for secret in secrets:
            answers = [method(tree, [secret.text], samples, seed)[0] for seed in range(runs)]
            # Only what the library recommends has a target; the others are there to compare with.
            rows.append(_row(name, tree, secret, answers, TARGET if name == RECOMMENDED else None))
    texts = [secret.text for secret in secrets]
    together = [METHODS[RECOMMENDED](tree, texts, samples, seed) for seed in range(seeds)]
    for i, secret in enumerate(secrets):
        name = f"{RECOMMENDED}, {len(secrets)} secrets in one call"
        rows.append(_row(name, tree, secret, [answers[i] for answers in together], TARGET))
    return rows


def known_secrets(tree: SecretTree, ranks: Sequence[int]) -> list[KnownSecret]:
    """The secrets at these ranks; with ties, at the nearest rank that exists."""
    batches = list(enumerate_leaves(tree))
    paths = stack_rows([batch.paths for batch in batches if len(batch.costs)])
    costs = np.concatenate([batch.costs for batch in batches])
    order = np.argsort(costs)
    ascending = costs[order]
    found = []
    for rank in ranks:
        leaf = order[rank - 1]
        exact = int(np.searchsorted(ascending, costs[leaf], side="right"))
        found.append(KnownSecret(tree.text(paths[leaf].tolist()), exact, tree.bits - float(np.log2(exact))))
    return found


def _row(name: str, tree: SecretTree, secret: KnownSecret, answers: Sequence[Answer], target: Target | None) -> Row:
    said = np.array([answer.bits for answer in answers])
    expansions = np.mean([answer.expansions for answer in answers])
    exact = ", found all that is cheaper" if all(answer.exact for answer in answers) else ""
    return Row(
        f"{name}, rank {secret.rank:,} of {tree.size:,}: mean absolute error",
        float(np.abs(said - secret.bits).mean()),
        "bits",
        target,
        f"of {secret.bits:.2f} bits; {len(answers)} seeds, mean {said.mean():.2f}; {expansions:,.0f} expansions{exact}",
    )


def _with_library(method: str) -> Method:
    def measure(tree: SecretTree, secrets: Sequence[str], samples: int, seed: int) -> list[Answer]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PoorFitWarning)  # how poor is what the row says
            estimates = measure_exposure(tree, secrets, method, samples=samples, seed=seed)
        return [Answer(each.bits, each.method in ("exact", "counted"), each.expansions) for each in estimates]

    return measure


def _with_mixture(tree: SecretTree, secrets: Sequence[str], samples: int, seed: int) -> list[Answer]:
    estimate = exposure_by_mixture(tree, secrets, samples=samples, seed=seed)
    return [Answer(float(bits), False, estimate.expansions) for bits in estimate.bits]


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "skew-normal": _with_library("skewnormal"),
        "sampling": _with_library("sampling"),
        "mixture of temperatures": _with_mixture,
        RECOMMENDED: _with_library("importance"),
    }
)
"""The paper's estimate, plain sampling, the textbook's importance sampling, and the library's."""
