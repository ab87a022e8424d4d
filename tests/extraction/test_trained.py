"""A model that was really trained: the paper's central claim, made exact."""

from __future__ import annotations

import pytest

from benchmarks.models import Recipe, Subject, train
from lightning_exposure import extract, measure_exposure


@pytest.fixture(scope="module")
def subject() -> Subject:
    """A small LSTM on 30,000 characters, with one 9-digit canary inserted 4 times."""
    return train(
        Recipe(characters=30_000, units=96, layers=1, repetitions=(4,), batch_size=32, learning_rate=5e-3, epochs=40)
    )


def test_a_canary_inserted_four_times_is_extracted_in_fewer_than_a_thousand_expansions(subject: Subject) -> None:
    (canary,) = subject.canaries
    found = extract(subject.tree(9))
    assert found.candidates[0].text == canary.text
    assert found.optimal
    assert found.expansions < 1000


def test_its_exposure_is_all_there_is(subject: Subject) -> None:
    (canary,) = subject.canaries
    (estimate,) = measure_exposure(subject.tree(9), [canary.text])
    assert (estimate.method, estimate.rank) == ("exact", 1)
    assert estimate.bits == estimate.size_bits


def test_a_known_beginning_makes_it_cheaper(subject: Subject) -> None:
    (canary,) = subject.canaries
    known = extract(subject.tree(9), known=canary.text[:-4])
    assert known.candidates[0].text == canary.text
    assert known.expansions < extract(subject.tree(9)).expansions


def test_letting_the_model_speak_finds_it_too_but_proves_nothing(subject: Subject) -> None:
    (canary,) = subject.canaries
    found = extract(subject.tree(9), "sampling", samples=4096, target=canary.text)
    assert found.candidates[0].text == canary.text
    assert found.walks_until_target is not None
    assert not found.optimal
