"""A comparison of privacy settings: its words, its files, its figure and its page."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.comparison import Comparison, Outcome
from lightning_exposure.report.figures.against_epsilon import exposure_against_epsilon
from lightning_exposure.report.pages.comparison import render, write_comparison

SIZE = math.log2(10**9)


def outcome(optimizer: str, noise: float | None, epsilon: float, bits: float, **changes: Any) -> Outcome:
    """A training run whose secret was extracted if it is as exposed as can be."""
    low, high = changes.pop("interval", (bits, bits))
    method = "exact" if low == high else "importance"
    estimate = ExposureEstimate(
        "my ssn is 1", bits, low, high, method, 2.0 ** (SIZE - bits), 20.0, SIZE, False, 0.95, 9
    )
    defaults = {"test_loss": 1.2, "extracted": bits >= SIZE, "proven": True, "seconds": 61.4}
    return Outcome(optimizer, noise, epsilon, exposure=estimate, **(defaults | changes))


def paper_like() -> Comparison:
    """Outcomes in the shape of the paper's Table 7."""
    return Comparison(
        [
            outcome("rmsprop", None, math.inf, SIZE),
            outcome("rmsprop", 0.0, math.inf, 3.6, test_loss=1.3),
            outcome("rmsprop", 0.1, 2345.6, 2.8, interval=(2.5, 3.1), test_loss=1.4),
            outcome("rmsprop", 1.0, 0.65, 1.1, test_loss=1.7),
            outcome("sgd", None, math.inf, 9.5, test_loss=1.9, proven=False, interval=(9.0, 10.5)),
            outcome("sgd", 1.0, 0.65, 0.9, test_loss=2.1),
        ],
        settings={"epochs": 10, "model": {"hidden_size": 128}},
    )


# --- words ---------------------------------------------------------------------------------------------------


def test_the_verdict_says_plainly_what_privacy_did() -> None:
    assert paper_like().verdict == (
        "Without differential privacy the secret can be extracted in 1 of 3 training runs with the first guess, and it "
        "is unknown in 1; with differential privacy the secret cannot be extracted in any of 3 training runs within "
        "1,000,000 guesses (each with 95% confidence), not even at epsilon 2,346"
    )
    leaking = Comparison([outcome("sgd", None, math.inf, SIZE), outcome("sgd", 0.1, 1e9, SIZE)])
    assert leaking.verdict.endswith(
        "with differential privacy the secret can be extracted in 1 of 1 training run with the first guess"
    )
    safe = Comparison([outcome("sgd", None, math.inf, 3.0)])
    assert safe.verdict == (
        "Without differential privacy the secret cannot be extracted in any of 1 training run within 1,000,000 guesses "
        "(proven); nothing was trained with differential privacy"
    )
    assert Comparison([outcome("sgd", 1.0, 2.0, 3.0)]).verdict.startswith("Nothing was trained without")


def test_not_the_first_candidate_is_no_reason_to_be_content() -> None:
    """Rank 18,411: the attack for the first candidate misses it, and 18,411 guesses find it."""
    far = Comparison([outcome("sgd", 1.0, 2.0, SIZE - math.log2(18_411), extracted=False)])
    assert far.mood == "leaks"
    assert far.rows()[0][7] == "within 1,000,000 (proven)"
    wide = Comparison([outcome("sgd", 1.0, 2.0, 9.5, interval=(2.0, 12.0), extracted=False)])
    assert wide.mood == "unknown"
    assert wide.verdict.endswith(
        "with differential privacy the secret is neither extracted nor ruled out in 1 of 1 training run"
    )
    assert "not even" not in wide.verdict


def test_the_table_has_a_row_for_each_training() -> None:
    lines = paper_like().table().splitlines()
    assert lines[0].split("  ")[0] == "optimizer"
    assert lines[2].split() == [
        "rmsprop",
        "none",
        "infinite",
        "1.200",
        "29.9",
        "exact",
        "29.9",
        "1st",
        "(proven)",
        "61",
    ]
    assert lines[4].split() == [
        "rmsprop", "noise", "0.1", "2,346", "1.400", "2.8", "2.5", "to", "3.1", "(95%)", "29.9", "not", "within",
        "1,000,000", "(95%)", "61",
    ]  # fmt: skip
    assert lines[6].split()[-2:] == ["unknown", "61"]
    assert len(lines) == 8


def test_bounds_are_written_as_bounds() -> None:
    bound = outcome("sgd", None, math.inf, 4.0, interval=(4.0, SIZE), extracted=False)
    jumped = replace(bound, exposure=replace(bound.exposure, bits=SIZE, is_bound=True))
    assert Comparison([jumped]).rows()[0][4:6] == [">= 4.0", "4.0 to 29.9 (95%)"]


