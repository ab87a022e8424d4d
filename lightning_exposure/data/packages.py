"""Lightning comes as two packages, `lightning` and `pytorch_lightning`, whose classes do not know each other.

A data module or a module of one is rejected by the Trainer of the other. So classes of ours are written once, without
a Lightning base, and put on the base of the package that a program uses.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from lightning_exposure._checks import refusal

PACKAGES = ("lightning", "pytorch_lightning")
"""What a program may import; the first is the default."""

_MODULES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def package_named(name: str) -> ModuleType:
    """The module of a package that holds Trainer, LightningModule and LightningDataModule.

    Args:
        name: "lightning" (or "lightning.pytorch") or "pytorch_lightning".

    Raises:
        ArgumentError: It is neither, or it is not installed.
    """
    module = _MODULES.get("lightning" if name == "lightning.pytorch" else name)
    if module is None:
        raise refusal("package", name, f"one of {', '.join(map(repr, PACKAGES))}")
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        remedy = f"It cannot be imported ({error}): install it with pip install {name}."
        raise refusal("package", name, "an installed package", remedy) from error


def package_of(instance: object, kind: str) -> ModuleType | None:
    """The package whose class `kind` an object is an instance of; None if it is of neither.

    >>> package_of(3, "LightningModule") is None
    True
    """
    return next(iter(packages_of(instance, kind)), None)


def packages_in_use() -> tuple[ModuleType, ...]:
    """The packages that are imported, by the program or by us; `lightning` if none is.

    Whose import it was cannot be told: our callbacks import `lightning`, and so may any library the program uses.
    """
    found = tuple(module for module in map(sys.modules.get, _MODULES.values()) if module is not None)
    return found or (package_named("lightning"),)


def packages_of(instance: object, kind: str) -> tuple[ModuleType, ...]:
    """All packages whose class `kind` an object is an instance of."""
    found = (module for module in map(sys.modules.get, _MODULES.values()) if module is not None)
    return tuple(module for module in found if isinstance(instance, getattr(module, kind)))


class OnPytorchLightning:
    """A class attribute that is the same class on the base of `pytorch_lightning`, made when it is asked for.

    It gives that class a name under which another process finds it when it unpickles an instance.
    """

    def __get__(self, instance: object, owner: Any) -> type[Any]:
        """The class of the attribute's owner, for the other package."""
        made: type[Any] = owner.under("pytorch_lightning")
        return made


@cache
def on_package(behaviour: type, kind: str, package: ModuleType, like: type | None = None) -> type[Any]:
    """The class that adds a behaviour of ours to a package's base class, made once for each package.

    Args:
        behaviour: A class without a Lightning base.
        kind: The name of the base class, such as "LightningModule".
        package: Where the base class is.
        like: The public class on the base of `lightning`, of which the new one is the attribute
            `on_pytorch_lightning`. Without it, the new class is called as the behaviour.
    """
    model = behaviour if like is None else like
    name = model.__qualname__ if like is None else f"{model.__qualname__}.on_pytorch_lightning"
    names = {"__module__": model.__module__, "__qualname__": name, "__doc__": model.__doc__}
    return type(model.__name__, (behaviour, getattr(package, kind)), names)


@cache
def on_packages(behaviour: type, kind: str, packages: tuple[ModuleType, ...]) -> type[Any]:
    """The same on the base classes of several packages: for an object that finds out later which of them it needs.

    Every Trainer takes it for one of its own. It must be made an instance of `on_package` before it is asked for a hook
    that it does not have: of the two base classes' hooks, one would count as overridden.

    Args:
        behaviour: A class without a Lightning base.
        kind: The name of the base class, such as "LightningDataModule".
        packages: Where the base classes are.
    """
    if len(packages) == 1:
        made: type[Any] = on_package(behaviour, kind, packages[0])
        return made
    names = {"__module__": behaviour.__module__, "__qualname__": behaviour.__qualname__, "__doc__": behaviour.__doc__}
    return type(behaviour.__name__, (behaviour, *(getattr(package, kind) for package in packages)), names)
