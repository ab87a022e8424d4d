"""Figures: what is drawn, by its artists, in both themes."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rcParams
from matplotlib._pylab_helpers import Gcf
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lightning_exposure import report
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import Measurement, MissingExtraError, References, RunRecord
from lightning_exposure.report.figures import paper as plots
from lightning_exposure.report.figures.style import THEMES, line_style, spread, theme_named, to_bytes
from lightning_exposure.secrets import CanarySet, SecretFormat
from tests.report.builder import make_estimate, make_history, make_record, make_references

RECORD = make_record()
COSTS = {"ssn-1x": 27.9, "ssn-4x": 7.1, "ssn-16x": 6.2}


def texts(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def lines(figure: Figure, panel: int = 0) -> dict[str, Any]:
    """The lines that have names."""
    return {str(line.get_label()): line for line in figure.axes[panel].lines if str(line.get_label())[0] != "_"}


def drawn(figure: Figure) -> Figure:
    """Draw it, so that whatever would fail or warn does so here."""
    assert to_bytes(figure, "svg").startswith(b"<?xml")
    return figure


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("draw", ["training", "references", "attacks", "ranks"])
def test_every_figure_in_every_theme(draw: str, theme: str) -> None:
    figure = {
        "training": lambda: plots.exposure_over_training(RECORD, theme=theme),
        "references": lambda: plots.reference_histogram(make_references(), COSTS, theme=theme),
        "attacks": lambda: plots.expansions_against_exposure([(29.9, 26, True), (12.0, 999, False)], theme=theme),
        "ranks": lambda: plots.rank_agreement([(1, 1.0, "exact"), (5895, 6011.5, "importance")], theme=theme),
    }[draw]()
    drawn(figure)
    assert to_hex(figure.get_facecolor()) == THEMES[theme].background
    assert all(to_hex(axes.get_facecolor()) == THEMES[theme].background for axes in figure.axes)


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(ArgumentError, match="theme is 'sepia'; expected one of 'light', 'dark'"):
        plots.exposure_over_training(RECORD, theme="sepia")


# --- over training -------------------------------------------------------------------------------------------


def test_a_few_canaries_have_a_line_and_a_label_each() -> None:
    figure = drawn(plots.exposure_over_training(RECORD))
    assert list(lines(figure)) == ["ssn-1x", "ssn-4x", "ssn-16x"]
    assert {"ssn-4x  29.9", "ssn-16x  29.9", "everything: log₂|R| = 29.9 bits"} <= set(texts(figure))
    assert figure.axes[0].get_legend() is None
    # From before training on.
    assert list(lines(figure)["ssn-4x"].get_xdata()) == list(range(11))
    size = [line for line in figure.axes[0].lines if line.get_label() == "_size"]
    assert [line.get_ydata()[0] for line in size] == [pytest.approx(math.log2(10**9))]


def test_lines_differ_in_more_than_colour() -> None:
    styles = [line_style(theme_named("light"), place) for place in range(plots.NAMED)]
    assert len({style.color for style in styles}) == len({style.mark for style in styles}) == plots.NAMED
    assert len({str(style.dashes) for style in styles}) == plots.NAMED


def test_losses_share_the_epochs() -> None:
    figure = plots.exposure_over_training(RECORD)
    assert list(lines(figure, 1)) == texts(figure, 1) == ["training", "validation"]
    assert figure.axes[0].get_shared_x_axes().joined(*figure.axes)


def test_without_a_validation_loss() -> None:
    history = [replace(measurement, val_loss=None) for measurement in RECORD.history]
    figure = drawn(plots.exposure_over_training(replace(RECORD, history=history)))
    assert list(lines(figure, 1)) == ["training"]


def test_without_any_loss_there_is_one_panel() -> None:
    history = [replace(measurement, train_loss=math.nan, val_loss=None) for measurement in RECORD.history]
    figure = drawn(plots.exposure_over_training(replace(RECORD, history=history)))
    assert len(figure.axes) == 1
    assert figure.axes[0].get_xlabel() == "epoch"


def test_one_canary_and_one_measurement() -> None:
    record = replace(make_record(repetitions=[4], epochs=1), baseline={})
    figure = drawn(plots.exposure_over_training(record))
    assert list(lines(figure)) == ["ssn-4x"]


def test_many_canaries_leave_the_plot_readable() -> None:
    record = make_record(repetitions=[1 + place % 30 for place in range(100)])
    figure = drawn(plots.exposure_over_training(record))
    assert list(lines(figure)) == plots.highlighted(record)
    assert len(lines(figure)) == plots.NAMED
    assert "94 others" in texts(figure)
    assert len(texts(figure)) == plots.NAMED + 2  # and the line of everything
    (others,) = [item for item in figure.axes[0].collections if item.get_label() == "others"]
    assert len(others.get_paths()) == 94


def test_the_most_exposed_are_named() -> None:
    record = make_record(repetitions=[16, *[1] * 10, 8])
    assert {"ssn-16x", "ssn-8x"} <= set(plots.highlighted(record))


def test_bounds_are_hollow_and_say_at_least() -> None:
    canary = RECORD.canaries[0]
    bound = make_estimate(canary, 29.9, is_bound=True, low=11.0, high=29.9, method="sampling")
    final = replace(RECORD.history[-1], estimates={**RECORD.history[-1].estimates, canary.id: bound})
    figure = drawn(plots.exposure_over_training(replace(RECORD, history=[*RECORD.history[:-1], final])))
    assert "ssn-1x  ≥ 11.0" in texts(figure)
    (hollow,) = [line for line in figure.axes[0].lines if line.get_label() == "_bounds"]
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([10], [11.0])
    assert lines(figure)["ssn-1x"].get_ydata()[-1] == 11.0, "not the ceiling that its point jumped to"
    assert hollow.get_markerfacecolor() == THEMES["light"].background


def test_intervals_are_drawn_where_there_are_any() -> None:
    canaries = RECORD.canaries
    exact = [Measurement(1, 5, None, None, 0.1, {canary.id: make_estimate(canary, 29.0) for canary in canaries})]
    figure = plots.exposure_over_training(RunRecord(canaries, history=exact))
    assert not figure.axes[0].collections
    assert len(plots.exposure_over_training(RECORD).axes[0].collections) == 3


def test_lines_are_drawn_at_the_low_ends_and_say_so() -> None:
    figure = drawn(plots.exposure_over_training(RECORD))
    lows = [measurement.estimates["ssn-1x"].low for measurement in RECORD.history]
    assert list(lines(figure)["ssn-1x"].get_ydata()[1:]) == lows
    assert figure.axes[0].get_ylabel() == "bits (line: at least; shade: at most)"
    last = RECORD.history[-1].estimates["ssn-1x"]
    assert f"ssn-1x  {last.low:.1f} to {last.high:.1f}" in texts(figure)
    canary = RECORD.canaries[0]
    exact = RunRecord(
        RECORD.canaries, history=[Measurement(1, 5, None, None, 0.1, {canary.id: make_estimate(canary, 29.0)})]
    )
    assert plots.exposure_over_training(exact).axes[0].get_ylabel() == "bits"


def test_the_most_exposed_are_so_by_their_low_ends() -> None:
    record = make_record(repetitions=[1] * 7, epochs=1)
    keys = [canary.id for canary in record.canaries]
    record.history[0].estimates.update({key: make_estimate(record.canaries[key], 10.0) for key in keys})
    jumped = make_estimate(record.canaries[3], 29.9, low=1.0, high=29.9, method="importance", is_bound=True)
    record.history[0].estimates[keys[3]] = jumped
    assert keys[3] not in plots.highlighted(record)


def test_several_measurements_in_an_epoch_are_drawn_over_steps() -> None:
    history = [replace(item, epoch=1 + place // 2) for place, item in enumerate(RECORD.history)]
    figure = drawn(plots.exposure_over_training(replace(RECORD, history=history)))
    assert figure.axes[1].get_xlabel() == "step"
    assert list(lines(figure)["ssn-4x"].get_xdata()) == [0, *range(250, 2501, 250)]


def test_every_size_of_format_has_its_line() -> None:
    canaries = CanarySet.draw([SecretFormat.ssn(), SecretFormat.pin(), SecretFormat.pin(prompt="b ")], repetitions=[1])
    figure = drawn(plots.exposure_over_training(RunRecord(canaries, history=make_history(canaries, 3))))
    found = [text for text in texts(figure) if text.startswith("everything")]
    assert len(found) == 2
    assert found[0].startswith("everything of pin")


def test_an_empty_history_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"record\.history has no estimates"):
        plots.exposure_over_training(RunRecord(RECORD.canaries))


def test_labels_are_spread_within_the_axes() -> None:
    places = spread([0.98, 0.99, 1.0, 0.2], gap=0.1)
    assert places == pytest.approx([0.8, 0.9, 1.0, 0.2])
    assert spread([], gap=0.1) == []
    assert spread([-3.0, 0.0], gap=0.1) == pytest.approx([0.0, 0.1])


# --- references ----------------------------------------------------------------------------------------------


def test_histogram_marks_the_canaries_and_shows_the_fit() -> None:
    figure = drawn(plots.reference_histogram(make_references(), COSTS))
    assert texts(figure) == ["ssn-16x  6.2", "ssn-4x  7.1", "ssn-1x  27.9"]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "800 secrets drawn uniformly",
        "skew-normal fit (Kolmogorov-Smirnov p = 0.66)",
    ]


def test_histogram_of_many_canaries() -> None:
    costs = {f"ssn-{place}x": 30.0 - 0.2 * place for place in range(100)}
    figure = drawn(plots.reference_histogram(make_references(), costs))
    assert len(texts(figure)) == plots.NAMED
    assert len(lines(figure)["94 other canaries"].get_xdata()) == 94


def test_histogram_of_chosen_canaries_keeps_their_colours() -> None:
    figure = plots.reference_histogram(make_references(), COSTS, highlight=["elsewhere", "ssn-4x"])
    assert texts(figure) == ["ssn-4x  7.1"]
    assert figure.axes[0].texts[0].get_color() == line_style(theme_named("light"), 1).color


def test_histogram_without_a_fit_without_canaries_and_with_the_impossible() -> None:
    references = References([30.0] * 20 + [math.inf])
    figure = drawn(plots.reference_histogram(references, {"ssn-1x": math.inf}))
    assert texts(figure) == []
    drawn(plots.reference_histogram(make_references(), {}))
    with pytest.raises(ArgumentError, match=r"references\.costs has no finite costs"):
        plots.reference_histogram(References([math.inf]), COSTS)


# --- many runs -----------------------------------------------------------------------------------------------


def test_attacks_that_failed_look_different() -> None:
    points = [(29.9, 26, True), (20.0, 400, True), (12.0, 9999, False)]
    figure = drawn(plots.expansions_against_exposure(points, size_bits=29.9))
    found, missed = figure.axes[0].collections
    assert [len(found.get_offsets()), len(missed.get_offsets())] == [2, 1]
    assert len(missed.get_facecolor()) == 0  # hollow
    assert figure.axes[0].get_yscale() == "log"
    assert "29.9" in texts(figure)[0]


def test_ranks_have_a_mark_for_each_method_and_the_diagonal() -> None:
    points = [(1, 1.4, "importance"), (10**8, 2.0**500, "skewnormal"), (7, 6.5, "importance")]
    figure = drawn(plots.rank_agreement(points))
    assert list(lines(figure)) == ["estimated = exact"]
    assert [str(item.get_label()) for item in figure.axes[0].collections] == ["importance", "skewnormal"]
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_points_that_cannot_be_drawn_are_named() -> None:
    with pytest.raises(ArgumentError, match="points is empty"):
        plots.rank_agreement([])
    with pytest.raises(ArgumentError, match=r"points\[1\]\.estimated is 0; expected a number of at least 1"):
        plots.rank_agreement([(1, 1, "exact"), (2, 0, "exact")])
    with pytest.raises(ArgumentError, match=r"points\[0\]\.expansions is 0"):
        plots.expansions_against_exposure([(3.0, 0, True)])


# --- files and imports ---------------------------------------------------------------------------------------


def test_png_and_svg_are_saved_the_same_every_time(tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("b.svg", b"<?xml")):
        first = plots.save(plots.exposure_over_training(RECORD), tmp_path / "new" / name).read_bytes()
        assert first.startswith(start)
        assert plots.save(plots.exposure_over_training(RECORD), tmp_path / name).read_bytes() == first


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a name that ends with \.png or \.svg"):
        plots.save(plots.exposure_over_training(RECORD), tmp_path / "a.jpeg")


def test_no_global_state_is_touched() -> None:
    before, shown = dict(rcParams), Gcf.get_all_fig_managers()
    drawn(plots.exposure_over_training(RECORD))
    assert dict(rcParams) == before
    assert Gcf.get_all_fig_managers() == shown  # the figures that pyplot knows of


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r'pip install "lightning-exposure\[report\]"'):
        plots.exposure_over_training(RECORD)


@pytest.mark.parametrize("path", sorted(Path(report.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_what_is_optional_or_heavy_is_imported_when_it_is_needed(path: Path) -> None:
    # Not by looking at what is loaded: torchmetrics loads Matplotlib whenever it is installed.
    imports = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Import)]
    froms = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names] + [node.module or "" for node in froms]
    assert not {"matplotlib", "jinja2", "lightning", "wandb"} & {name.partition(".")[0] for name in names}
