"""Every study of ours: importing this module registers them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from lightning_exposure.studies.study import STUDIES

__all__ = ["STUDIES"]

# Every file of these folders registers one.
for _folder in ("memorization", "attacks", "defences"):
    _package = import_module(f"lightning_exposure.studies.{_folder}")
    for _module in iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)
