"""`measure_exposure`: how exposed secrets are, exactly where that is affordable, without bias where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lightning_exposure._checks import check_confidence, check_texts, number, whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure._case import TreeCase, measure_possible
from lightning_exposure.exposure._margin import with_margins
from lightning_exposure.exposure._prior import PriorProbabilities, make_prior
from lightning_exposure.exposure.methods import METHODS, MethodName
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tree.prompt import reads_prompt_once
from lightning_exposure.tree.secret_tree import SecretTree, check_tree
from lightning_exposure.walks import DEFAULT_MEMORY, Progress, measure_rounding, score

_LARGEST_BITS = 500
"""Estimated ranks and their variances are floating-point numbers, and those end at 2^1024."""


@reads_prompt_once
def measure_exposure(
    tree: SecretTree,
    secrets: Sequence[str],
    method: MethodName = "auto",
    budget: int = 100_000,
    samples: int = 4096,
    seed: int = 0,
    *,
    prior: SecretTree | PriorProbabilities | None = None,
    precision: float | None = None,
    confidence: float = 0.95,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> list[ExposureEstimate]:
    """The exposure of one or many secrets of a format, in the order given.

    Secrets share the walks: one sample answers for all of them, and so does one exact count.

    Args:
        tree: The model, the format and the tokenizer.
        secrets: Complete texts of the format.
        method: "auto": a sample first; then an exact count of those secrets for which it will fit in the budget.
            "exact": an exact count, or an error. "importance": the unbiased estimate. "sampling": rank among secrets
            drawn uniformly, or from the prior. "skewnormal": the paper's extrapolation.
        budget: The largest number of expansions of an exact count.
        samples: How many walks an estimate takes at most.
        seed: The random seed of the walks.
        prior: How likely the secrets were before anything was learned about them: a tree of the same format and
            tokenizer with a reference model that has not seen them, or an object with `log2_probabilities(texts)`.
            Exposure is then -log2 of the prior probability of all secrets that cost at most as much, so that a secret
            drawn from the prior that was not learned shows b bits with a probability of at most 2^-b. None: all
            secrets were equally likely.
        precision: Stop as soon as the interval of every secret is at most this many bits wide; None: spend what
            `samples` and `budget` allow.
        confidence: The confidence level of the intervals.
        memory: The limit for model states, in bytes.
        progress: Called during an exact count with the expansions so far, the open nodes, and the bits of the cheapest
            secret so far.

    Raises:
        SecretError: A text is not a secret of the format.
        ArgumentError: Any other argument is out of range; it is named.
        BudgetError: method="exact", and the budget did not suffice.
        ModelError: The model returned NaN, or logits of a wrong shape.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> estimate, = measure_exposure(tree, ["pin 1234"])
        >>> estimate.method, 0 <= estimate.bits <= tree.bits
        ('exact', True)
    """
    check_measurement(method, budget, samples, confidence, precision)
    whole_number("seed", seed, at_least=0)
    check_tree(tree)
    _check_secrets(tree, secrets)
    distinct = list(dict.fromkeys(secrets))
    if not distinct:
        return []
    scored = score(tree, distinct, memory=memory)
    paths = tree.paths(distinct)
    rounding = measure_rounding(tree, paths[np.isfinite(scored.costs)], memory=memory)
    expected = None if prior is None else make_prior(tree, prior, budget)
    case = TreeCase(
        tree=tree,
        secrets=distinct,
        paths=paths,
        costs=scored.costs,
        rounding=rounding,
        expansions=scored.expansions + rounding.expansions,
        budget=budget,
        samples=samples,
        precision=precision,
        seed=seed,
        confidence=confidence,
        memory=memory,
        progress=progress,
        prior=expected,
        log_prior=None if expected is None else expected.of_paths(paths, memory),
    )
    estimates = measure_possible(case, secrets, METHODS.get(method))
    estimates = with_margins(case, _against_the_prior(estimates, case))
    return [_with_the_trees_word(estimate, tree) for estimate in estimates]


def _against_the_prior(estimates: list[ExposureEstimate], case: TreeCase) -> list[ExposureEstimate]:
    """Every number rests on the prior, too; of a secret that it excludes only a bound is known."""
    if case.prior is None or case.log_prior is None:
        return estimates
    excluded = {case.secrets[i] for i in np.flatnonzero(np.isneginf(case.log_prior)).tolist()}
    found = []
    for it in estimates:
        rests_on = f"{it.rests_on}; and {case.prior.words}"
        if it.secret not in excluded:
            found.append(replace(it, rests_on=rests_on))
            continue
        rests_on += ", which rules this secret out"
        high = max(it.low, it.bits, it.high)  # there is no ceiling, but what is reported is finite
        found.append(replace(it, high=high, prior_bits=max(high, it.size_bits), rests_on=rests_on, is_bound=True))
    return found


def _with_the_trees_word(estimate: ExposureEstimate, tree: SecretTree) -> ExposureEstimate:
    """Every number rests on the tree, too, where it could not be counted."""
    return replace(estimate, rests_on=f"{estimate.rests_on}; {tree.rests_on}") if tree.rests_on else estimate


def check_measurement(
    method: str, budget: int, samples: int, confidence: float, precision: float | None = None
) -> None:
    """Refuse arguments that no measurement can work with.

    Raises:
        ArgumentError: Names the argument.
    """
    METHODS.get(method)
    whole_number("budget", budget, at_least=1, remedy="It counts expansions. To never count, use 'importance'.")
    whole_number("samples", samples, at_least=1)
    check_confidence(confidence)
    if precision is not None:
        number("precision", precision, above=0, remedy="It is in bits, for example 0.25; None spends all of samples.")


def _check_secrets(tree: SecretTree, secrets: Sequence[str]) -> None:
    check_texts("secrets", secrets)
    if tree.bits > _LARGEST_BITS:
        raise ArgumentError(
            f"tree has 2^{tree.bits:.0f} secrets; expected at most 2^{_LARGEST_BITS} for ranks. Use fewer blanks."
        )
