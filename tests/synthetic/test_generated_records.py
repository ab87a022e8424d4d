"""What a classifier of generated records knows about real ones, and what such records are good for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_exposure.errors import ArgumentError, DataError, ExposureError
from lightning_exposure.synthetic import GeneratedDataAttack, SmallClassifier, Utility, UtilityMatrix
from lightning_exposure.synthetic.records._noise import NOISES
from lightning_exposure.synthetic.records._shares import Estimate
from lightning_exposure.synthetic.records.attack import attack_result


class Nearest:
    """The label of the nearest record that was learnt: it remembers everything."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def fit(self, records: np.ndarray, labels: np.ndarray) -> None:
        self.records, self.labels = records.reshape(len(records), -1), labels

    def predict(self, records: np.ndarray) -> np.ndarray:
        flat = records.reshape(len(records), -1)
        distances = (flat**2).sum(1)[:, None] - 2 * flat @ self.records.T + (self.records**2).sum(1)
        return self.labels[distances.argmin(1)]


class Yes:
    """Calls everything true."""

    def __init__(self, seed: int) -> None:
        pass

    def fit(self, records: np.ndarray, labels: np.ndarray) -> None:
        pass

    def predict(self, records: np.ndarray) -> np.ndarray:
        return np.ones(len(records), dtype=int)


def population(luck: np.random.Generator, count: int, *, features: int = 8) -> np.ndarray:
    """Records in three groups, which noise of single features does not have."""
    centres = np.random.default_rng(5).standard_normal((3, features)) * 1.5
    return centres[luck.integers(3, size=count)] + luck.standard_normal((count, features))


# ---- the attack --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["uniform", "normal", "shuffled", "reference"])
def test_the_population_itself_shows_no_leak_more_often_than_stated(noise: str) -> None:
    """A generator that draws from the population knows nothing of its members: 200 releases, at most 5% accused."""
    luck = np.random.default_rng(11)
    accused = above = 0
    for seed in range(200):
        generated, members, others = (population(luck, 40) for _ in range(3))
        against: Any = population(luck, 50) if noise == "reference" else noise
        attack = GeneratedDataAttack(Nearest, noise=against, classifiers=1, seed=seed)
        leak = attack.measure(generated, members=members, held_out=others).leak
        accused += not leak.low <= 0 <= leak.high
        above += leak.low > 0
    # So many are exceeded by an error of 5% (2.5% at one end) in one of a thousand such tests.
    assert accused <= stats.binom.isf(1e-3, 200, 0.05)
    assert above <= stats.binom.isf(1e-3, 200, 0.025)


@pytest.mark.parametrize("classifier", [None, Nearest], ids=["small", "nearest"])
@pytest.mark.parametrize("noise", ["normal", "reference"])
def test_a_generator_that_copies_shows_a_leak(noise: str, classifier: Any) -> None:
    luck = np.random.default_rng(3)
    members, others, reference = (luck.standard_normal((100, 30)) for _ in range(3))
    against: Any = reference if noise == "reference" else noise
    result = GeneratedDataAttack(classifier, noise=against, classifiers=3).measure(
        members, members=members, held_out=others
    )
    assert result.members.value >= 0.99
    assert result.leak.low > 0.1
    assert result.leak.value == pytest.approx(result.members.value - result.held_out.value)


def test_what_is_known_of_the_population_is_no_leak() -> None:
    """Images that noise does not look like: P is 1, for held-out ones just as well."""
    luck = np.random.default_rng(0)
    generated, members, others = (
        np.clip(0.1 * luck.standard_normal((60, 1, 6, 6)) + np.eye(6), 0, 1) for _ in range(3)
    )
    result = GeneratedDataAttack(classifiers=1).measure(
        torch.tensor(generated), members=torch.tensor(members), held_out=others.tolist()
    )
    assert result.members.value > 0.9
    assert result.privacy_loss.value > 0.8
    assert result.leak.low < 0 < result.noise_told.low


def test_who_calls_everything_true_is_told_by_the_noise() -> None:
    records = population(np.random.default_rng(0), 60)
    result = GeneratedDataAttack(Yes).measure(records, members=records[:30], held_out=records[30:])
    assert result.members.value == 1
    assert result.noise_told.value == 0
    assert result.leak.value == 0


