"""What is said of the rows of a table: averages, findings and figures."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lightning_exposure.studies import STUDIES, Column, line_figure
from lightning_exposure.studies._tables import findings_of, summary_of, t_interval
from lightning_exposure.studies.figures import step_figure
from lightning_exposure.studies.study import Row


def rows_of(name: str, *values: float | None, **more: float) -> list[Row]:
    return [{name: value, **more} for value in values]


def test_an_interval_ends_where_the_possible_does() -> None:
    values = [0.0, 0.0, 1.0]
    low, high = t_interval(values) or (0.0, 0.0)
    assert low < 0
    assert high > 1
    share = summary_of(Column("found", least=0, most=1), rows_of("found", *values))
    assert share == {"found": pytest.approx(1 / 3), "found_low": 0, "found_high": 1}
    free = summary_of(Column("found"), rows_of("found", *values))
    assert (free["found_low"], free["found_high"]) == (low, high)


def test_no_mean_exposure_is_said_to_be_more_than_there_is() -> None:
    column = Column("bits", least=0, most="size_bits")
    summary = summary_of(column, rows_of("bits", 2.0, 9.9, 9.0, size_bits=9.97))
    assert summary == {"bits": pytest.approx(6.97, abs=0.01), "bits_low": 0.0, "bits_high": 9.97}


def test_what_one_training_does_to_its_secrets_may_be_alike() -> None:
    column = Column("extracted", "share", share_of="asked")
    alike = summary_of(column, rows_of("extracted", 1.0, 0.0, 0.0, asked=20))
    mixed = summary_of(column, rows_of("extracted", 0.3, 0.35, 0.35, asked=20))
    assert alike["extracted"] == mixed["extracted"] == pytest.approx(1 / 3)
    widths = [float(found["extracted_high"]) - float(found["extracted_low"]) for found in (alike, mixed)]  # type: ignore[arg-type]
    assert widths[0] > 0.9
    assert widths[1] < 0.3
    never_varied = summary_of(column, rows_of("extracted", 1.0, 1.0, 1.0, asked=1))
    assert (never_varied["extracted_low"], never_varied["extracted_high"]) == (pytest.approx(0.292, abs=1e-3), 1.0)


def test_a_median_stands_alone() -> None:
    column = Column("queries", "median")
    assert summary_of(column, rows_of("queries", 10.0, 1e15, 100.0, None)) == {"queries": 100.0}
    assert summary_of(column, rows_of("queries", None)) == {"queries": None}


def test_findings_compare_a_number_with_itself_where_it_was_not_inserted() -> None:
    exposures = {(1, 0): 5.0, (1, 1): 0.5, (1, 2): 3.0, (0, 0): 1.0, (0, 1): 0.6, (0, 2): 2.0}
    rows = [
        {"insertions": insertions, "seed": seed, "exposure_bits": bits, "likelier": bits > 1}
        for (insertions, seed), bits in exposures.items()
    ]
    *_, paired = findings_of(STUDIES.get("hypothesis"), rows)
    assert "in 2 of 3 pairs (exact one-sided binomial p = 0.5)" in paired


def test_findings_leave_out_the_optimizer_that_is_behind() -> None:
    # At the loss of sgd all are the same; at the loss of the others they differ.
    curves = {
        "sgd": [(2.0, 1.0)],
        "adam": [(2.0, 1.0), (1.5, 9.0)],
        "rmsprop": [(2.0, 1.0), (1.5, 3.0)],
        "adagrad": [(2.0, 1.0), (1.5, 2.0)],
    }
    rows = [
        {"training": way, "seed": seed, "epoch": epoch, "test_loss": loss, "exposure_bits": bits + seed / 10}
        for way, curve in curves.items()
        for seed in range(4)
        for epoch, (loss, bits) in enumerate(curve, start=1)
    ]
    everything, further, *_ = findings_of(STUDIES.get("optimizers"), rows)
    assert everything.startswith("At equal test loss (2.00 on average, at most 0.00 apart in one seed): all ways of ")
    assert "training the same, p = 1 (Friedman, 4 seeds)" in everything
    assert (
        "(1.50 on average, at most 0.00 apart in one seed): all but sgd, which is behind, the same, p = 0.018"
        in further
    )
    assert further.endswith("from 2.1 bits (adagrad) to 9.2 (adam).")


def test_a_curve_of_shares_ends_with_all_that_are_equal() -> None:
    rows = [{"bits": bits, "way": "once"} for bits in (3.0, 7.0, 7.0, 7.0)]
    (axes,) = step_figure(rows, "bits", by="way", title="", xlabel="", ylabel="").axes
    (line,) = axes.lines
    # A quarter has less than 7 bits, and nothing says that fewer than three quarters have as much.
    assert list(zip(*line.get_data(), strict=True)) == [(0.0, 1.0), (3.0, 1.0), (7.0, 0.75)]


def test_a_legend_covers_no_data_and_intervals_do_not_cover_each_other() -> None:
    summary = [
        {"x": x, "y": y, "y_low": y - 1, "y_high": y + 1, "by": name}
        for name, y in (("one", 2.0), ("another", 2.0), ("a third with a long name", 9.0))
        for x in (1, 2, 16)
    ]
    figure = line_figure(summary, "x", "y", by="by", title="", xlabel="", ylabel="", log=True)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    intervals = [line for line in axes.lines if line.get_marker() == "_"]
    assert len(intervals) == len(summary)
    at = sorted(float(line.get_transform().transform((line.get_xdata()[0], 0))[0]) for line in intervals)  # type: ignore[index, call-overload]
    assert min(b - a for a, b in pairwise(at)) > 5
    low, high = axes.get_ylim()
    assert low < 1 < 10 < high
