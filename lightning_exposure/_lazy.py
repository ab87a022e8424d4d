"""Names of a package that are imported when someone asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names live in modules that are not imported with it.

    Args:
        package: Its `__name__`.
        homes: For every name the module inside the package in which it lives.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        # From now on Python finds the name without asking here.
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
