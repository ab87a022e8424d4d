"""The layers: what each part of the package may import, and what importing it may load."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_exposure

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lightning_exposure"

# Each layer imports only from those before it.
LAYERS = [
    "errors",
    "_lazy",
    "_lightning",
    "_opacus",
    "_torch",
    "_checks",
    "secrets",
    "tokenization",
    "adapters",
    "tree",
    "walks",
    "exposure",
    "extraction",
    "privacy",
    "report",
    "data",
    "modules",
    "callbacks",
    "cli",
]


def run_fresh(code: str) -> str:
    """What `code` prints in a Python process of its own, where nothing is imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what an import loads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        (
            "lightning_exposure",
            {"torch", "lightning", "pytorch_lightning", "numpy", "scipy", "opacus", "wandb"},
        ),
        ("lightning_exposure.secrets", {"torch", "lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.tokenization", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.tree", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.walks", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.exposure", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
    ],
)
def test_import_loads_nothing_heavier_than_its_layer(module: str, forbidden: set[str]) -> None:
    loaded = set(run_fresh(f"import sys, {module}; print(*sys.modules)").split())
    assert module in loaded
    assert not loaded & forbidden


def test_import_is_fast() -> None:
    code = (
        "from time import perf_counter; start = perf_counter(); import lightning_exposure; "
        "print(perf_counter() - start)"
    )
    # The best of three: a busy machine can make an import slow, but nothing can make it faster than it is.
    assert min(float(run_fresh(code)) for _ in range(3)) < 0.3


# --- what the source imports --------------------------------------------------------------------------------


def layer_of_target(target: str) -> str | None:
    """The layer that the dotted name `target` belongs to; None outside the package or for its plain facts."""
    package, _, rest = target.partition(".")
    if package != PACKAGE.name:
        return None
    name = rest.partition(".")[0]
    if name in LAYERS:
        return name
    # A public name of the package loads the layer it lives in.
    if name in lightning_exposure._HOMES:
        return lightning_exposure._HOMES[name]
    if name == "__version__":
        return None
    return name or "__init__"


def imported_names(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of every import in `source`, wherever in the file it stands."""
    parents = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of a module that reach a layer below its own."""
    own = LAYERS.index(module.split(".")[1])
    found = []
    for line, target in imported_names(source, module, is_package):
        layer = layer_of_target(target)
        if layer is None:
            continue
        if layer not in LAYERS or LAYERS.index(layer) > own:
            found.append(f"{module}:{line} imports {target}")
    return found


def test_every_part_of_the_package_is_a_known_layer() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in files} <= {
        *LAYERS,
        "__init__",
        "__main__",
    }
    # A directory without __init__.py still imports, as an empty namespace: the other tests would not notice.
    assert {path.parent for path in files} == {path.parent for path in files if path.name == "__init__.py"}


def test_layers_import_only_from_the_layers_above() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        if module in {PACKAGE.name, f"{PACKAGE.name}.__main__"}:
            continue
        found += offences(path.read_text(encoding="utf-8"), module, is_package)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import lightning_exposure.exposure",
        "import lightning_exposure",
        "from lightning_exposure import exposure",
        "from lightning_exposure import measure_exposure",
        "from lightning_exposure.exposure import measure_exposure",
        "from lightning_exposure.exposure.estimate import measure_exposure as measure",
        "from ..exposure import measure_exposure",
        "from .. import exposure",
        "from .. import measure_exposure",
        "def late():\n    from ..exposure.estimate import measure_exposure",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..callbacks import ExposureCallback",
    ],
)
def test_an_import_from_below_is_noticed(source: str) -> None:
    assert offences(source, "lightning_exposure.walks.beam")


def test_relative_imports_of_a_package_count_from_the_package_itself() -> None:
    # One dot in walks/__init__.py is walks; one dot in walks/beam.py is walks, too.
    assert offences("from .exposure import Exposure", "lightning_exposure.walks", is_package=True) == []
    assert offences("from ..exposure import Exposure", "lightning_exposure.walks", is_package=True)


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import lightning_exposure.tree.secret_tree",
        "from lightning_exposure import SecretTree, __version__",
        "from lightning_exposure.errors import ArgumentError",
        "from ..tree import SecretTree",
        "from ..errors import ArgumentError",
        "from .score import score",
        "from . import score",
    ],
)
def test_an_import_from_above_or_beside_is_fine(source: str) -> None:
    assert offences(source, "lightning_exposure.walks.beam") == []


# --- the public names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", lightning_exposure.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(lightning_exposure, name)
    document = inspect.getdoc(value)
    assert document
    # A dataclass without a docstring gets its own signature for one.
    assert not document.startswith(f"{name}(")


def test_public_names_are_the_same_for_python_and_for_type_checkers() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    for_type_checkers = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes = {name: f"lightning_exposure.{home}" for name, home in lightning_exposure._HOMES.items()}
    assert for_type_checkers == homes
    assert sorted(lightning_exposure.__all__) == sorted(homes)
    assert set(homes) <= set(dir(lightning_exposure))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'lightning_exposure' has no attribute 'nothing'"):
        _ = lightning_exposure.nothing