def test_numbers_of_an_attack_against_plain_counting() -> None:
    luck = np.random.default_rng(2)
    members, others, noise = luck.random(50) < 0.8, luck.random(30) < 0.6, luck.random(20) < 0.1
    result = attack_result(members, others, noise, confidence=0.9)
    p, q = sum(members.tolist()) / 50, sum(others.tolist()) / 30
    assert (result.members.value, result.held_out.value) == pytest.approx((p, q))
    assert result.privacy_loss.value == pytest.approx((p - 0.5) / 0.5)
    assert result.held_out_loss.value == pytest.approx(2 * q - 1)
    assert result.noise_told.value == pytest.approx(1 - sum(noise.tolist()) / 20)
    exact = stats.binomtest(int(members.sum()), 50).proportion_ci(0.9)
    assert result.privacy_loss.low == pytest.approx(2 * exact.low - 1)


def test_records_that_were_drawn_with_the_same_seed_are_not_the_noise() -> None:
    """Whoever draws records with default_rng(0) must not get the members back as the noise of seed 0."""
    generated, members, others = np.random.default_rng(0).random((3, 60, 5))
    result = GeneratedDataAttack(Nearest, classifiers=1, seed=0).measure(generated, members=members, held_out=others)
    assert result.leak.low < 0 < result.leak.high


def test_records_in_two_places_are_refused() -> None:
    """What is held out must not have been trained on: the difference would be nothing, whatever leaks."""
    generated, members, others = population(np.random.default_rng(0), 90).reshape(3, 30, 8)
    half = np.concatenate([others[:15], members[:15]])
    with pytest.raises(DataError, match=r"held_out has 15 of its 30 records in common with members, of which 0"):
        GeneratedDataAttack(Nearest).measure(generated, members=members, held_out=half)
    for noise, name in ((others, "held_out"), (members, "members")):
        with pytest.raises(DataError, match=f"noise has 30 of its 30 records in common with {name}"):
            GeneratedDataAttack(Nearest, noise=noise).measure(generated, members=members, held_out=others)


def test_records_of_few_values_may_be_equal() -> None:
    luck = np.random.default_rng(0)
    generated, members, others = luck.integers(2, size=(3, 200, 4))
    result = GeneratedDataAttack(Nearest, classifiers=1).measure(generated, members=members, held_out=others)
    assert result.leak.low < 0 < result.leak.high


def test_half_precision_is_as_good_as_any() -> None:
    records = torch.tensor(population(np.random.default_rng(0), 90).reshape(3, 30, 8)).bfloat16()
    half, full = (
        GeneratedDataAttack(Nearest, classifiers=1).measure(each[0], members=each[1], held_out=each[2])
        for each in (records, records.float())
    )
    assert half == full


def test_classifiers_vote() -> None:
    """Three classifiers, two of which are right about everything: so is the vote."""
    luck = np.random.default_rng(0)
    members, others = luck.standard_normal((2, 20, 3))
    made: list[int] = []

    def factory(seed: int) -> Any:
        made.append(seed)
        return Yes(seed) if len(made) < 3 else Nearest(seed)

    result = GeneratedDataAttack(factory, classifiers=3).measure(members, members=members, held_out=others)
    assert result.held_out.value == 1
    assert len(set(made)) == 3


