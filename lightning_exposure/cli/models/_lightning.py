"""Checkpoints of Lightning: of our own language model, or of a module whose class is named."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_exposure._checks import refusal
from lightning_exposure.cli._importing import import_named
from lightning_exposure.cli.arguments import in_short
from lightning_exposure.errors import ManifestError
from lightning_exposure.modules import LanguageModel

_PLAIN = "a checkpoint with nothing but weights and plain values, because no code from it is run"


def load_checkpoint(path: Path, model_class: str | None, option: str, class_option: str) -> nn.Module:
    """The module of a checkpoint.

    Weights and plain values only are read: a checkpoint from a stranger must not be able to run code.

    Args:
        path: The file.
        model_class: What makes the module, as `my.module:MyModel` or `file.py:MyModel`: a LightningModule, or anything
            that makes a module without arguments. None: our own `LanguageModel`.
        option: What asked for the checkpoint, for messages.
        class_option: What asked for the class, for messages.

    Raises:
        ManifestError: The file cannot be read, or is not of such a module.
        ArgumentError: There is no such class.
    """
    make = LanguageModel if model_class is None else _named(model_class, class_option)
    content = check_plain(path)
    try:
        return _restored(make, path, content)
    except OSError:
        raise
    except Exception as error:  # code of the user's own, and a broken file, fail in as many ways as there are
        raise _not_of(make, path, content, error, option, class_option) from error


def _restored(make: Any, path: Path, content: dict[str, Any]) -> nn.Module:
    if hasattr(make, "load_from_checkpoint"):
        # Older versions have no such argument; what is in the file is known to be plain by now.
        known = inspect.signature(make.load_from_checkpoint).parameters
        safely = {"weights_only": True} if "weights_only" in known else {}
        module: nn.Module = make.load_from_checkpoint(path, map_location="cpu", **safely)
        return module
    made = make()
    if not isinstance(made, nn.Module):
        raise TypeError(f"it makes a {type(made).__name__}, which is no module")
    made.load_state_dict(content.get("state_dict", content))
    return made


def check_plain(path: Path) -> dict[str, Any]:
    """What is in a checkpoint, if nothing has to be run to know it; read from disk as it is needed.

    Raises:
        ManifestError: There is more in it than weights and plain values, or it is no checkpoint.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:
        raise ManifestError(
            f"{path}: the file cannot be read ({type(error).__name__}: {in_short(error)}); expected a checkpoint: "
            f"{_PLAIN}. Save it again, with save_hyperparameters() of numbers, texts, lists and dictionaries alone."
        ) from error
    if not isinstance(content, dict):
        raise refusal(str(path), type(content).__name__, _PLAIN, "Save it again.", error=ManifestError)
    return content


def _not_of(
    make: Any, path: Path, content: dict[str, Any], error: Exception, option: str, class_option: str
) -> ManifestError:
    name, why = getattr(make, "__name__", type(make).__name__), f"{type(error).__name__}: {in_short(error)}"
    if make is LanguageModel:
        return ManifestError(
            f"{path}: the file cannot be read ({why}); expected a checkpoint of a LanguageModel. Give {option} one "
            f"that 'lightning-exposure fit' wrote, or name the class of yours: {class_option} my.module:MyModel."
        )
    if isinstance(error, TypeError) and "required" in str(error) and hasattr(make, "load_from_checkpoint"):
        saved = ", ".join(content.get("hyper_parameters") or {}) or "none"
        return ManifestError(
            f"{path} does not say with which arguments {name} was made ({why}; saved are: {saved}); expected them "
            f"among its hyperparameters. Call self.save_hyperparameters() in {name}.__init__ before you train; for "
            f"this checkpoint, write a function without arguments that makes the model, and name it: {class_option} "
            "file.py:function."
        )
    return ManifestError(
        f"{path}: {name} cannot be made from it ({why}); expected a checkpoint of a {name}. Name the class that it is "
        f"of with {class_option}."
    )


def _named(model_class: str, option: str) -> Any:
    """What `module:name` or `file.py:name` stands for."""
    source, _, name = model_class.rpartition(":")
    if not source or not name:
        raise refusal(option, model_class, "a module or a .py file, a colon and a name", "Such as my.module:MyModel.")
    found: Any = import_named(source, option)
    for part in name.split("."):
        if not hasattr(found, part):
            there = [key for key, value in vars(found).items() if isinstance(value, type) and not key.startswith("_")]
            raise refusal(
                option, model_class, f"a name that is in {source}",
                f"There are: {', '.join(there)}." if there else "There is no class at all in it.",
            )  # fmt: skip
        found = getattr(found, part)
    if not callable(found):
        raise refusal(option, model_class, "a class, or a function that makes a module", with_type=True)
    return found
