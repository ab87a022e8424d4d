"""The directory of a run: what is in it, and how it is read again."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import torch

from lightning_exposure._checks import instance, refusal
from lightning_exposure._files import read_json
from lightning_exposure.cli.arguments import one_line
from lightning_exposure.errors import ArgumentError, ManifestError, MissingFileError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import NAMED_FORMATS, CanarySet, SecretFormat
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
from lightning_exposure.tree import SecretTree

CHECKPOINT = "model.ckpt"
CANARIES = "canaries.json"
TOKENIZER = "tokenizer.json"
CONFIG = "config.yaml"

_TOKENIZERS = {tokenizer.kind: tokenizer for tokenizer in (CharTokenizer, WordTokenizer)}


def new_run_dir(given: str | os.PathLike[str] | None) -> Path:
    """Where a run will leave its files; nothing is created yet.

    Raises:
        ArgumentError: There is something already.
    """
    path = Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}") if given is None else Path(given)
    # A process that another one of the same run started finds the directory made.
    if "LOCAL_RANK" not in os.environ and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ArgumentError(
            f"--run_dir is {str(path)!r}, which exists already; expected a new directory, because a run is never "
            "overwritten. Choose another one."
        )
    return path


def make_format(name: str | None, pattern: str | None, default: str | None = None) -> SecretFormat | None:
    """The format that was asked for, by name or by pattern; else the default.

    >>> make_format(None, "door ####").size
    10000
    """
    if name is not None and pattern is not None:
        raise ArgumentError(
            f"--format and --pattern are {name!r} and {pattern!r}; expected only one of them. Leave the other out."
        )
    if pattern is not None:
        return SecretFormat(pattern)
    chosen = name or default
    if chosen is None:
        return None
    made = NAMED_FORMATS.get(chosen, argument="--format")()
    return instance(f"the format {chosen!r}", made, SecretFormat, "a SecretFormat", "Correct what is registered.")


class TrainedModel(NamedTuple):
    """A model from a checkpoint, and the tokenizer that it was trained with."""

    model: LanguageModel
    tokenizer: CharTokenizer | WordTokenizer
    directory: Path

    def tree(self, format: SecretFormat) -> SecretTree:
        """The tree of a format's secrets."""
        return SecretTree(self.model, format, self.tokenizer)

    def canaries(self, given: str | None) -> CanarySet:
        """The canaries: from a file that was named, or from the one in the model's directory.

        Raises:
            ManifestError: There is none, or it cannot be read.
        """
        return CanarySet.load(_beside(self.directory, CANARIES, given, "--canaries"))

    def known_canaries(self, given: str | None) -> CanarySet:
        """The same, but none at all if no file was named and there is none."""
        if given is None and not (self.directory / CANARIES).exists():
            return CanarySet([])
        return self.canaries(given)


def load_model(checkpoint: str, tokenizer: str | None, device: str) -> TrainedModel:
    """Read a checkpoint and its tokenizer.

    Raises:
        ManifestError: A file is missing or is not what it should be.
        ArgumentError: There is no such device.
    """
    path = Path(checkpoint)
    if path.is_dir():
        path = path / CHECKPOINT
    if not path.exists():
        raise MissingFileError(f"{path} does not exist; expected a checkpoint of a run. Check the path.")
    loaded = load_tokenizer(_beside(path.parent, TOKENIZER, tokenizer, "--tokenizer"))
    model = _read_checkpoint(path)
    try:
        model = model.to(torch.device(device)).eval()
    except (RuntimeError, AssertionError) as error:
        raise refusal("--device", device, f"one that can be used here ({_first_line(error)})", "Try cpu.") from error
    return TrainedModel(model, loaded, path.parent)


def load_tokenizer(path: Path) -> CharTokenizer | WordTokenizer:
    """Read a tokenizer of either kind; the file says which."""
    kind = read_json(path)["kind"]
    if kind.as_(str) not in _TOKENIZERS:
        raise kind.refused(f"one of {', '.join(map(repr, _TOKENIZERS))}")
    made: CharTokenizer | WordTokenizer = _TOKENIZERS[kind.value].load(path)
    return made


def _read_checkpoint(path: Path) -> LanguageModel:
    try:
        # Weights and plain values only: a checkpoint from a stranger must not be able to run code.
        model: LanguageModel = LanguageModel.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a broken file fails in as many ways as there are places to break it
        raise ManifestError(
            f"{path}: the file cannot be read ({type(error).__name__}: {_first_line(error)}); expected a checkpoint of "
            "a LanguageModel. Give one that 'lightning-exposure fit' wrote."
        ) from error
    return model


def _first_line(error: BaseException) -> str:
    """Enough of a long message of someone else's."""
    text = one_line(error)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _beside(directory: Path, name: str, given: str | None, option: str) -> Path:
    """A file that was named, or the one of a run; ManifestError if there is none."""
    path = directory / name if given is None else Path(given)
    if not path.exists():
        raise MissingFileError(
            f"{path} does not exist; expected a file that belongs to the model. Name it: {option} FILE."
        )
    return path
