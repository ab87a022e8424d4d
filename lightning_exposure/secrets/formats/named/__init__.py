"""Formats of well-known secrets, each behind a prompt of your own: one file each."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, NamedFormat

__all__ = ["NAMED_FORMATS", "NamedFormat"]

# Importing a file registers its format, so that a new file is all that a new format needs.
for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
