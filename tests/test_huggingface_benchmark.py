"""The benchmark of Hugging Face models runs, at a size that takes no time. Nothing here looks at how fast it was."""

from __future__ import annotations

from benchmarks.gpt2 import GPT2Recipe, benchmark_gpt2
from benchmarks.huggingface import HuggingFaceRecipe, benchmark_huggingface
from benchmarks.sampling import benchmark_sampling
from benchmarks.table import Target
from lightning_exposure import SecretFormat

TINY = HuggingFaceRecipe(
    vocabulary=1000, layers=1, width=16, heads=2, prompt=30, blanks="##-#", steps=2, rows=2, window=40
)


def test_every_number_is_there_and_the_shared_prompt_costs_no_precision() -> None:
    rows = benchmark_huggingface(TINY, secrets=64, fully=16, batch_size=16, expansions=100, largest_batch=16, repeats=1)
    assert len({row.what for row in rows}) == len(rows)
    assert [row.unit for row in rows] == ["x", "x", "bits", "%", "%", "GiB", "expansions", "bits", "bits"]
    assert not rows[5].missed, "the limit of memory holds"
    assert 4 <= rows[6].value <= 1 + 10 + 100 + 1000, "an exact count reads no more nodes than there are"
    assert not rows[7].missed, "importance sampling of a thousand secrets is a count"
    difference = next(row for row in rows if "largest difference" in row.what)
    assert not difference.missed
    assert "after 30 tokens" in difference.what


def test_a_measurement_to_a_quarter_of_a_bit_is_compared_with_one_that_spends_all_it_may() -> None:
    recipe = GPT2Recipe(vocabulary=1500, layers=1, width=16, heads=2, repetitions=(1, 16), steps=2, rows=2, window=16)
    rows = benchmark_gpt2(recipe, format=SecretFormat("my pin is ###"), budget=2_000, samples=64)
    fewer, error, width = rows
    assert len({row.what for row in rows}) == 3
    assert fewer.target is not None
    assert fewer.target.limit == 5.0
    assert not error.missed  # a thousand secrets are counted in either case
    assert "2 of 2 intervals hold" in error.beside
    assert width.value <= 0.25, "what was counted has no interval"


def test_free_sampling_is_compared_with_the_bare_model() -> None:
    rows = benchmark_sampling(units=8, width=8, samples=4, length=6, repeats=1)
    assert len({row.what for row in rows}) == len(rows) == 4
    assert all(row.target == Target("at least", 50.0) and row.value > 0 for row in rows)