def test_a_measurement_is_a_function_of_its_seed_and_leaves_no_trace() -> None:
    luck = np.random.default_rng(0)
    generated, members, others = luck.standard_normal((3, 30, 4))
    torch.manual_seed(7)
    np.random.seed(7)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first, again, other = (
        GeneratedDataAttack(classifiers=1, seed=seed).measure(generated, members=members, held_out=others)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before


@pytest.mark.parametrize("name", NOISES)
def test_noise_has_what_its_name_says(name: str) -> None:
    luck = np.random.default_rng(0)
    generated = (luck.random((400, 2, 3)) ** 2 * np.array([1, 10, 100])).astype(np.float32)
    noise = NOISES[name](generated, 4000, luck)
    assert noise.shape == (4000, 2, 3)
    assert noise.dtype == np.float32
    if name == "uniform":
        assert (noise >= generated.min(0)).all()
        assert (noise <= generated.max(0)).all()
        np.testing.assert_allclose(noise.mean(0), (generated.min(0) + generated.max(0)) / 2, rtol=0.1)
    elif name == "normal":
        np.testing.assert_allclose(noise.mean(0), generated.mean(0), rtol=0.2)
        np.testing.assert_allclose(noise.std(0), generated.std(0), rtol=0.1)
    else:
        assert all(np.isin(noise[:, i, j], generated[:, i, j]).all() for i in range(2) for j in range(3))
        together = np.corrcoef(noise[:, 0, 0], noise[:, 1, 2])[0, 1]
        assert abs(together) < 0.1


# ---- the utility -------------------------------------------------------------------------------------------------


def classes(luck: np.random.Generator, count: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    labels = luck.integers(3, size=count)
    return np.eye(3)[labels] + spread * luck.standard_normal((count, 3)), 10 * labels - 5


def test_the_four_accuracies_against_plain_counting() -> None:
    luck = np.random.default_rng(0)
    private, generated, private_test, generated_test = (classes(luck, 60, s) for s in (0.3, 0.8, 0.3, 0.8))
    found = UtilityMatrix(Nearest, seeds=(3, 4)).measure(
        private, generated, private_test=private_test, generated_test=generated_test
    )

    def counted(train: Any, test: Any) -> float:
        """The label of the nearest record, one by one."""
        right = 0
        for record, label in zip(*test, strict=True):
            nearest = min(range(len(train[0])), key=lambda i: ((train[0][i] - record) ** 2).sum())
            right += train[1][nearest] == label
        return right / len(test[0])

    expected = [counted(train, test) for test in (private_test, generated_test) for train in (private, generated)]
    means = [found.mean(name).value for name in ("p1", "p2", "p3", "p4")]
    assert means == pytest.approx(expected)
    assert found.loss.value == pytest.approx(expected[0] - expected[1])
    assert expected[0] > expected[1]


def test_the_interval_is_over_seeds() -> None:
    luck = np.random.default_rng(1)
    private, generated, private_test, generated_test = (classes(luck, 60, s) for s in (0.6, 1.2, 0.6, 1.2))
    found = UtilityMatrix(lambda seed: SmallClassifier(seed, steps=40), seeds=range(4)).measure(
        private, generated, private_test=private_test, generated_test=generated_test
    )
    differences = np.subtract(found.p1, found.p2)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert len(set(found.p1)) > 1, "seeds differ"
    assert (found.loss.low, found.loss.high) == pytest.approx((low, high))
    assert "4 seeds" in str(found)


def test_the_interval_of_an_accuracy_ends_where_accuracies_do() -> None:
    found = Utility((1.0, 0.9), (0.0, 0.1), (0.5, 0.5), (0.5, 0.6))
    assert found.mean("p1").high == 1.0
    assert found.mean("p2").low == 0.0
    assert found.mean("p3") == Estimate(0.5, 0.5, 0.5)


def test_progress_is_told_classifier_by_classifier() -> None:
    records = population(np.random.default_rng(0), 30)
    pair = (records, np.arange(30) % 2)
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    attack = GeneratedDataAttack(Yes, classifiers=3)
    attack.measure(records, members=records[:15], held_out=records[15:], on_classifier=tell)
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    private = (records + 9, pair[1])
    UtilityMatrix(Nearest, seeds=(0, 1)).measure(
        private, pair, private_test=pair, generated_test=pair, on_classifier=tell
    )
    assert told == [(done, 4) for done in (1, 2, 3, 4)]


def test_labels_that_were_never_learnt_are_wrong_and_no_crash() -> None:
    luck = np.random.default_rng(1)
    records = luck.standard_normal((20, 2))
    few, many = (records + 9, np.zeros(20, dtype=int)), (records, np.arange(20) % 4)
    found = UtilityMatrix(seeds=(0, 1)).measure(few, many, private_test=many, generated_test=many)
    assert found.p1 == (0.25, 0.25)

    class Elsewhere(Yes):
        def predict(self, records: np.ndarray) -> np.ndarray:
            return np.full(len(records), 99)

    assert UtilityMatrix(Elsewhere, seeds=(0, 1)).measure(few, many, private_test=many, generated_test=many).p4 == (
        0.0,
        0.0,
    )


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("classifier", lambda: GeneratedDataAttack(Yes(0))),
        ("classifier", lambda: GeneratedDataAttack("forest")),
        ("noise", lambda: GeneratedDataAttack(noise="white")),
        ("noise", lambda: GeneratedDataAttack(noise=None)),
        ("noise", lambda: GeneratedDataAttack(noise=np.zeros((3, 2)))),
        ("classifiers", lambda: GeneratedDataAttack(classifiers=0)),
        ("confidence", lambda: GeneratedDataAttack(confidence=95)),
        ("seed", lambda: GeneratedDataAttack(seed=-1)),
        ("seeds", lambda: UtilityMatrix(seeds=(1,))),
        ("seeds", lambda: UtilityMatrix(seeds=5)),
        ("seeds", lambda: UtilityMatrix(seeds=(1, 1))),
        ("seeds", lambda: UtilityMatrix(seeds=(0, 1, 1, 1))),
        (r"seeds\[1\]", lambda: UtilityMatrix(seeds=(1, 0.5))),
        ("confidence", lambda: UtilityMatrix(confidence=1)),
        ("hidden_size", lambda: SmallClassifier(0, hidden_size=0)),
    ],
)
def test_wrong_arguments(name: str, call: Any) -> None:
    with pytest.raises(ExposureError, match=rf"^{name} (is|has) .*; expected "):
        call()


