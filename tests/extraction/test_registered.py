"""Attacks are registered: one of the user's own is used as ours are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest

from lightning_exposure import SecretFormat, SecretTree, extract
from lightning_exposure.callbacks import ExtractionCallback
from lightning_exposure.cli.commands.extract import make_parser
from lightning_exposure.errors import ArgumentError
from lightning_exposure.extraction import ATTACKS, AttackName, Found, attack_settings
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import Progress, SearchResult, score
from tests.cases import CHARACTERS
from tests.toys import Recurrent, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ##")


@pytest.fixture
def birthdays() -> Iterator[None]:
    """An attack that tries a few texts it knows by heart."""

    @ATTACKS.register("birthdays", priority=-1)
    def guess(tree: SecretTree, top_k: int, *, years: int = 3, memory: int, progress: Progress | None) -> Found:
        texts = [tree.format.render(number) for number in range(years)]
        costs = score(tree, texts, memory=memory).costs
        order = np.argsort(costs)[:top_k]
        return SearchResult(tree.paths(texts)[order], costs[order], years, "width", 0.0), None

    yield
    ATTACKS.unregister("birthdays")


def test_the_names_for_type_checkers_are_those_of_the_registry() -> None:
    assert ATTACKS.names() == get_args(AttackName)


@pytest.mark.usefixtures("birthdays")
def test_an_attack_of_ones_own_goes_through_extract() -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 0), PIN, CHARS)
    found = extract(tree, "birthdays", top_k=2, years=5)
    costs = score(tree, [PIN.render(i) for i in range(5)]).costs
    assert [candidate.bits for candidate in found.candidates] == sorted(costs.tolist())[:2]
    assert (found.algorithm, found.optimal, found.settings["years"]) == ("birthdays", False, 5)
    with pytest.raises(
        ArgumentError, match=r"months is 3; expected a setting of 'birthdays', which has years\. Leave it out"
    ):
        extract(tree, "birthdays", months=3)


@pytest.mark.usefixtures("birthdays")
def test_callback_command_line_and_error_message_know_it() -> None:
    ExtractionCallback(CanarySet.draw(PIN, repetitions=[1], seed=0), CHARS, algorithm="birthdays", years=2)
    help = make_parser().format_help()
    assert "birthdays" in help
    assert "--years N" in help
    assert "(default: 3)" in help
    with pytest.raises(ArgumentError, match=r"expected one of .*'sampling', 'birthdays'"):
        ATTACKS.get("guess")


def test_a_callback_refuses_what_is_not_registered() -> None:
    with pytest.raises(ArgumentError, match="algorithm is 'birthdays'; expected one of"):
        ExtractionCallback(CanarySet.draw(PIN, repetitions=[1], seed=0), CHARS, algorithm="birthdays")


def test_the_settings_are_those_of_the_functions() -> None:
    """Names, defaults and types from the signature, words from the docstring."""
    budget, _, _, stop = attack_settings("shortest_path").values()
    assert (budget.kind, budget.default, budget.optional) == (int, 1_000_000, True)
    assert (budget.parse("50", "--budget"), budget.parse("none", "--budget")) == (50, None)
    assert stop.choices == ("proof", "paper")
    assert all(setting.help for attack in ATTACKS.names() for setting in attack_settings(attack).values())
    with pytest.raises(ArgumentError, match="--stop is 'soon'; expected one of 'proof', 'paper'"):
        stop.parse("soon", "--stop")


def test_settings_of_any_type_can_be_written_as_text() -> None:
    @ATTACKS.register("odd")
    def odd(tree, top_k, *, years=(1990, 2000), share=0.5, end: Unknown | None = None, memory, progress):  # type: ignore  # noqa: F821
        """Not annotated, or with names that only a type checker knows."""

    try:
        years, share, end = attack_settings("odd").values()
    finally:
        ATTACKS.unregister("odd")
    assert (years.parse("[1991, 1992]", "--years"), share.parse("0.25", "--share")) == ([1991, 1992], 0.25)
    assert (end.parse("none", "--end"), end.parse('"soon"', "--end")) == (None, "soon")
    with pytest.raises(ArgumentError, match="--years is '1991-'; expected a value in JSON"):
        years.parse("1991-", "--years")
    with pytest.raises(ArgumentError, match="--share is 'half'; expected a number"):
        share.parse("half", "--share")
