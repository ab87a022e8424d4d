"""A gate: three answers, and one error for a whole run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from benchmarks import gate as simulation
from lightning_exposure import Canary, CanarySet, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError, GateError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.measuring import Alone, CanaryTrees, ExposureMonitor, Moment, Schedule, SharedTrees
from lightning_exposure.measuring.gate import (
    AlphaSpending,
    Bounds,
    GateKeeper,
    GateWarning,
    bits_of_luck,
    bounds_of,
    take_look,
)
from lightning_exposure.tokenization import CharTokenizer
from tests.toys import Recurrent, sharpened

PIN = SecretFormat("pin ####")
CHARS = CharTokenizer.from_text("pin 0123456789")
LIMIT = 10.0


class Measuring:
    """Answers with what it was given, and notes what it was asked."""

    def __init__(self, *answers: Bounds) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[list[str], int, float]] = []

    def __call__(self, ids: Sequence[str], effort: int, error: float) -> dict[str, Bounds]:
        self.asked.append((list(ids), effort, error))
        answer = self._answers.pop(0)
        return dict.fromkeys(ids, answer)


def test_counted_exposures_decide_at_once_and_cost_nothing() -> None:
    spending, measure = AlphaSpending(0.05), Measuring()
    look = take_look({"a": Bounds(10.5, 10.5, True), "b": Bounds(9.0, 12.0)}, LIMIT, spending, measure)
    assert (look.answer, look.canary) == ("exceeded", "a")
    assert not measure.asked
    assert spending.spent == 0.0


def test_exactly_the_limit_is_within_it() -> None:
    assert take_look({"a": Bounds(10.0, 10.0, True)}, LIMIT, AlphaSpending(0.05), Measuring()).answer == "within"


def test_what_is_undecided_is_measured_further_until_it_is_not() -> None:
    measure = Measuring(Bounds(9.0, 10.5), Bounds(9.2, 9.9))
    look = take_look({"a": Bounds(8.0, 11.0), "b": Bounds(1.0, 2.0)}, LIMIT, AlphaSpending(0.05), measure, error=0.08)
    assert look.answer == "within"
    assert measure.asked == [(["a"], 4, 0.04), (["a"], 16, 0.02)]


def test_what_stays_open_is_undecided() -> None:
    measure = Measuring(Bounds(9.0, 10.5), Bounds(9.2, 10.2))
    look = take_look({"a": Bounds(8.0, 11.0)}, LIMIT, AlphaSpending(0.05), measure)
    assert (look.answer, look.bounds["a"]) == ("undecided", Bounds(9.2, 10.2))


def test_an_estimate_above_the_limit_is_only_a_suspicion_until_a_second_one_confirms_it() -> None:
    spending = AlphaSpending(0.06)
    confirmed = Measuring(Bounds(10.2, 11.5))
    first = {"a": Bounds(10.1, 11.0), "b": Bounds(10.3, 12.0), "c": Bounds(1.0, 2.0)}
    assert take_look(first, LIMIT, spending, confirmed).answer == "exceeded"
    assert confirmed.asked == [(["b"], 16, 0.03)]  # one canary, the most suspicious, has all of the error
    refuted = Measuring(Bounds(9.8, 11.5))
    assert take_look(first, LIMIT, spending, refuted).answer == "undecided"
    assert refuted.asked == [(["b"], 16, 0.01)]  # and the second confirmation has less


def test_confirmations_without_end_spend_no_more_than_there_is() -> None:
    spending = AlphaSpending(0.05)
    total = sum(spending.next() for _ in range(10_000))
    assert total == pytest.approx(spending.spent)
    assert total < 0.05


def test_an_extrapolation_defends_nothing() -> None:
    estimate = ExposureEstimate("pin 1234", 12.9, 12.9, 12.9, "skewnormal", 1.3, 3.0, 13.3, False, 0.95, 9)
    measure = Measuring(Bounds(2.0, 3.0, True))
    assert take_look({"a": bounds_of(estimate)}, LIMIT, AlphaSpending(0.05), measure).answer == "within"


@pytest.mark.slow
def test_a_thousand_null_runs_of_fifty_looks_at_most_one_in_twenty_is_stopped() -> None:
    truth = simulation.at_the_limit()
    ended = simulation.simulate(simulation.gated, truth, 1000, tails=1)  # intervals miss only below, as often as may be
    assert truth.shape == (50, 20)
    assert 0.0 < simulation.stopped(ended) <= 0.05


def test_a_rising_exposure_is_stopped_sooner_than_by_bonferroni_with_the_same_samples() -> None:
    truth = simulation.one_rises()

    def late(ended: Sequence[simulation.Ended]) -> float:
        return float(np.mean([truth[-1 if each.look is None else each.look, 0] for each in ended])) - LIMIT

    ended = simulation.simulate(simulation.gated, truth, 60)
    plain = simulation.simulate(simulation.bonferroni, truth, 60, effort=simulation.effort_per_look(ended))
    assert simulation.stopped(ended) == 1.0
    assert late(ended) < 0.75 * late(plain)


# ---- with the real estimator ------------------------------------------------------------------------------------


def monitor_of(model: torch.nn.Module, canaries: CanarySet, **settings: object) -> ExposureMonitor:
    trees = CanaryTrees(canaries)
    trees.build(SharedTrees(), model, CHARS)
    monitor = ExposureMonitor(trees, Schedule(1), max_share=None, **settings)  # type: ignore[arg-type]
    monitor.begin(Alone())
    return monitor


def test_real_walks_keep_the_error_when_every_canary_is_exactly_as_exposed_as_allowed() -> None:
    """The limit is the exact exposure of the most exposed canary, and samples are far too small to see that."""
    model = sharpened(Recurrent(CHARS.vocab_size), 0, scale=2.0)
    texts = ["pin 1234", "pin 5555", "pin 0042"]
    tree = SecretTree(model, PIN, CHARS)
    limit = max(estimate.bits for estimate in measure_exposure(tree, texts, "exact", budget=10**6))
    canaries = CanarySet([Canary(f"c{i}", text, PIN, 1) for i, text in enumerate(texts)])
    stopped = 0
    for run in range(12):
        monitor = monitor_of(model, canaries, method="sampling", samples=32, precision=None, seed=run)
        keeper = GateKeeper(max_bits=limit, undecided="ignore", seed=run, max_effort=4, confidence=0.8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GateWarning)
            keeper.begin([monitor], Alone())
        for step in range(1, 4):
            monitor.arguments["seed"] = monitor._now["seed"] = 1000 * run + step
            monitor.after_epoch(model, Alone(), Moment(step, step))
            keeper.look(monitor, model, Alone())
        assert keeper.looks == 3
        stopped += keeper.answer == "exceeded"
    assert stopped <= 2  # of 12, with an error of 0.2


def test_looking_further_finds_the_exact_answer() -> None:
    """Too small a sample is undecided; four and sixteen times as much count it."""
    model = sharpened(Recurrent(CHARS.vocab_size), 0, scale=2.0)
    canaries = CanarySet([Canary("c", "pin 1234", PIN, 1)])
    exact = measure_exposure(SecretTree(model, PIN, CHARS), ["pin 1234"], "exact", budget=10**6)[0].bits
    for limit, answer in ((exact + 0.01, "within"), (exact - 0.01, "exceeded")):
        monitor = monitor_of(model, canaries, budget=1000, samples=16)
        monitor.after_epoch(model, Alone(), Moment(1, 1))
        assert monitor.history[-1].estimates["c"].method != "exact"
        keeper = GateKeeper(max_bits=limit, confidence=0.95)
        with pytest.warns(GateWarning, match="luck"):
            keeper.begin([monitor], Alone())
        keeper.look(monitor, model, Alone())
        assert keeper.answer == answer
        assert "'c'" in keeper.reason
        assert keeper.look(monitor, model, Alone()) is None  # the same measurement is one look


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_bits": None}, "max_bits and max_epsilon are None"),
        ({"max_bits": "10"}, "max_bits is '10'"),
        ({"max_bits": float("nan")}, "max_bits is nan"),
        ({"max_bits": -1}, "max_bits is -1"),
        ({"max_bits": 10, "max_epsilon": 0}, "max_epsilon is 0"),
        ({"max_bits": 10, "action": "halt"}, "action is 'halt'"),
        ({"max_bits": 10, "undecided": "hope"}, "undecided is 'hope'"),
        ({"max_bits": 10, "confidence": 95}, "confidence is 95"),
        ({"max_bits": 10, "max_effort": 0}, "max_effort is 0"),
        ({"max_bits": 10, "seed": -1}, "seed is -1"),
        ({"max_bits": 10, "name": ""}, "name is ''"),
    ],
)
def test_arguments_are_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{message.replace('.', '[.]')}.*; expected"):
        GateKeeper(**settings)  # type: ignore[arg-type]


def test_a_limit_that_luck_exceeds_is_warned_of() -> None:
    keeper = GateKeeper(max_bits=8.0)
    with pytest.warns(GateWarning, match=r"the luckiest of 20 random secrets .* shows 8.6 bits .* 5%"):
        keeper.check_limit([29.9] * 20, Alone())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GateKeeper(max_bits=8.7).check_limit([29.9] * 20, Alone())


def test_luck_is_what_the_luckiest_of_many_random_ranks_shows() -> None:
    draws = (-np.log2(np.random.default_rng(0).random((20_000, 20)))).max(axis=1)
    assert (draws >= bits_of_luck(20, 0.05)).mean() == pytest.approx(0.05, abs=0.006)


def test_a_limit_that_nothing_can_exceed_is_refused() -> None:
    keeper = GateKeeper(max_bits=13.3)
    with pytest.raises(ArgumentError, match=r"max_bits is 13.3; expected less than 13.29"):
        keeper.check_limit([float(np.log2(10_000))], Alone())
    with pytest.raises(ArgumentError, match="canaries were all left out"):
        keeper.check_limit([], Alone())


# ---- what it remembers ------------------------------------------------------------------------------------------


def exact(text: str, bits: float) -> ExposureEstimate:
    return ExposureEstimate(text, bits, bits, bits, "exact", 1, 3.0, 13.3, False, 0.95, 9)


def test_controls_close_no_gate_and_are_named() -> None:
    canaries = CanarySet([Canary("in", "pin 1234", PIN, 1), Canary("control", "pin 5555", PIN, 0)])
    keeper = GateKeeper(max_bits=9.0)
    estimates = {"in": exact("pin 1234", 2.0), "control": exact("pin 5555", 12.0)}
    with pytest.warns(GateWarning, match="'control' was never inserted and has an exposure of at least 12.00 bits"):
        metrics = keeper.decide(canaries, estimates, Measuring(), 5, Alone())
    assert keeper.answer == "within"
    assert metrics["gate/high"] == 2.0
    assert keeper.to_dict()["controls_above"] == ["control"]


def test_a_gate_that_has_closed_stays_closed_and_measures_no_further() -> None:
    canaries = CanarySet([Canary("in", "pin 1234", PIN, 1)])
    keeper = GateKeeper(max_bits=9.0)
    keeper.decide(canaries, {"in": exact("pin 1234", 12.0)}, Measuring(), 5, Alone())
    keeper.decide(canaries, {"in": exact("pin 1234", 2.0)}, Measuring(), 9, Alone())
    assert (keeper.answer, keeper.stopped_at_step, keeper.looks) == ("exceeded", 5, 2)
    assert keeper.newest_metrics()["gate/low"] == 2.0
    with pytest.raises(GateError, match=r"closed after 5 steps \(exceeded\): 'in' has an exposure of 12.00"):
        raise keeper.error()


def test_a_state_keeps_what_was_spent_and_no_secret() -> None:
    canaries = CanarySet([Canary("in", "pin 1234", PIN, 1)])
    suspected = ExposureEstimate("pin 1234", 11.0, 9.5, 12.0, "importance", 9.0, 3.0, 13.3, False, 0.95, 9)
    keeper = GateKeeper(max_bits=9.0, max_effort=1)
    keeper.decide(canaries, {"in": suspected}, Measuring(Bounds(8.0, 12.0)), 5, Alone())
    state = keeper.state_dict()
    assert "1234" not in str(state)
    again = GateKeeper(max_bits=9.0)
    again.load_state_dict(state)
    assert again.spending.spent == keeper.spending.spent == pytest.approx(0.025)
    assert again.to_dict() == keeper.to_dict()


def test_epsilon_alone() -> None:
    keeper = GateKeeper(max_bits=None, max_epsilon=8.0)
    keeper.look_at_epsilon(3.0, 10, Alone())
    assert (keeper.answer, keeper.reason) == ("within", "epsilon is 3, within the limit of 8")
    keeper.look_at_epsilon(8.25, 20, Alone())
    assert (keeper.answer, keeper.stopped_at_step) == ("exceeded", 20)
    assert keeper.reason == "epsilon is 8.25, above the limit of 8"