class NeverFits(Yes):
    def fit(self, records: np.ndarray, labels: np.ndarray) -> None:
        raise AssertionError("work has begun")


GOOD = np.zeros((4, 2, 2))


@pytest.mark.parametrize("which", ["generated", "members", "held_out"])
@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(4),
        np.zeros((0, 2, 2)),
        np.full((4, 2, 2), np.nan),
        np.array([["a"], ["b"]]),
        [[1, 2], [3]],
        "records",
        None,
    ],
    ids=["flat", "empty", "nan", "texts", "ragged", "text", "none"],
)
def test_wrong_records_are_refused_before_work(which: str, wrong: Any) -> None:
    given = {"generated": GOOD, "members": GOOD, "held_out": GOOD, which: wrong}
    with pytest.raises(DataError, match=rf"^{which} .*; expected"):
        GeneratedDataAttack(NeverFits).measure(given.pop("generated"), **given)


def test_records_of_other_shapes_are_refused_before_work() -> None:
    other = np.zeros((20, 4))
    for which in ("members", "held_out"):
        with pytest.raises(DataError, match=rf"^{which} has records of the shape \(4,\); expected \(2, 2\)"):
            GeneratedDataAttack(NeverFits).measure(GOOD, **{"members": GOOD, "held_out": GOOD, which: other})
    with pytest.raises(DataError, match=r"^noise has records of the shape \(4,\)"):
        GeneratedDataAttack(NeverFits, noise=other).measure(GOOD, members=GOOD, held_out=GOOD)
    with pytest.raises(DataError, match=r"^noise has given 3 records; expected 4"):
        GeneratedDataAttack(NeverFits, noise=lambda *_: np.zeros((3, 2, 2))).measure(GOOD, members=GOOD, held_out=GOOD)


@pytest.mark.parametrize(
    "wrong", [GOOD, (GOOD, [0, 1]), (GOOD, [0.5] * 4), (GOOD, ["a"] * 4), (GOOD, GOOD), None], ids=str
)
def test_wrong_pairs_are_refused_before_work(wrong: Any) -> None:
    good = (GOOD, [0, 1, 0, 1])
    with pytest.raises(DataError, match=r"^private_test(\[1\])? (is|has) .*; expected"):
        UtilityMatrix(NeverFits).measure(good, good, private_test=wrong, generated_test=good)


def test_classifiers_that_are_none_and_answers_that_are_none() -> None:
    class Probabilities(Yes):
        def predict(self, records: np.ndarray) -> np.ndarray:
            return np.full((len(records), 2), 0.5)

    with pytest.raises(DataError, match=r"^classifier has given answers of the shape"):
        GeneratedDataAttack(Probabilities).measure(GOOD, members=GOOD, held_out=GOOD)
    with pytest.raises(ArgumentError, match=r"^classifier is .* of type int; expected"):
        GeneratedDataAttack(lambda seed: seed).measure(GOOD, members=GOOD, held_out=GOOD)
