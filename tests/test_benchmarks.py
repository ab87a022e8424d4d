"""Every benchmark runs, at a size that takes no time. Nothing here looks at how fast it was."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from benchmarks import __main__ as command
from benchmarks import audit as audit_trials
from benchmarks import audit_canaries, release_audit
from benchmarks.callback import benchmark_callback
from benchmarks.enumeration import benchmark_enumeration
from benchmarks.estimates import benchmark_estimates, known_secrets
from benchmarks.exact import benchmark_exact, secret_near_rank
from benchmarks.full_passes import full_pass_costs
from benchmarks.leakage import benchmark_leakage, benchmark_subword_leakage, samples_for_one_bit
from benchmarks.mixture import exposure_by_mixture
from benchmarks.models import Recipe, Subject, train, train_or_load
from benchmarks.precision import benchmark_precision, covers
from benchmarks.ranking import benchmark_ranking
from benchmarks.scanning import benchmark_scanning
from benchmarks.scoring import benchmark_scoring
from benchmarks.table import Row, Target, as_markdown, as_text
from lightning_exposure import ExposureEstimate, measure_exposure
from lightning_exposure.synthetic import NeuralScorer
from lightning_exposure.walks import score

TINY = Recipe(characters=3_000, units=12, layers=1, digits=4, repetitions=(8, 2), epochs=1, batch_size=16)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return train(TINY)


def units(rows: Sequence[Row]) -> list[str]:
    """What is measured, row by row; every row is called something else."""
    assert len({row.what for row in rows}) == len(rows)
    return [row.unit for row in rows]


def test_scoring(subject: Subject) -> None:
    rows = benchmark_scoring(subject, secrets=64, fully=16, batch_size=16, repeats=1)
    assert units(rows) == ["x", "x", "bits"]
    assert [row.target for row in rows] == [Target("at least", 6.0), None, Target("below", 0.001)]
    assert not rows[2].missed, "both ways of scoring give the same costs"
    (read,) = map(int, re.findall(r" (\d+) expansions", rows[2].beside))
    assert 64 < read <= 1 + 10 + 64 + 64, "beginnings that secrets share are read once"


def test_enumeration(subject: Subject) -> None:
    speed, memory = rows = benchmark_enumeration(subject, digits=3, fully=16, batch_size=16, repeats=1)
    assert units(rows) == ["x", "GiB"]
    assert f"{1 + 10 + 100} expansions" in speed.beside, "every inner node of a tree of three digits, once"
    assert not memory.missed


def test_exact(subject: Subject) -> None:
    rows = benchmark_exact(subject, ranks=range(10, 100), repeats=1)
    assert units(rows) == ["expansions", "x", "GiB", "expansions", "x"]
    for count, saving in ((rows[0], rows[1]), (rows[3], rows[4])):
        assert 5 <= count.value <= 1 + 10 + 100 + 1000 + 10_000
        assert saving.value == pytest.approx(10_000 / count.value), "against reading every secret"
    assert "at rank 1 of 10,000" in rows[3].what
    assert "13.29 of 13.29 bits" in rows[3].beside
    assert not rows[2].missed


def test_estimates(subject: Subject) -> None:
    rows = benchmark_estimates(subject, digits=3, ranks=(1, 100), samples=64, seeds=2, skew_normal_seeds=1)
    assert units(rows) == ["bits"] * 10
    assert [row.target is not None for row in rows] == [False] * 6 + [True] * 4
    error = {row.what.partition(" of 1,000")[0]: row.value for row in rows}
    # 64 walks uniformly see nothing below rank 15 or so of 1,000, and 64 that follow the model see its favourites.
    assert error["mixture of temperatures, rank 1"] < 0.1 < error["sampling, rank 1"]
    assert error["importance, rank 100"] < 0.3
    assert all(value < 9.97 for value in error.values()), "no error is larger than log2 |R|"


def test_precision(subject: Subject) -> None:
    rows = benchmark_precision(subject, digits=3, ranks=(1, 10, 100), precisions=(1.0, 0.25), seeds=2)
    assert units(rows) == ["expansions", "bits"] * 4
    assert [row.target for row in rows[1::2]] == [Target("below", precision) for precision in (1.0, 0.25)] * 2
    assert not any(row.missed for row in rows)  # a thousand secrets are counted, whatever the precision
    assert all("100% of the intervals hold the exact value" in row.beside for row in rows[1::2])


def test_an_interval_covers_what_lies_in_it() -> None:
    estimate = ExposureEstimate("s", 5.0, 4.5, 5.5, "importance", 1.0, 1.0, 10.0, False, 0.95, 7)
    assert covers(estimate, 4.5)
    assert covers(estimate, 5.5)
    assert not covers(estimate, 4.4)
    assert not covers(estimate, 5.6)


def test_the_untrained_model_is_the_same_each_time_and_not_the_trained_one(subject: Subject) -> None:
    texts = [canary.text for canary in subject.canaries]
    one, other = (score(subject.untrained().tree(TINY.digits), texts).costs for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (one != score(subject.tree(TINY.digits), texts).costs).all()


def test_callback() -> None:
    rows = benchmark_callback((2, 12), epochs=1, text="the quick brown fox jumps over the lazy dog. " * 200)
    assert units(rows) == ["%", "%", rows[2].unit]
    assert [row.target for row in rows] == [Target("below", 5.0)] * 2 + [Target("below", 50.0)]
    assert [re.findall(r"of (\d+) canaries", row.what) for row in rows[:2]] == [["2"], ["12"]]


def test_ranking() -> None:
    (row,) = benchmark_ranking(references=100, secrets=10, repeats=1)
    low, high = map(float, re.findall(r"[\d.]+", row.beside))
    assert 0.0 <= low < high <= round(math.log2(101), 2), "the exposures of ten scores among a hundred others"


def test_training_is_deterministic(subject: Subject) -> None:
    again = train(TINY).model.state_dict()
    assert all(bool((again[name] == value).all()) for name, value in subject.model.state_dict().items())


def test_full_passes_agree_with_the_tree(subject: Subject) -> None:
    tree = subject.tree(TINY.digits)
    secrets = tree.format.sample(20, seed=0)
    full = full_pass_costs(subject, tree.format, secrets, batch_size=7)
    np.testing.assert_allclose(score(tree, secrets).costs, full, atol=1e-3)


def test_known_secrets_have_the_ranks_that_an_exact_count_gives(subject: Subject) -> None:
    tree = subject.tree(3)
    known = known_secrets(tree, (1, 50, 1000))
    counted = measure_exposure(tree, [secret.text for secret in known], "exact")
    assert [secret.rank for secret in known] == [estimate.rank for estimate in counted]
    assert [secret.bits for secret in known] == pytest.approx([estimate.bits for estimate in counted])


def test_a_secret_near_a_rank_has_that_rank(subject: Subject) -> None:
    tree = subject.tree(3)
    (estimate,) = measure_exposure(tree, [secret_near_rank(tree, 20)], "exact")
    assert estimate.rank == pytest.approx(20, abs=2)  # ties


def test_mixture_comes_to_the_exact_value(subject: Subject) -> None:
    tree = subject.tree(2)
    known = known_secrets(tree, (1, 10, 50))
    estimate = exposure_by_mixture(tree, [secret.text for secret in known], samples=20_000, seed=0)
    assert estimate.bits == pytest.approx([secret.bits for secret in known], abs=0.1)


def test_cache_gives_the_same_model_and_refuses_another_recipe(tmp_path: Path) -> None:
    cache = tmp_path / "model.pt"
    trained, seconds = train_or_load(TINY, cache)
    loaded, nothing = train_or_load(TINY, cache)
    assert seconds > nothing == 0.0
    secrets = [canary.text for canary in TINY.canaries()]
    costs = [score(subject.tree(TINY.digits), secrets).costs for subject in (trained, loaded)]
    np.testing.assert_array_equal(*costs)
    with pytest.raises(SystemExit, match="another recipe"):
        train_or_load(Recipe(), cache)


@pytest.mark.parametrize(("limit", "met", "code"), [(2.0, "yes", 0), (0.5, "NO", 1)])
def test_command_prints_and_judges(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    limit: float,
    met: str,
    code: int,
) -> None:
    rows = [Row("speed | of light", 1.0, "s", Target("below", limit), "in vacuum")]
    monkeypatch.setattr(command, "WITHOUT_MODEL", {"ranking": lambda: rows})
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{command.MARKER}\nan old table\n", encoding="utf-8")
    assert command.main(["--only", "ranking", "--markdown", str(page)]) == code
    assert "1.000 s" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Page\n\n{command.MARKER}\n\n| what |")
    assert f"| speed \\| of light | 1.000 s | below {limit:g} s | {met} | in vacuum |" in text
    assert "old table" not in text


def test_tables_hold_every_row() -> None:
    rows = [Row("a", 7.25, "x", Target("at least", 1_000_000)), Row("b", float("nan"), "bits", Target("below", 1.0))]
    assert rows[1].missed
    assert len(as_text(rows).splitlines()) == len(as_markdown(rows).splitlines()) == 4
    assert "at least 1,000,000x" in as_text(rows)


def test_leakage_agrees_with_samples(subject: Subject) -> None:
    rows = benchmark_leakage(subject, samples=2_000)
    assert len(rows) == len(subject.canaries) + 2
    assert not rows[-1].missed


def test_leakage_over_all_spellings() -> None:
    rows = benchmark_subword_leakage(lines=500, steps=10, units=8)
    assert len(rows) == 6
    assert all(row.value <= 100 for row in rows[1::2])


def test_samples_for_an_interval_one_bit_wide() -> None:
    hits = samples_for_one_bit(1.0)
    assert 2.0 * chi2.ppf(0.025, 2 * hits) >= chi2.ppf(0.975, 2 * hits + 2)
    assert samples_for_one_bit(0.01) == pytest.approx(100 * hits)


def test_scanning_finds_what_was_planted() -> None:
    time, difference = benchmark_scanning(lines=400, planted=60)
    assert time.value > 0
    assert difference.value == 0


def test_trials_of_audits_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [audit_trials.Setting(family, 1.0, 40, 1e-2) for family in audit_trials.FAMILIES]
    monkeypatch.setattr(audit_trials, "settings", lambda jax: few)
    arguments = ["--trials", "3", "--csv", str(tmp_path / "table.csv")]
    audit_trials.main(arguments)
    kept = (tmp_path / "table.csv").read_text()
    assert len(kept.splitlines()) == 1 + 2 * len(few)
    monkeypatch.setattr(audit_trials, "rows", None)
    audit_trials.main(arguments)
    assert (tmp_path / "table.csv").read_text() == kept


def test_the_epsilon_of_randomized_response_has_the_delta_that_was_asked_for() -> None:
    honest = 1 / (1 + math.exp(-1.0))
    for delta in (1e-5, 1e-2):
        epsilon = audit_trials.response_epsilon(1.0, delta)
        assert honest - math.exp(epsilon) * (1 - honest) == pytest.approx(delta)


def test_designs_of_canaries_are_compared_seed_by_seed() -> None:
    names = audit_canaries.COLUMNS
    cells = [("uniform", 0, 1.0), ("uniform", 1, 3.0), ("100 unused tokens", 0, 2.0), ("100 unused tokens", 1, 4.0)]
    rows = [
        dict(zip(names, ("10 epochs", design, str(seed), "0.5", "0.5", str(epsilon), "1"), strict=True))
        for design, seed, epsilon in cells
    ]
    *_, uniform, unused = audit_canaries.summary(rows)
    assert "| 2.00 ± 12.71 |" in uniform
    assert unused.endswith("| 3.00 ± 12.71 | 1.00 ± 0.00 |")
    for design, symbols in (("uniform", 10), ("10 unused tokens", 10), ("100 unused tokens", 100)):
        canaries = audit_canaries.DESIGNS[design](0)
        assert len(canaries) == 200
        assert {canary.format.size for canary in canaries} == {symbols**9}


# --- audits of releases ---------------------------------------------------------------------------------------


def test_audits_of_releases_by_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = {
        "epochs": (1,), "seeds": (0, 1), "texts": (40, 80), "letters": 2_000, "units": 8, "canaries": 40,
        "neural": NeuralScorer(networks=1, hidden_size=4, steps=2, batch_size=4),
    }  # fmt: skip
    path = tmp_path / "scores.csv"
    release_audit.main(["--csv", str(path)], tiny)
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 2 * (1 + 2 * 6)
    assert "texts 80  score both, added up  releases 2" in capsys.readouterr().out
    release_audit.main(["--csv", str(path)], {**tiny, "letters": None})  # all is there: nothing is trained again
    assert path.read_text().splitlines() == lines
    means = {row["score"]: row["auc"] for row in release_audit.summary([
        {"texts": "9", "score": "a", "epsilon_lower": "0.5", "auc": auc} for auc in ("0.5", "0.7")
    ])}  # fmt: skip
    assert means == {"a": pytest.approx(0.6)}


def test_false_alarms_of_audits_of_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "alarms.csv"
    release_audit.main(["--csv", str(path), "--simulated", "2"])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed] == [
        "generator never saw a canary", "generator randomized response", "generator noisy counts",
        "generator memorizes",
    ]  # fmt: skip
    assert printed[0].endswith("above 0")
