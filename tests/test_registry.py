"""Registries: one file an entry, found by name, in an order that does not depend on who was imported first."""

from __future__ import annotations

from itertools import permutations

import pytest

from lightning_exposure._registry import Registry
from lightning_exposure.errors import ArgumentError


def double(x: int) -> int:
    return 2 * x


def test_an_entry_is_found_by_its_name_and_returned_unchanged() -> None:
    registry = Registry("operation")
    assert registry.register("double")(double) is double
    assert registry.get("double") is double
    assert "double" in registry
    assert "half" not in registry
    assert len(registry) == 1


def test_a_class_registers_itself_as_a_decorator() -> None:
    registry: Registry[type] = Registry("shape")

    @registry.register("circle")
    class Circle:
        pass

    assert registry.get("circle") is Circle


@pytest.mark.parametrize("order", list(permutations(["first", "alike", "alike too", "last"])))
def test_the_order_is_that_of_the_priorities_whoever_comes_first(order: tuple[str, ...]) -> None:
    priorities = {"first": 7, "alike": 0, "alike too": 0, "last": -1}
    registry: Registry[str] = Registry("entry")
    for name in order:
        registry.register(name, priority=priorities[name])(name.upper())
    assert registry.names() == ("first", "alike", "alike too", "last")
    assert list(registry) == ["FIRST", "ALIKE", "ALIKE TOO", "LAST"]


def test_an_unknown_name_is_told_the_choices() -> None:
    registry: Registry[int] = Registry("method")
    registry.register("exact", priority=1)(1)
    registry.register("sampling")(2)
    with pytest.raises(
        ArgumentError, match=r"method is 'exakt'; expected one of 'exact', 'sampling'\. Did you mean 'exact'\?"
    ):
        registry.get("exakt")
    with pytest.raises(ArgumentError, match=r"how is 'exakt'; expected one of 'exact', 'sampling'\."):
        registry.get("exakt", argument="how")
    with pytest.raises(ArgumentError, match=r"method is None; expected one of"):
        registry.get(None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"method is \['exact'\]; expected one of"):
        registry.get(["exact"])  # type: ignore[arg-type]


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(ArgumentError, match="none is registered"):
        Registry("attack").get("beam")


def test_a_name_is_taken_once_and_can_be_given_back() -> None:
    registry: Registry[int] = Registry("attack")
    registry.register("beam")(1)
    with pytest.raises(ArgumentError, match=r"attack is 'beam'; expected a new name, because 1 is registered"):
        registry.register("beam")(2)
    assert registry.unregister("beam") == 1
    assert registry.names() == ()
    registry.register("beam")(2)
    assert registry.get("beam") == 2
    with pytest.raises(ArgumentError, match="attack is 'half'; expected one of 'beam'"):
        registry.unregister("half")


def test_going_through_the_entries_may_change_them() -> None:
    registry: Registry[int] = Registry("number")
    for number in range(3):
        registry.register(str(number))(number)
    for number in registry:
        registry.unregister(str(number))
    assert len(registry) == 0
