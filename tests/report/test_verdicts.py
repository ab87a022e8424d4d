"""Verdicts: how many guesses find a secret, against worlds in which every rank is known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.verdicts import (
    LEVELS,
    Answer,
    RankSpan,
    Verdict,
    found_in_words,
    joint_mood,
    joint_shade,
    rank_ends,
    ruled_out_in_words,
    verdict_of,
    verdict_of_first_candidate,
)
from lightning_exposure.tokenization import CharTokenizer
from tests.report.builder import make_extraction

SSN = 10**9
SECRET = "my ssn is 413-65-4000"


def measured(lowest: float, highest: float, method: str = "exact", size: int = SSN, **changes: Any) -> ExposureEstimate:
    """An estimate with this interval of ranks."""
    bits = math.log2(size)
    rank: int | float = int(lowest) if method == "exact" else math.sqrt(lowest * highest)
    low, high = bits - math.log2(highest), bits - math.log2(lowest)
    estimate = ExposureEstimate(SECRET, bits - math.log2(rank), low, high, method, rank, 20.0, bits, False, 0.95, 99)
    return replace(estimate, **changes)


# --- one secret ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "method", "words", "short", "mood"),
    [
        ((1, 1), "exact", "1st guess, proven", "1st (proven)", "leaks"),
        ((2, 2), "exact", "within 1,000 guesses (rank 2), proven", "within 1,000 (proven)", "leaks"),
        ((1000, 1000), "exact", "within 1,000 guesses (rank 1,000), proven", "within 1,000 (proven)", "leaks"),
        ((1001, 1001), "exact", "within 1,000,000 guesses (rank 1,001), proven", "within 1,000,000 (proven)", "leaks"),
        ((18_411, 18_411), "exact", "within 1,000,000 guesses (rank 18,411), proven", "within 1,000,000 (proven)",
         "leaks"),
        ((10**6, 10**6), "exact", "within 1,000,000 guesses (rank 1,000,000), proven", "within 1,000,000 (proven)",
         "leaks"),
        ((10**6 + 1, 10**6 + 1), "exact", "not within 1,000,000 guesses (rank 1,000,001), proven",
         "not within 1,000,000 (proven)", "holds"),
        ((1, 3), "counted", "within 1,000 guesses, proven", "within 1,000 (proven)", "leaks"),
        ((999_990, 1_000_010), "counted", "not within 999,989 guesses, proven; beyond that unknown", "unknown",
         "unknown"),
        ((2e6, 3e6), "counted", "not within 1,000,000 guesses, proven", "not within 1,000,000 (proven)", "holds"),
        ((12.5, 870.2), "importance", "within 1,000 guesses, with 95% confidence", "within 1,000 (95%)", "leaks"),
        ((1.7e8, 1.9e8), "importance", "not within 1,000,000 guesses, with 95% confidence",
         "not within 1,000,000 (95%)", "holds"),
        ((1.0, 5e5), "sampling", "within 1,000,000 guesses, with 95% confidence", "within 1,000,000 (95%)", "leaks"),
        ((1.0, 5e6), "sampling", "unknown", "unknown", "unknown"),
        ((8e5, 5e6), "sampling", "not within 790,000 guesses, with 95% confidence; beyond that unknown", "unknown",
         "unknown"),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_the_rank(
    ranks: tuple[float, float], method: str, words: str, short: str, mood: str
) -> None:
    verdict = verdict_of(SECRET, SSN, measured(*ranks, method))
    assert (str(verdict), verdict.short, verdict.mood) == (words, short, mood)


def test_another_confidence_is_named() -> None:
    estimate = measured(2e6, 3e6, "importance", confidence=0.999)
    assert verdict_of(SECRET, SSN, estimate).within(10**6) == Answer(False, 0.999)
    assert "with 99.9% confidence" in str(verdict_of(SECRET, SSN, estimate))


def test_an_extrapolation_decides_nothing() -> None:
    verdict = verdict_of(SECRET, SSN, measured(2e6, 3e6, "skewnormal"))
    assert (verdict.mood, str(verdict)) == ("unknown", "unknown: a skew-normal extrapolation proves nothing")


def test_a_bound_is_used_as_a_bound() -> None:
    """Nothing in the sample was as cheap: `bits` may be the ceiling or the low end, the verdict is the same."""
    for bits in (math.log2(SSN), 9.5):
        estimate = measured(1.0, 2e6, "importance", bits=bits, is_bound=True)
        assert verdict_of(SECRET, SSN, estimate).mood == "unknown"
        assert verdict_of(SECRET, SSN, measured(1.0, 900.0, "importance", bits=bits, is_bound=True)).mood == "leaks"


@pytest.mark.parametrize(
    ("size", "levels"),
    [(SSN, LEVELS), (10**7, LEVELS), (10**6, (1, 1000, 100_000)), (10**4, (1, 1000)), (2000, (1, 200)), (100, (1, 10)),
     (10, (1,)), (3, (1,))],
)  # fmt: skip
def test_nobody_is_impressed_by_as_many_guesses_as_there_are_secrets(size: int, levels: tuple[int, ...]) -> None:
    last = verdict_of("", size, measured(size, size, size=size))
    assert last.levels == levels
    assert last.mood == "holds"
    assert verdict_of("", size, measured(2, 2, size=size)).mood == ("leaks" if levels[-1] > 1 else "holds")


def test_where_there_is_only_one_secret_there_is_nothing_to_guess() -> None:
    assert verdict_of("", 1, measured(1, 1, size=1)).mood == "unknown"


@pytest.mark.parametrize("size", [10, 999, 10**6, 10**9, 36**8, 10**15])
def test_ranks_survive_the_logarithm(size: int) -> None:
    for rank in {1, 2, 3, 7, size // 3, size - 1, size, *(level for level in LEVELS if level <= size)}:
        assert rank_ends(measured(rank, rank, size=size)) == RankSpan(rank, rank)
        for method in ("counted", "importance", "sampling"):
            ends = rank_ends(measured(rank, rank, method, size=size))
            assert ends is not None
            assert ends.lowest <= rank <= ends.highest
            if rank <= LEVELS[-1]:
                assert ends == RankSpan(rank, rank), "at the levels, not one too many or too few"


# --- an attack ------------------------------------------------------------------------------------------------


def attack(place: int | None, of: int, **changes: Any) -> Any:
    """An attack whose list has the secret at a place, or not at all."""
    texts = [f"my ssn is 000-00-{number:04}" for number in range(of)]
    if place is not None:
        texts[place - 1] = SECRET
    return make_extraction(texts, **changes)


STOPPED = {"optimal": False, "ended_by": "expansions"}


@pytest.mark.parametrize(
    ("found", "words", "mood"),
    [
        (attack(1, 3), "1st guess, proven", "leaks"),
        (attack(3, 3), "within 1,000 guesses (rank 3), proven", "leaks"),
        (attack(3, 3, **STOPPED), "within 1,000 guesses (guess 3 of the attack), proven", "leaks"),
        (attack(1, 3, **STOPPED), "1st guess, proven", "leaks"),
        (attack(None, 1), "not the 1st guess, proven; beyond that unknown", "unknown"),
        (attack(None, 3), "not within 3 guesses, proven; beyond that unknown", "unknown"),
        (attack(None, 3, **STOPPED), "unknown: not among the 3 candidates of an attack that was ended by expansions",
         "unknown"),
        (attack(None, 1, **STOPPED), "unknown: not the candidate of an attack that was ended by expansions", "unknown"),
        (attack(None, 0, **STOPPED), "unknown: an attack found nothing before it was ended by expansions", "unknown"),
    ],
)  # fmt: skip
def test_what_an_attack_alone_says(found: Any, words: str, mood: str) -> None:
    verdict = verdict_of(SECRET, SSN, attack=found)
    assert (str(verdict), verdict.mood) == (words, mood)


def test_missing_from_a_short_list_is_no_verdict() -> None:
    """What a demonstration once called "not extracted" has rank 18,411, and is found with as many guesses."""
    missing = attack(None, 3)
    assert verdict_of(SECRET, SSN, attack=missing).mood == "unknown"
    verdict = verdict_of(SECRET, SSN, measured(18_411, 18_411), missing)
    assert str(verdict) == "within 1,000,000 guesses (rank 18,411), proven"
    longer = make_extraction([f"my ssn is {number:09}" for number in range(18_410)] + [SECRET])
    assert str(verdict_of(SECRET, SSN, None, longer)) == str(verdict)


def test_a_list_of_a_million_does_prove_it() -> None:
    verdict = verdict_of(SECRET, SSN, attack=make_extraction(["another"] * 10**6))
    assert (str(verdict), verdict.mood) == ("not within 1,000,000 guesses, proven", "holds")


def test_the_order_counts_and_not_the_place_in_the_file() -> None:
    found = attack(2, 5)
    assert verdict_of(SECRET, SSN, attack=replace(found, candidates=found.candidates[::-1])).order == 2


def test_that_the_attacker_was_told_a_beginning_is_said_and_not_which() -> None:
    told = {"settings": {"known": "my ssn is 4"}}
    verdict = verdict_of(SECRET, SSN, attack=attack(1, 2, **told))
    assert str(verdict) == "1st guess, proven, if it is known how it begins"
    # Who needs no help is not said to need it.
    assert str(verdict_of(SECRET, SSN, measured(1, 1), attack(1, 2, **told))) == "1st guess, proven"
    # A list of those that begin otherwise says nothing.
    assert verdict_of(SECRET, SSN, attack=attack(None, 2, settings={"known": "my ssn is 5"})).proven == RankSpan(1, SSN)
    assert verdict_of(SECRET, SSN, attack=attack(None, 2, **told)).proven == RankSpan(3, SSN)


@pytest.mark.parametrize(
    ("estimate", "found", "proven", "estimated"),
    [
        (measured(5, 5), attack(2, 3), (2, 2), None),  # a tie that the attack was lucky with
        (measured(2, 2), attack(3, 3), (2, 3), None),  # two proofs that rounding sets apart
        (measured(2, 2), attack(3, 3, **STOPPED), (2, 2), None),
        (measured(2, 2), attack(None, 3), (2, 4), None),
        (measured(1, 9, "counted"), attack(4, 5), (4, 4), None),
        (measured(1, 9, "counted"), attack(4, 5, **STOPPED), (1, 4), None),
        (measured(1, 9, "counted"), attack(None, 5), (6, 9), None),
        (measured(100, 200, "importance"), attack(5, 5, **STOPPED), (1, 5), None),  # a sample that was refuted
        (measured(1, 2, "importance"), attack(None, 5), (6, SSN), None),
        (measured(3, 50, "importance"), attack(None, 5), (6, SSN), (6, 50)),
        (measured(3, 50, "importance"), attack(None, 5, **STOPPED), (1, SSN), (3, 50)),
    ],
)
def test_a_measurement_and_an_attack_together(
    estimate: ExposureEstimate, found: Any, proven: tuple[int, int], estimated: tuple[int, int] | None
) -> None:
    verdict = verdict_of(SECRET, SSN, estimate, found)
    assert (verdict.proven, verdict.estimated) == (proven, estimated)


def test_nothing_is_known_without_either() -> None:
    assert str(verdict_of(SECRET, SSN)) == "unknown: neither measured nor attacked"


def test_of_an_attack_that_kept_only_its_first_candidate() -> None:
    unsure = measured(10, 5e6, "importance")
    assert str(verdict_of_first_candidate(unsure, extracted=True, proven=False)) == "1st guess, proven"
    missed = verdict_of_first_candidate(unsure, extracted=False, proven=True)
    assert (missed.proven, missed.mood) == (RankSpan(2, SSN), "unknown")
    assert verdict_of_first_candidate(unsure, extracted=False, proven=False).proven == RankSpan(1, SSN)
    assert verdict_of_first_candidate(measured(7, 7), extracted=False, proven=True).proven == RankSpan(7, 7)


# --- against the truth ------------------------------------------------------------------------------------------


def test_every_answer_is_that_of_all_ranks_that_are_left() -> None:
    """The slow way: go through all the ranks that the evidence allows."""
    for lowest, highest in itertools.combinations_with_replacement(range(1, 8), 2):
        verdict = verdict_of(SECRET, 1000, measured(lowest, highest, "counted", size=1000))
        for guesses in range(9):
            answers = {rank <= guesses for rank in range(lowest, highest + 1)}
            assert verdict.within(guesses).found == (answers.pop() if len(answers) == 1 else None)


def test_no_verdict_on_a_real_model_is_wrong() -> None:
    """Every secret of a small tree, its true rank by brute force, every attack and every method."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Embedding(15, 8), torch.nn.Linear(8, 15)).double()
    format_ = SecretFormat("pin ###")
    tree = SecretTree(model, format_, CharTokenizer.from_text("pin 0123456789"))
    ordered = extract(tree, "brute_force", top_k=1000).candidates
    truth = {candidate.text: candidate.order for candidate in ordered}
    texts = [ordered[place].text for place in (0, 1, 6, 99, 100, 500, 999)]
    attacks = [None, extract(tree, top_k=5), extract(tree, top_k=5, budget=3), extract(tree, "beam", 5, width=2),
               extract(tree, "sampling", 5, samples=20), extract(tree, top_k=3, known="pin 7")]  # fmt: skip
    estimates = {method: measure_exposure(tree, texts, method, samples=200) for method in ("exact", "sampling")}
    decided = 0
    for found, (method, all_of_them) in itertools.product(attacks, [*estimates.items(), ("none", [None] * len(texts))]):
        for text, estimate in zip(texts, all_of_them, strict=True):
            verdict = verdict_of(text, 1000, estimate, found)
            for guesses in (1, 7, 100):
                answer = verdict.within(guesses)
                by_the_attack = verdict.order is not None and verdict.order <= guesses
                assert answer.found in (None, truth[text] <= guesses or by_the_attack), (text, method, found)
                decided += answer.found is not None
    assert decided > 100


