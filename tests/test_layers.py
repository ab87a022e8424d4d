"""The layers: what each part of the package may import, and what importing it may load."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
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
    "_registry",
    "_files",
    "_html",
    "secrets",
    "tokenization",
    "adapters",
    "tree",
    "walks",
    "exposure",
    "extraction",
    "leakage",
    "privacy",
    "report",
    "measuring",
    "data",
    "modules",
    "callbacks",
    "integrations",
    "defences",
    "synthetic",
    "studies",
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
        ("lightning_exposure.measuring", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.defences.redacting", {"torch", "lightning", "pytorch_lightning", "opacus", "wandb"}),
        ("lightning_exposure.integrations", {"torch", "transformers", "lightning", "pytorch_lightning", "wandb"}),
        ("lightning_exposure.integrations.transformers", {"lightning", "pytorch_lightning", "opacus", "wandb"}),
    ],
)
def test_import_loads_nothing_heavier_than_its_layer(module: str, forbidden: set[str]) -> None:
    loaded = set(run_fresh(f"import sys, {module}; print(*sys.modules)").split())
    assert module in loaded
    assert not loaded & forbidden


def test_import_loads_nothing_but_itself() -> None:
    code = "import sys; before = set(sys.modules); import lightning_exposure; print(*set(sys.modules) - before)"
    loaded = {name for name in run_fresh(code).split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert loaded == {"lightning_exposure", "lightning_exposure._lazy"}


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


# --- the folders --------------------------------------------------------------------------------------------

LARGEST_FOLDER = 15


def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name; `__init__` files by the name of their folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_between(files: dict[str, Path], importers: dict[str, Path] | None = None) -> set[tuple[str, str]]:
    """Which file imports which of `files`: pairs of dotted names."""
    pairs = set()
    for module, path in (files if importers is None else importers).items():
        source = path.read_text(encoding="utf-8")
        for _, target in imported_names(source, module, path.name == "__init__.py"):
            # What is imported is a module, or a name inside of one.
            known = [name for name in (target, target.rpartition(".")[0]) if name in files]
            pairs.update((module, name) for name in known[:1])
    return pairs


def is_inside(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def foreign_private_imports(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Imports of a file or folder with an underscore from outside the folder that it is in."""
    found = []
    for module, target in sorted(pairs):
        parts = target.split(".")
        for place, part in enumerate(parts):
            if part.startswith("_") and not is_inside(module, ".".join(parts[:place])):
                found.append(f"{module} imports {target}")
    return found


def only_used_at_home(files: dict[str, Path], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Files without an underscore that nobody outside of their folder imports, nor the folder's `__init__` exports."""
    used = {
        target for module, target in pairs if not is_inside(module, folder_of(target)) or module == folder_of(target)
    }
    return [
        module
        for module, path in files.items()
        if path.name not in ("__init__.py", "__main__.py")
        and not path.name.startswith("_")
        and module not in used
        and path.parent not in (PACKAGE, PACKAGE / "cli" / "commands")  # for users, and found by their names
        and ".register(" not in path.read_text(encoding="utf-8")  # they register themselves
    ]


def folder_of(module: str) -> str:
    return module.rpartition(".")[0]


def test_no_folder_is_a_warehouse() -> None:
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
    too_many = {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > LARGEST_FOLDER}
    assert not too_many


def test_a_file_with_an_underscore_is_imported_only_inside_its_folder() -> None:
    found = foreign_private_imports(imports_between(modules()))
    assert not found, "\n".join(found)


def test_a_file_without_an_underscore_is_for_others() -> None:
    files = modules()
    # Benchmarks and examples are others, too; tests look into everything.
    users = {str(path): path for folder in ("benchmarks", "examples") for path in (ROOT / folder).glob("*.py")}
    found = only_used_at_home(files, imports_between(files) | imports_between(files, users))
    assert not found, "begin with an underscore, or are exported by their folder: " + ", ".join(found)


@pytest.mark.parametrize(
    ("module", "target", "fine"),
    [
        ("lightning_exposure.walks.beam", "lightning_exposure.walks._frontier", True),
        ("lightning_exposure.walks", "lightning_exposure.walks._frontier", True),
        ("lightning_exposure.cli.commands.fit", "lightning_exposure.cli._runs", True),
        ("lightning_exposure.walks.beam", "lightning_exposure._checks", True),
        ("lightning_exposure.exposure.metric", "lightning_exposure.walks._frontier", False),
        ("lightning_exposure.exposure", "lightning_exposure.exposure.methods._exact", False),
        ("lightning_exposure.walksway.beam", "lightning_exposure.walks._frontier", False),
    ],
)
def test_a_private_import_from_outside_is_noticed(module: str, target: str, fine: bool) -> None:
    assert (foreign_private_imports([(module, target)]) == []) == fine


def test_a_file_that_nobody_outside_uses_is_noticed(tmp_path: Path) -> None:
    files = {}
    for name, source in {
        "p.a.x": "from p.a import y",
        "p.a.y": "",
        "p.a._z": "",
        "p.a.r": "@THINGS.register('r')",
    }.items():
        files[name] = tmp_path / f"{name.rpartition('.')[2]}.py"
        files[name].write_text(source)
    inside = [("p.a.x", "p.a.y"), ("p.a.x", "p.a._z")]
    assert only_used_at_home(files, inside) == ["p.a.x", "p.a.y"]
    assert only_used_at_home(files, [*inside, ("p.b", "p.a.x"), ("p.a", "p.a.y")]) == []


def test_the_layers_in_contributing_are_these() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = page.partition("each imports only from those above it")[2].partition("```text\n")[2].partition("```")[0]
    assert block.split() == LAYERS


def test_each_class_has_a_name_of_its_own() -> None:
    """One name for one thing: whoever reads `Reader` should not have to ask which."""
    homes: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


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
