"""Pulling a memorized secret out of 10^9, and what a search costs that finds nothing."""

from __future__ import annotations

import time

import torch

from benchmarks.memory import PeakMemory, memory_row, peak_memory_of
from benchmarks.models import Recipe, Subject, train
from benchmarks.table import Row, Target, amount
from benchmarks.timing import best_of, best_of_both
from lightning_exposure import CanarySet, Extraction, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters import StatelessAdapter


def benchmark_extraction(subject: Subject, *, expansions: int = 500_000, repeats: int = 3) -> list[Row]:
    """The most memorized canary, found and proven; and a search for what is not there.

    Args:
        subject: The model.
        expansions: How long the search goes on that finds nothing.
        repeats: The fastest of so many runs counts.
    """
    return [*_memorized(subject, repeats), *_not_memorized(subject, expansions), *_without_end(subject, expansions)]


def _memorized(subject: Subject, repeats: int) -> list[Row]:
    tree = subject.tree(subject.recipe.digits)
    # The same search one node at a time, and every node read anew from the first token on.
    naive = SecretTree(StatelessAdapter(subject.model), tree.format, subject.tokenizer)
    found, again, seconds, naive_seconds = best_of_both(
        repeats, lambda: extract(tree), lambda: extract(naive, largest_batch=1)
    )
    (estimate,) = measure_exposure(tree, [found.candidates[0].text], "exact")
    inner_nodes = sum(10**level for level in range(subject.recipe.digits))
    what = f"the most likely of {tree.size:,} secrets"
    is_canary = found.candidates[0].text in subject.canaries.texts
    full_size = tree.size == 10**9
    return [
        Row(
            f"{what}: exposure",
            estimate.bits,
            "bits",
            Target("at least", 29.0 if full_size else 0.0),
            "a canary" if is_canary else "no canary",
        ),
        Row(
            f"{what}: proven optimum in", seconds, "s", None, f"{found.expansions} expansions; proven: {found.optimal}"
        ),
        Row(
            f"{what}: fewer expansions than brute force",
            inner_nodes / found.expansions,
            "x",
            Target("at least", 1e5 if full_size else 1.0),
            f"brute force: {inner_nodes:,} expansions",
        ),
        Row(
            f"{what}: faster than one node at a time without states",
            naive_seconds / seconds,
            "x",
            None,
            f"{amount(naive_seconds, 's')} for {again.expansions} expansions",
        ),
    ]


def search_for_nothing(subject: Subject, expansions: int) -> Extraction:
    """A search in a model of the same size that was never trained: no secret stands out, and none is memorized."""
    return extract(subject.untrained().tree(subject.recipe.digits), budget=expansions)


def _not_memorized(subject: Subject, expansions: int) -> list[Row]:
    # Turn and turn about, so that a time in which the machine is busy meets both.
    bare = bare_steps_per_second(subject, 4096, expansions // 2)
    found = search_for_nothing(subject, expansions)
    bare = max(bare, bare_steps_per_second(subject, 4096, expansions // 2))
    speed = found.expansions / found.seconds
    return [
        Row(
            f"a search of {found.expansions:,} expansions that finds nothing: share of the bare model's speed",
            100 * speed / bare,
            "%",
            Target("at least", 60.0),
            f"{speed:,.0f} expansions/s; the model's step alone: {bare:,.0f} rows/s; ended by {found.ended_by}",
        )
    ]


def bare_steps_per_second(subject: Subject, batch_size: int, rows: int) -> float:
    """How many rows the model alone reads per second, one token each."""
    model = subject.model
    with torch.no_grad():
        _, state = model(torch.zeros(batch_size, 1, dtype=torch.long))
        tokens = torch.arange(batch_size)[:, None] % subject.tokenizer.vocab_size
        rounds = max(3, rows // batch_size)
        begin = time.perf_counter()
        for _ in range(rounds):
            _, state = model(tokens, state)
        return rounds * batch_size / (time.perf_counter() - begin)


def _without_end(subject: Subject, expansions: int) -> list[Row]:
    peak: PeakMemory = peak_memory_of(search_for_nothing, subject, expansions)
    return [memory_row("the same search with a limit of 1 GiB", peak)]


CARDS = Recipe(
    characters=100_000,
    repetitions=(8,),
    epochs=40,
)
"""A smaller text, read more often: a canary that is inserted 8 times is seen 320 times."""


def benchmark_credit_card(recipe: Recipe = CARDS) -> list[Row]:
    """A credit card among 10^15 valid ones, inserted 8 times in a training run of its own."""
    canaries = CanarySet.draw(SecretFormat.credit_card(), repetitions=recipe.repetitions, seed=recipe.seed)
    begin = time.perf_counter()
    subject = train(recipe, canaries)
    trained = time.perf_counter() - begin
    tree = SecretTree(subject.model, canaries[0].format, subject.tokenizer)
    found, seconds = best_of(1, lambda: extract(tree))
    how = f"{found.expansions:,} expansions in {amount(seconds, 's')}; proven: {found.optimal}"
    hit = bool(found.candidates) and found.candidates[0].text == canaries[0].text
    return [
        Row(
            f"a credit card of {tree.size:,}, inserted {canaries[0].repetitions} times: extracted",
            float(hit),
            "of 1",
            Target("at least", 1.0),
            f"{how}; trained in {trained:.0f} s",
        )
    ]