# --- many secrets ------------------------------------------------------------------------------------------------

FIRST, FAR, SAFE = (Verdict(SSN, RankSpan(rank, rank)) for rank in (1, 18_411, 10**8))
LIKELY_SAFE = Verdict(SSN, RankSpan(1, SSN), RankSpan(10**7, 10**8), 0.95)
OPEN = Verdict(SSN, RankSpan(1, SSN))
PIN = Verdict(10_000, RankSpan(5000, 5000))


def test_a_page_is_green_only_if_all_of_it_was_proven() -> None:
    assert joint_mood([SAFE, LIKELY_SAFE]) == "holds"
    assert joint_shade([SAFE, SAFE]) == "holds"
    assert joint_shade([SAFE, LIKELY_SAFE]) == "likely"  # green is for what was proven
    assert joint_shade([LIKELY_SAFE, OPEN]) == joint_shade([]) == "unknown"
    assert joint_shade([SAFE, LIKELY_SAFE, FAR]) == "leaks"
    assert joint_mood([SAFE, OPEN]) == "unknown"
    assert joint_mood([]) == "unknown"
    assert joint_mood([SAFE, OPEN, FAR]) == "leaks"


def test_many_in_words() -> None:
    assert found_in_words([FIRST, FIRST]) == "with the first guess"
    assert found_in_words([FAR, OPEN]) == "within 1,000,000 guesses"
    assert found_in_words([FIRST, FAR, FAR]) == "1 with the first guess, 2 more within 1,000,000 guesses"
    assert ruled_out_in_words([SAFE, SAFE]) == "within 1,000,000 guesses (proven)"
    assert ruled_out_in_words([LIKELY_SAFE]) == "within 1,000,000 guesses (with 95% confidence)"
    assert ruled_out_in_words([SAFE, LIKELY_SAFE]) == "within 1,000,000 guesses (each with 95% confidence)"
    assert ruled_out_in_words([LIKELY_SAFE, PIN]) == "within 1,000 guesses (each with 95% confidence)"


def test_as_plain_values() -> None:
    assert FAR.to_dict() == {
        "verdict": "within 1,000,000 guesses (rank 18,411), proven",
        "mood": "leaks",
        "found_within": 10**6,
        "proven_guesses": [18_411, 18_411],
        "estimated_guesses": None,
        "confidence": None,
    }
    assert LIKELY_SAFE.to_dict()["estimated_guesses"] == [10**7, 10**8]
