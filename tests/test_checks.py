"""The argument checks: what passes, what is refused, and that every refusal reads the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightning_exposure
from lightning_exposure._checks import (
    check_confidence,
    check_delta,
    choice,
    flag,
    instance,
    number,
    probability,
    refusal,
    shown,
    whole_number,
)
from lightning_exposure.errors import ArgumentError, FormatError

MESSAGE = re.compile(
    r"(?P<name>[\w\[\].]+) is (?P<given>.+); expected (?P<expected>[^.].*?)\.( [A-Z].*[.?])?", re.DOTALL
)


def message(check: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        check(*arguments, **options)
    assert MESSAGE.fullmatch(str(caught.value)), str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_every_kind_are_whole_numbers(value: Any) -> None:
    checked = whole_number("n", value, at_least=3)
    assert type(checked) is int
    assert checked == 3


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None, [3], np.float32(3)])
def test_what_is_only_nearly_an_integer_is_no_whole_number(value: Any) -> None:
    assert "expected an integer." in message(whole_number, "n", value)


def test_a_whole_number_below_the_least_is_refused_with_its_name() -> None:
    assert message(whole_number, "every_n_epochs", -1, at_least=0, remedy="With 0, only the end counts.") == (
        "every_n_epochs is -1; expected an integer of at least 0. With 0, only the end counts."
    )


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1), Fraction(1)])
def test_numbers_of_every_kind_become_floats(value: Any) -> None:
    checked = number("lr", value, above=0, at_most=1)
    assert type(checked) is float
    assert checked == 1.0


@pytest.mark.parametrize("value", [True, "1", None, 1j, math.inf, -math.inf, math.nan, [1.0]])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    assert message(number, "lr", value).endswith("expected a finite number.")


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "told"),
    [
        ({"above": 0}, 1e-300, 0, "above 0"),
        ({"at_least": 0}, 0, -1e-300, "of at least 0"),
        ({"below": 1}, 0.999, 1, "below 1"),
        ({"at_most": 1}, 1, 1.001, "of at most 1"),
        ({"above": 0, "below": 0.5}, 0.25, 0.5, "above 0 and below 0.5"),
        ({"at_least": -2, "at_most": 2}, -2, -2.5, "of at least -2 and of at most 2"),
    ],
)
def test_limits_are_kept_and_told(limits: dict[str, float], inside: float, outside: float, told: str) -> None:
    assert number("x", inside, **limits) == inside
    assert message(number, "x", outside, **limits) == f"x is {outside!r}; expected a number {told}."


def test_probabilities_and_shares_include_both_ends() -> None:
    assert [probability("share", value) for value in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    for wrong in (-0.1, 1.1, math.nan, True, "0.5"):
        message(probability, "share", wrong)


def test_a_confidence_lies_strictly_between_0_and_1() -> None:
    assert check_confidence(0.95) == 0.95
    for wrong in (0, 1, 95, "0.95"):
        assert "For example 0.95." in message(check_confidence, wrong)


def test_delta_is_one_rule_and_0_is_only_for_pure_privacy() -> None:
    for accepted in (1e-12, 1e-6, 0.5):
        assert check_delta(accepted) == check_delta(accepted, pure=True) == accepted
    assert check_delta(0, pure=True) == 0.0
    assert "delta is 0; expected a number above 0 and below 1." in message(check_delta, 0)
    for wrong in (-1e-6, 1.0, 1.5, True, "1e-6", math.nan, None):
        for pure in (False, True):
            assert "one over the number of records" in message(check_delta, wrong, pure=pure)


def test_a_choice_is_returned_or_refused_with_the_whole_list() -> None:
    assert choice("scheduler", None, (None, "step")) is None
    assert message(choice, "method", "exakt", ["exact", "importance"]) == (
        "method is 'exakt'; expected one of 'exact', 'importance'. Did you mean 'exact'?"
    )
    assert message(choice, "method", 3, ["exact"], remedy="Leave it out.") == (
        "method is 3; expected one of 'exact'. Leave it out."
    )


@pytest.mark.parametrize("value", [True, 1.0, [1], np.array([1, 2]), {}])
def test_what_only_compares_equal_is_not_the_choice(value: Any) -> None:
    message(choice, "order", value, [1, 2])


def test_numpys_strings_are_the_choices_they_spell() -> None:
    assert type(choice("method", np.str_("exact"), ["exact"])) is str


def test_an_enumeration_is_a_choice_too() -> None:
    class Colour(Enum):
        RED = "red"

    assert choice("colour", Colour.RED, Colour) is Colour.RED


def test_flags_are_true_or_false_and_nothing_else() -> None:
    assert flag("held_out", True) is True
    for wrong in (1, 0, None, "yes"):
        assert "expected True or False." in message(flag, "held_out", wrong)


def test_an_instance_is_returned_as_its_class() -> None:
    assert instance("prompt", "my pin is ", str, "a string") == "my pin is "
    assert message(instance, "prompt", 3, str, "a string", "Convert it with str().") == (
        "prompt is 3, of type int; expected a string. Convert it with str()."
    )


def test_a_refusal_can_be_of_any_of_our_classes() -> None:
    error = refusal("pattern", 3, "a string", "Write 'my pin is ####'.", error=FormatError)
    assert type(error) is FormatError
    assert str(error) == "pattern is 3; expected a string. Write 'my pin is ####'."


def test_long_values_are_cut_short_in_messages() -> None:
    assert shown("pin") == "'pin'"
    assert len(shown(list(range(1000)))) == 200
    assert len(message(number, "x", "9" * 10_000)) < 300


# ---- everywhere -------------------------------------------------------------------------------------------------

OLD_STYLE = re.compile(
    r'f"[\w.() ]*=\{[^{}]*\}(:| is given)'  # f"name={value!r}: expected ..."
    r'|"\w+=\w+: '
    r'|"\w+: expected '
    r'|expected [^"]*, got '
)


@pytest.mark.parametrize(
    "line",
    [
        'raise ArgumentError(f"budget={budget!r}: expected at least 1.")',
        'raise ArgumentError(f"method={method!r} is given; expected one of these.")',
        'f"text={text!r}: it is too long; expected a shorter one."',
        'raise ScoreError("scores: expected a list")',
        'f"drop_last=True: a canary would be dropped."',
        'f"{name} expected a list of numbers, got {scores!r}."',
    ],
)
def test_the_old_styles_are_recognised(line: str) -> None:
    assert OLD_STYLE.search(line)


def test_every_message_of_the_package_has_the_one_style() -> None:
    """ "name is given; expected ... . Remedy.": no `name=value: expected`, no `expected ..., got`."""
    root = Path(lightning_exposure.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if OLD_STYLE.search(line) and ">>>" not in line
    ]
    assert found == []
