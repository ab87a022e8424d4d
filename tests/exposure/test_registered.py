"""Methods are registered: one of the user's own is used as ours are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from lightning_exposure import ExposureCallback, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.cli.commands.measure import make_parser
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import METHODS, ExposureEstimate, MethodName, TreeCase
from lightning_exposure.exposure.tied import TIED_METHODS, TiedMethodName
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import CharTokenizer
from tests.cases import CHARACTERS
from tests.toys import Recurrent, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ##")


@pytest.fixture
def bluntly() -> Iterator[None]:
    """A method that counts those that were given, and knows nothing of the others."""

    @METHODS.register("blunt", priority=-1)
    def measure_bluntly(case: TreeCase) -> list[ExposureEstimate]:
        ranks = [int((case.costs <= cost).sum()) for cost in case.costs]
        return [case.estimate(i, "blunt", rank, (rank, case.size), 0, "a glance") for i, rank in enumerate(ranks)]

    yield
    METHODS.unregister("blunt")


def test_the_names_for_type_checkers_are_those_of_the_registry() -> None:
    assert METHODS.names() == get_args(MethodName)
    assert tuple(TIED_METHODS) == get_args(TiedMethodName)


@pytest.mark.usefixtures("bluntly")
def test_a_method_of_ones_own_goes_through_measure_exposure() -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 0), PIN, CHARS)
    secrets = [PIN.render(i) for i in (3, 1, 4)]
    estimates = measure_exposure(tree, secrets, method="blunt")
    assert sorted(estimate.rank for estimate in estimates) == [1, 2, 3]
    assert {(estimate.method, estimate.rests_on) for estimate in estimates} == {("blunt", "a glance")}


@pytest.mark.usefixtures("bluntly")
def test_a_method_that_counts_is_not_taken_for_one_that_weighs() -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 0), PIN, CHARS)
    with pytest.raises(ArgumentError, match=r"method is 'blunt', which counts secrets, and prior is given"):
        measure_exposure(tree, [PIN.render(3)], method="blunt", prior=tree)


@pytest.mark.usefixtures("bluntly")
def test_callback_command_line_and_error_message_know_it() -> None:
    ExposureCallback(CanarySet.draw(PIN, repetitions=[1], seed=0), CHARS, method="blunt")
    assert "blunt" in make_parser().format_help()
    with pytest.raises(ArgumentError, match=r"expected one of .*'skewnormal', 'blunt'"):
        METHODS.get("guess")
