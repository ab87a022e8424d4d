"""Collections of data loaders, as a Trainer takes them: lists, dictionaries, `CombinedLoader`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from lightning_exposure._checks import refusal


def loaders_in(loaders: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], DataLoader[Any]]:
    """The data loaders in a collection, in order, by their keys."""
    if isinstance(loaders, DataLoader):
        return {path: loaders}
    if _is_combined(loaders):
        return loaders_in(loaders.iterables, path)
    entries: Any = ()
    if isinstance(loaders, Mapping):
        entries = loaders.items()
    elif isinstance(loaders, list | tuple):
        entries = enumerate(loaders)
    return {place: found for key, part in entries for place, found in loaders_in(part, (*path, key)).items()}


def choose(wanted: int | str | None, paths: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The place of the loader that gets the canaries."""
    if wanted is None:
        return paths[0]
    if isinstance(wanted, int) and 0 <= wanted < len(paths):
        return paths[wanted]
    for path in paths:
        if not isinstance(wanted, int) and wanted in path:
            return path
    known = ", ".join("/".join(map(str, path)) for path in paths)
    raise refusal("loader", wanted, f"a number from 0 to {len(paths) - 1} or a key of the training loaders ({known})")


def replaced(loaders: Any, old: DataLoader[Any], new: DataLoader[Any]) -> Any:
    """A collection like the given one, with another loader in the place of one of its loaders."""
    if loaders is old:
        return new
    if _is_combined(loaders):
        combined = copy.copy(loaders)
        combined.flattened = [new if loader is old else loader for loader in loaders.flattened]
        return combined
    if isinstance(loaders, Mapping):
        return type(loaders)({key: replaced(part, old, new) for key, part in loaders.items()})  # type: ignore[call-arg]
    if isinstance(loaders, list | tuple):
        parts = [replaced(part, old, new) for part in loaders]
        return type(loaders)(*parts) if hasattr(loaders, "_fields") else type(loaders)(parts)
    return loaders


def _is_combined(loaders: Any) -> bool:
    """Whether it is a `CombinedLoader`, of either package."""
    return type(loaders).__name__ == "CombinedLoader" and hasattr(loaders, "flattened")
