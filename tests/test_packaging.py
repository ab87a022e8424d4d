"""The facts that are written down in several places agree with each other."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import lightning_exposure

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TEST_COMMAND = 'pip install -e ".[test]" && pytest -n auto'


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lines(name: str) -> list[str]:
    return [line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]


def test_readme_and_ci_run_the_same_command() -> None:
    # A whole line in both: not a longer command that happens to contain this one.
    assert lines("README.md").count(TEST_COMMAND) == 1
    assert lines(".ci/run").count(TEST_COMMAND) == 1


def test_ci_script_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_extras(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    assert set(extras) == {"hf", "jax", "lm-eval", "peft", "ray", "report", "test", "dev"}
    assert "lightning-exposure[lm-eval,peft,ray,report]" in extras["test"]
    assert "lightning-exposure[test]" in extras["dev"]


def test_test_extra_holds_every_tool_that_ci_runs(project: dict[str, Any]) -> None:
    wanted = {re.match(r"[\w-]+", line)[0] for line in project["optional-dependencies"]["test"]}
    assert {"pytest", "ruff", "mypy", "mkdocs-material", "mkdocstrings"} <= wanted


def test_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert lightning_exposure.__version__ == project["version"] == citation["version"]


def test_citation_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (paper,) = citation["references"]
    assert paper["title"].startswith("The Secret Sharer")
    assert [author["family-names"] for author in paper["authors"]] == [
        "Carlini",
        "Liu",
        "Erlingsson",
        "Kos",
        "Song",
    ]


def test_package_is_typed() -> None:
    assert (ROOT / "lightning_exposure" / "py.typed").exists()
