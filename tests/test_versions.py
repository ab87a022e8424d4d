"""The versions that are declared, those that are tested, and those that are installed belong together."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r'^ {4}"([a-z][^"]*)",$', re.MULTILINE)
OURS = ("lightning", "opacus", "torchmetrics", "transformers", "tokenizers", "peft")
"""Libraries whose lowest versions are tested, too."""


def declared() -> dict[str, Requirement]:
    """What users need, by name; not the tools of those who develop this library."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    users = text[text.index("dependencies = [") : text.index("# Enough for everything that .ci/run runs")]
    found = [Requirement(line) for line in LINE.findall(users)]
    return {requirement.name: requirement for requirement in found if requirement.name != "lightning-exposure"}


def lowest() -> dict[str, Version]:
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name: Version(str(pin.specifier).removeprefix("==")) for pin in pins}


@pytest.mark.parametrize("name", declared())
def test_every_version_has_an_upper_bound(name: str) -> None:
    assert any(bound.operator == "<" for bound in declared()[name].specifier)


@pytest.mark.parametrize("name", declared())
def test_what_is_installed_is_within_the_bounds(name: str) -> None:
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert installed in declared()[name].specifier


@pytest.mark.parametrize("name", OURS)
def test_the_lowest_version_that_is_declared_is_the_one_that_is_tested(name: str) -> None:
    (floor,) = [Version(bound.version) for bound in declared()[name].specifier if bound.operator == ">="]
    tested = lowest()[name]
    # A post-release of the floor stands for it: the floor itself was withdrawn.
    assert floor.release == tested.release[: len(floor.release)]
    assert not any(tested.release[len(floor.release) :])


def test_every_pin_is_of_a_library_that_is_declared() -> None:
    assert set(lowest()) == set(OURS) <= set(declared())
