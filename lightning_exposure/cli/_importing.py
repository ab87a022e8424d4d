"""Modules of the user's own: for what they register (`--import`), or for a class in them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from lightning_exposure._checks import refusal

IMPORT = "--import"


def import_named(name: str, option: str = IMPORT) -> ModuleType:
    """Import a module by its name, also from the current directory, or run a `.py` file as one.

    Args:
        name: The module or the file.
        option: What asked for it, for messages.

    Raises:
        ArgumentError: There is no such module or file, or it fails.
    """
    try:
        if name.endswith(".py"):
            return _import_file(Path(name))
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return import_module(name)
    except Exception as error:  # code of the user's own fails in its own ways
        remedy = f"It failed: {type(error).__name__}: {error}"
        raise refusal(option, name, "the name of a module, or a .py file, that can be imported", remedy) from error


def _import_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, "every .py file has one"
    assert spec.loader is not None
    module = module_from_spec(spec)
    # As an import would, but without hiding a module of that name: what the file defines can then be pickled.
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
    return module
