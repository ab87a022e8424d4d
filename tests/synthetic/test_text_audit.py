"""`audit_synthetic`: what a release proves, and how often too much, for generators whose privacy is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.simulated_releases import FORMAT, blind, canaries, memorizing, noisy_counts, prose, randomized_response
from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure._files import plain
from lightning_exposure.errors import ArgumentError, DataError, ScoreError
from lightning_exposure.measuring import AuditWarning
from lightning_exposure.secrets import Mask
from lightning_exposure.synthetic import NeuralScorer, NgramScorer, SyntheticAudit, audit_synthetic
from lightning_exposure.synthetic.text.audit import standard_scores
from lightning_exposure.synthetic.text.scorers import AskedSecret
from tests.secrecy import leaked

QUICK = NeuralScorer(networks=1, hidden_size=16, steps=30, batch_size=16)
NGRAM: dict[str, Any] = {"scorers": ["ngram"], "edits": 0}


def allowed(trials: int, error: float = 0.05) -> int:
    """So many false alarms are luck, if each has the stated probability; more are not, nineteen times of twenty."""
    return int(stats.binom.ppf(0.95, trials, error))


def bounds(generator: Callable[[CanarySet, int], list[str]], seeds: int, **settings: Any) -> list[float]:
    """What releases of a generator prove; other canaries, coins and texts every time."""
    found = []
    for seed in range(seeds):
        drawn = canaries(80, seed=seed)
        found.append(audit_synthetic(generator(drawn, seed + 10_000), drawn, **{**NGRAM, **settings}).epsilon_lower)
    return found


# --- what is proved -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_generator_that_saw_no_canary_is_accused_no_more_often_than_stated() -> None:
    found = bounds(blind, 200)
    assert sum(bound > 0 for bound in found) <= 0.05 * 200
    # The same releases with an error of one half: the bound is not 0 because it could never be anything else.
    drawn = [canaries(80, seed=seed) for seed in range(40)]
    loose = [audit_synthetic(blind(each, 7), each, **NGRAM, confidence=0.5).epsilon_lower for each in drawn]
    assert 0 < sum(bound > 0 for bound in loose) <= allowed(40, 0.5)


@pytest.mark.slow
def test_two_scorers_share_the_error() -> None:
    found = bounds(blind, 200, scorers={"short": NgramScorer(2), "long": NgramScorer(6)})
    assert sum(bound > 0 for bound in found) <= 0.05 * 200


@pytest.mark.slow
def test_a_generator_that_saw_no_canary_is_not_accused_by_networks_either() -> None:
    """Releases, canaries and coins of their own for each of 100 tiny networks; and one that can see, if there is."""
    tiny = NeuralScorer(networks=1, hidden_size=16, steps=60, batch_size=32, lr=0.01)
    settings = {"scorers": {"lm": tiny}, "confidence": 0.9}
    found = bounds(blind, 100, **settings)
    assert sum(bound > 0 for bound in found) <= allowed(100, 0.1)
    assert min(bounds(lambda drawn, seed: memorizing(drawn, seed, share=1.0), 3, **settings)) > 0.0


def test_a_generator_that_memorizes_is_found_out() -> None:
    found = bounds(memorizing, 5)
    assert min(found) > 1.0, found


@pytest.mark.slow
@pytest.mark.parametrize("generator", [randomized_response, noisy_counts])
def test_what_is_private_with_epsilon_1_is_not_accused_of_more(
    generator: Callable[[CanarySet, int], list[str]],
) -> None:
    found = bounds(generator, 20)
    # Randomized response uses the error up: 1 of 20 may be too high on average. The benchmark counts a thousand.
    assert sum(bound > 1.0 for bound in found) <= allowed(20), found
    if generator is randomized_response:  # and nearly all that it gives away is seen
        assert np.mean(found) > 0.3


def test_the_bound_grants_more_to_canaries_of_several_records() -> None:
    drawn = canaries()
    twice = CanarySet(canary.replace(repetitions=2) for canary in drawn)
    texts = memorizing(drawn, 0)
    once, both = (audit_synthetic(texts, each, **NGRAM) for each in (drawn, twice))
    assert both.epsilon_lower == pytest.approx(once.epsilon_lower / 2, abs=0.02)


# --- scores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", [NgramScorer(), QUICK], ids=["ngram", "lm"])
def test_scores_do_not_depend_on_how_the_coins_fell(scorer: Any) -> None:
    drawn = canaries(40)
    texts = memorizing(drawn, 0)
    turned = CanarySet(canary.replace(held_out=not canary.held_out) for canary in drawn)
    one, other = (standard_scores("it", scorer, texts, each, 3) for each in (drawn, turned))
    np.testing.assert_array_equal(one, other)
    assert np.unique(one).size > 20, "they say something"


def test_a_small_network_sees_what_was_memorized_and_leaves_no_trace() -> None:
    drawn = canaries(60)
    texts = memorizing(drawn, 0, share=1.0)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    scorers = {"lm": NeuralScorer(networks=1, steps=120, hidden_size=32)}
    found = audit_synthetic(texts, drawn, scorers=scorers)
    after = random.random(), np.random.random(), torch.rand(1).item()
    assert found.combined.auc > 0.9
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    assert after == (random.random(), np.random.random(), torch.rand(1).item())
    again = audit_synthetic(texts, drawn, scorers=scorers)
    assert [row.score for row in again.canaries] == [row.score for row in found.canaries]


def test_canaries_of_several_formats_are_compared_with_their_own() -> None:
    formats = [SecretFormat("my id is #########"), SecretFormat("his password: ????????", name="password")]
    drawn = CanarySet.draw(formats, repetitions=[1] * 50, seed=0, holdout=0.5, purpose="audit")
    texts = [*prose(np.random.default_rng(0), 50), *drawn.inserted.texts]

    def lazy(texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> np.ndarray[Any, Any]:
        """Finds passwords much better than ids, whoever was in."""
        said = "\n".join(texts)
        return np.array([(secret.text in said) + 100.0 * (secret.start == 14) for secret in asked])

    found = audit_synthetic(texts, drawn, scorers={"lazy": lazy}, edits=0)
    assert found.combined.auc == 1.0
    with pytest.warns(AuditWarning, match="it cannot show that epsilon is above"):
        few = audit_synthetic(texts, canaries(6, seed=1), **NGRAM)
    assert few.epsilon_lower == 0.0


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e308])
def test_scores_may_be_of_any_size(unit: float) -> None:
    drawn = canaries(40)
    texts = memorizing(drawn, 0, share=1.0)

    def said(texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> list[float]:
        return [unit if secret.text in texts else -unit for secret in asked]

    found = audit_synthetic(texts, drawn, scorers={"said": said}, edits=0)
    assert found.combined.auc == 1.0
    assert found.epsilon_lower > 1.0


def test_edits_are_told_as_they_were_counted() -> None:
    """Nine digits: at most two may differ, whatever was asked for."""
    drawn = canaries(40)
    texts = memorizing(drawn, 0)
    for edits, told in ((100, "up to 2 edits"), (2, "up to 2 edits"), (1, "up to 1 edit")):
        found = audit_synthetic(texts, drawn, scorers=["ngram"], edits=edits)
        assert found.near.name == f"canaries, {told}"
        assert f"with {told};" in found.summary()
        assert found.settings["edits"] == edits, "what was asked for"


@pytest.mark.parametrize(
    "format",
    [
        SecretFormat.regex(r"password: [a-z0-9]{6,8}"),
        SecretFormat(
            "{who} likes {what} and {what}", who=["Ann", "Bob", "Eve"], what=["tea", "ale", "rum", "gin", "pop"]
        ),
        SecretFormat("####"),
        SecretFormat.credit_card(),
    ],
    ids=["regex", "words", "no prompt", "checksum"],
)
def test_canaries_of_any_format(format: SecretFormat) -> None:
    drawn = canaries(60, format=format)
    texts = [f"{text}, he said" for text in drawn.inserted.texts]
    found = audit_synthetic(texts, drawn, scorers={"ngram": NgramScorer(), "lm": QUICK})
    assert found.verbatim.inserted.found == len(drawn.inserted)
    assert found.scorers[0].alone.auc > 0.85
    assert all(np.isfinite(row.score) for row in found.canaries)


def test_a_format_of_which_every_secret_is_a_canary() -> None:
    drawn = canaries(40, format=SecretFormat("so {what}", what=[f"{place}th" for place in range(40)]))
    texts = [*prose(np.random.default_rng(0), 20), *drawn.inserted.texts]
    assert audit_synthetic(texts, drawn, **NGRAM).combined.auc > 0.9


# --- counts ---------------------------------------------------------------------------------------------------


def test_copies_of_canaries_beside_what_chance_would_copy() -> None:
    drawn = canaries(40)
    inside, outside = drawn.inserted.texts, drawn.held_out.texts
    changed = inside[2][:-1] + str((int(inside[2][-1]) + 1) % 10)
    texts = [
        *prose(np.random.default_rng(0), 40),
        f"so {inside[0]}!",
        inside[0],
        f"and {inside[1]}",
        changed,
        outside[0],
    ]
    found = audit_synthetic(texts, drawn, scorers=["ngram"], edits=1)
    assert (found.verbatim.inserted.found, found.verbatim.held_out.found) == (2, 1)
    assert (found.near.inserted.found, found.near.held_out.found) == (3, 1)
    assert found.verbatim.inserted.of == len(inside)
    low, high = stats.binomtest(2, len(inside)).proportion_ci(0.95, method="exact")
    assert (found.verbatim.inserted.low, found.verbatim.inserted.high) == pytest.approx((low, high))
    # Three were found. Coins alone put two or three of three in with a probability of one half; of four, 5/16.
    assert found.verbatim.p_value == pytest.approx(0.5)
    assert found.near.p_value == pytest.approx(5 / 16)
    rows = {row.canary.text: (row.verbatim, row.near) for row in found.canaries}
    assert rows[inside[0]] == (2, 2)
    assert rows[inside[2]] == (0, 1)


# --- the result -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> SyntheticAudit:
    drawn = canaries(80)
    return audit_synthetic(
        memorizing(drawn, 0), drawn, scorers=["ngram"], train=prose(np.random.default_rng(1), 30), span=12
    )


def test_nothing_shows_a_canary_unless_it_is_asked_for(found: SyntheticAudit) -> None:
    secrets = [(row.canary.text, FORMAT) for row in found.canaries]
    written = [found.table(), found.summary(), found._repr_html_(), repr(found), json.dumps(found.to_dict())]
    assert not leaked("\n".join(written), secrets)
    assert len(leaked(json.dumps(found.to_dict(reveal=True)), secrets)) == len(secrets)
    assert found.canaries[0].canary.text in found.table(reveal=True)
    assert Mask().text(*secrets[0]) in found.table()


def test_the_result_is_json_and_says_what_it_assumes(found: SyntheticAudit) -> None:
    content = json.loads(json.dumps(plain(found.to_dict(), "audit"), allow_nan=False))
    assert content["epsilon_lower"] == found.epsilon_lower > 0.5
    assert content["leaks"] is True
    assert "fair coins" in content["assumption"]
    assert set(content["scorers"]) == {"ngram"}
    assert "epsilon of at least" in found.summary()
    assert "at least" in found._repr_html_()
    scores = [row.score for row in found.canaries]
    assert scores == sorted(scores, reverse=True)


def test_a_release_that_shows_nothing_is_not_called_private() -> None:
    drawn = canaries(40)
    found = audit_synthetic(blind(drawn, 0), drawn, scorers=["ngram"])
    assert not found.leaks
    assert "does not prove that nothing is given away" in found.summary()


# --- mistakes -------------------------------------------------------------------------------------------------


def strings(texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> list[str]:
    return ["high"] * len(asked)


def nonsense(texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> np.ndarray[Any, Any]:
    return np.full(len(asked), np.nan)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"texts": "one text"}, ArgumentError, "texts is 'one text'; expected a list of texts"),
        ({"texts": []}, DataError, "texts has 0 texts without a visible character"),
        ({"texts": ["", ""]}, DataError, "texts has 2 texts without a visible character"),
        ({"texts": [" \n"]}, DataError, "texts has 1 text without a visible character"),
        ({"texts": ["a", 3]}, ArgumentError, r"texts\[1\] is 3, of type int"),
        ({"texts": ["too little"]}, DataError, "texts has 10 characters in 1 text; expected at least 180"),
        ({"canaries": ["my id is 123456789"]}, ArgumentError, "canaries is "),
        ({"canaries": CanarySet.draw(FORMAT, repetitions=[1] * 9)}, ArgumentError, "none drawn with a holdout"),
        ({"canaries": CanarySet.draw(FORMAT, repetitions=[1] * 9, holdout=0.2)}, ArgumentError, "probability of 0.2"),
        ({"scorers": "ngram"}, ArgumentError, "scorers is 'ngram'; expected a list of names"),
        ({"scorers": []}, ArgumentError, "scorers is "),
        ({"scorers": ["ngrams"]}, ArgumentError, "Did you mean 'ngram'"),
        ({"scorers": {"mine": nonsense}}, ScoreError, "scorer 'mine' has given"),
        ({"scorers": {"mine": strings}}, ScoreError, "scorer 'mine' has given what is no number .*; expected a finite"),
        (
            {"scorers": {"mine": lambda texts, asked: []}},
            ArgumentError,
            r"scorers\['mine'\] is .*; expected .* seed",
        ),
        ({"scorers": {"mine": NgramScorer}}, ArgumentError, r"scorers\['mine'\] is .*; expected a function"),
        ({"scorers": {"mine": 3}}, ArgumentError, r"scorers\['mine'\] is 3, of type int; expected a function"),
        ({"delta": 1.0}, ArgumentError, "delta is 1.0"),
        ({"confidence": 95}, ArgumentError, "confidence is 95"),
        ({"edits": -1}, ArgumentError, "edits is -1"),
        ({"span": 1}, ArgumentError, "span is 1"),
        ({"seed": -1}, ArgumentError, "seed is -1"),
        ({"train": []}, DataError, "train has 0 texts"),
        ({"held_out": ["a"]}, ArgumentError, "held_out is given without train; expected both"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    drawn = canaries(40)
    given: dict[str, Any] = {"texts": blind(drawn, 0), "canaries": drawn, "scorers": ["ngram"], **changes}
    with pytest.raises(error, match=message):
        audit_synthetic(**given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NgramScorer(1), "order is 1"),
        (lambda: NeuralScorer(networks=0), "networks is 0"),
        (lambda: NeuralScorer(lr=0.0), "lr is 0.0"),
    ],
)
def test_scorers_refuse_what_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
