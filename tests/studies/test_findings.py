"""Sentences that studies find in their tables: of an even number of trainings the median lies between two of them."""

from __future__ import annotations

from lightning_exposure.studies.attacks import attack_cost, estimates
from lightning_exposure.studies.memorization import selectivity
from lightning_exposure.studies.study import Row


def test_what_an_attack_costs_in_the_median_is_the_median() -> None:
    spent = (64.0, 64.0, 64.0, 74.0, 281.0, 512.0)
    known: Row = {"attack": "shortest_path", "seed": 0, "exposure_bits": 19.93}
    rows: list[Row] = [{**known, "first": True, "queries": queries} for queries in spent]
    missed: Row = {**known, "first": False, "queries": None}
    said, *_ = attack_cost.findings([missed, *rows])
    assert said == "shortest_path: where the secret is first, 69 expansions (median; 6 of 6)."


def test_the_rank_in_the_median_is_the_median() -> None:
    (said,) = selectivity.findings([{"rank": float(rank)} for rank in (1, 2, 5, 100)])
    assert said.endswith("the largest rank is 100, the median 3.5.")
    (said,) = selectivity.findings([{"rank": float(rank)} for rank in (1, 4, 1200)])
    assert said.endswith("the largest rank is 1,200, the median 4.")


def test_an_estimate_that_is_only_a_bound_is_not_drawn_as_an_estimate() -> None:
    estimate: Row = {"method": "sampling", "exact_bits": 5.0, "estimate_bits": 5.5, "error_bits": 0.5}
    bound: Row = {"method": "sampling", "exact_bits": 16.6, "estimate_bits": 8.1, "error_bits": 0.0}
    (axes,) = estimates.draw([estimate, bound], []).axes
    drawn = {str(line.get_label()): list(line.get_xydata()[0]) for line in axes.lines[1:]}
    assert drawn == {"sampling": [5.0, 5.5], "sampling, at least": [16.6, 8.1]}