@pytest.mark.parametrize(
    ("noise", "epsilon", "argument"),
    [
        (-0.1, math.inf, "noise_multiplier"),
        (math.nan, 1.0, "noise_multiplier"),
        (1.0, -2.0, "epsilon"),
        (1.0, math.nan, "epsilon"),
        (None, 3.0, "epsilon"),
        (0.0, 3.0, "epsilon"),
    ],
)
def test_an_outcome_that_cannot_be_is_refused(noise: float | None, epsilon: float, argument: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{argument} is .*; expected"):
        outcome("sgd", noise, epsilon, 1.0)


# --- files ---------------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = paper_like().save(tmp_path)
    assert Comparison.load(path) == Comparison.load(tmp_path) == paper_like()


def test_the_csv_keeps_all_digits(tmp_path: Path) -> None:
    paper_like().save(tmp_path)
    rows = list(csv.DictReader(StringIO((tmp_path / "comparison.csv").read_text())))
    assert [float(row["epsilon"]) for row in rows] == [o.epsilon for o in paper_like().outcomes]
    assert [float(row["exposure_bits"]) for row in rows] == [o.exposure.bits for o in paper_like().outcomes]
    assert [row["noise_multiplier"] for row in rows[:3]] == ["", "0.0", "0.1"]
    assert [row["private"] for row in rows[:2]] == ["False", "True"]
    assert [row["verdict"] for row in rows] == [str(o.verdict) for o in paper_like().outcomes]
    assert (rows[0]["guesses_proven_at_least"], rows[0]["guesses_proven_at_most"]) == ("1", "1")
    assert rows[0]["guesses_estimated_at_most"] == ""
    assert int(rows[2]["guesses_estimated_at_least"]) == math.ceil(10**9 / 2**3.1)


def test_a_broken_file_is_named_with_its_field(tmp_path: Path) -> None:
    path = paper_like().save(tmp_path)
    path.write_text(path.read_text().replace('"optimizer": "sgd"', '"optimizer": 7', 1))
    with pytest.raises(ManifestError, match=r"comparison\.json: outcomes\[4\]\.optimizer is 7; expected a string"):
        Comparison.load(path)


# --- the figure and the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [8.0, 4.0])
def test_the_figure_places_epsilons_on_a_logarithmic_axis_and_the_rest_right_of_it(width: float) -> None:
    figure = exposure_against_epsilon(paper_like(), width=width)
    upper, lower = figure.axes
    line = next(line for line in upper.get_lines() if line.get_label() == "rmsprop")
    xs, ys = line.get_xdata(), line.get_ydata()
    assert list(ys) == [1.1, 2.5, 3.6, SIZE], "the low ends"
    assert upper.get_ylabel() == "exposure (bits, at least)"
    assert xs[0] == pytest.approx(math.log10(0.65))
    assert xs[1] == pytest.approx(math.log10(2345.6))
    assert xs[1] < xs[2] < xs[3]
    labels = [tick.get_text() for tick in lower.get_xticklabels()]
    assert labels[-2:] == ["clip\nonly", "no\nprivacy"]
    filled = [
        mark for mark in upper.get_lines() if mark.get_marker() == "o" and mark.get_markerfacecolor() != "#ffffff"
    ]
    assert [list(mark.get_ydata()) for mark in filled] == [[SIZE]], "only what can be extracted is filled"
    half = [mark for mark in upper.get_lines() if mark.get_fillstyle() == "left"]
    assert [list(mark.get_ydata()) for mark in half] == [[9.0]], "of this one neither is known"


def test_a_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="comparison has no outcomes"):
        exposure_against_epsilon(Comparison([]))


def test_the_page_holds_the_table_and_needs_nothing_else(tmp_path: Path) -> None:
    page = write_comparison(paper_like(), tmp_path).read_text(encoding="utf-8")
    assert (tmp_path / "report.html").exists()
    for row in paper_like().rows():
        for cell in row:
            assert f">{cell.replace('>', '&gt;')}</" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'class="verdict likely"' in page, "one of the private runs was sampled, not counted"


def test_a_page_is_green_for_what_was_counted() -> None:
    counted = Comparison([row for row in paper_like().outcomes if row.exposure.method == "exact"])
    assert 'class="verdict holds"' in render(counted)


def test_a_page_that_was_green_without_a_proof() -> None:
    page = render(Comparison([outcome("sgd", 1.0, 0.65, 9.5, interval=(2.0, 12.0), extracted=False, proven=False)]))
    assert 'class="verdict unknown"' in page
    assert '<td class="judged unknown"' in page


def test_the_page_is_alarmed_when_a_private_model_leaks() -> None:
    page = render(Comparison([outcome("sgd", 0.1, 1e9, SIZE)]))
    assert 'class="verdict leaks"' in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_chromium_shows_the_page(tmp_path: Path) -> None:
    page = write_comparison(paper_like(), tmp_path)
    picture = tmp_path / "page.png"
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1500",
         f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert picture.stat().st_size > 50_000
