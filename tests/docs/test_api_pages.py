"""The pages of the API show what users call, and not what Lightning and transformers call."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import yaml
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import nn
from transformers import TrainerCallback

import lightning_exposure
from lightning_exposure import callbacks, data, modules
from lightning_exposure.integrations import transformers
from tests.docs.running import ROOT

API = ROOT / "docs" / "api"
CLASSES = [
    thing
    for module in (callbacks, data, modules)
    for name in module.__all__
    if inspect.isclass(thing := getattr(module, name)) and not issubclass(thing, Warning)
] + [transformers.ExposureTrainerCallback]


def filters() -> list[str]:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    (handlers,) = (plugin["mkdocstrings"]["handlers"] for plugin in site["plugins"] if "mkdocstrings" in plugin)
    return handlers["python"]["options"]["filters"]


def shown(thing: type, hidden: list[str]) -> set[str]:
    """What the page of a class has: everything of ours that no filter hides."""
    ours = [base for base in thing.__mro__ if base.__module__.startswith("lightning_exposure")]
    names = {name for base in ours for name in vars(base)}
    return {name for name in names if not any(re.search(pattern.removeprefix("!"), name) for pattern in hidden)}


def hooks(thing: type) -> set[str]:
    """What the library that a class is for calls by itself."""
    found: set[str] = set()
    for base in (Callback, LightningDataModule, TrainerCallback):
        if issubclass(thing, base) or (base is LightningDataModule and thing is data.CanaryDataModule):
            found |= {name for name, value in inspect.getmembers(base) if inspect.isfunction(value)}
    if issubclass(thing, LightningModule):
        own = set(vars(LightningModule)) - set(vars(nn.Module))
        found |= {
            name for name in own if name.startswith(("on_", "configure_")) or name.endswith(("_step", "_dataloader"))
        }
    return {name for name in found if not name.startswith("_")} | {"state_key"}


@pytest.mark.parametrize("thing", CLASSES, ids=lambda thing: thing.__name__)
def test_no_hook_is_shown(thing: type) -> None:
    assert not shown(thing, filters()) & hooks(thing)


def test_without_the_filters_there_would_be_many() -> None:
    assert {"on_train_end", "setup", "state_dict"} <= shown(callbacks.ExposureCallback, ["!^_"])


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (callbacks.ExposureCallback, {"history", "baseline_estimates", "scored_references"}),
        (callbacks.ExtractionCallback, {"extractions", "extracted", "verdicts"}),
        (callbacks.AuditCallback, {"result", "alarm"}),
        (callbacks.DifferentialPrivacy, {"epsilon", "history"}),
        (transformers.ExposureTrainerCallback, {"history", "extracted", "record"}),
        (modules.LanguageModel, {"forward", "under"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_users_call_is_shown(thing: Any, names: set[str]) -> None:
    assert names <= shown(thing, filters())


def test_every_public_name_has_a_page() -> None:
    """Each name that can be imported from the package is one of a module that has a page."""
    documented = re.findall(
        r"^::: (\S+)", "\n".join(page.read_text("utf-8") for page in API.glob("*.md")), re.MULTILINE
    )
    places = {thing.__module__ for name in lightning_exposure.__all__ if inspect.isclass(thing := _public(name))}
    assert not [place for place in places if not any(place.startswith(module) for module in documented)]


def _public(name: str) -> Any:
    return getattr(lightning_exposure, name)
