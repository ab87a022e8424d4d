"""Telling what kind of a model a path is, and reading it. Nothing is fetched, and no code from the files is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lightning_exposure._checks import refusal
from lightning_exposure.cli._runs import CANARIES, CHECKPOINT
from lightning_exposure.cli.arguments import in_short
from lightning_exposure.cli.models._huggingface import ADAPTER_CONFIG, HF_CONFIG, load_adapters, load_pretrained
from lightning_exposure.cli.models._lightning import load_checkpoint
from lightning_exposure.cli.models._tokenizers import find_tokenizer, load_tokenizer
from lightning_exposure.errors import ArgumentError, MissingFileError
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.tree import SecretTree


class LoadedModel(NamedTuple):
    """A model, how it reads text, and where it comes from.

    Attributes:
        model: The model.
        tokenizer: Ours, or one of Hugging Face.
        directory: Where it lies, and its canaries with it, if there are any.
    """

    model: nn.Module
    tokenizer: Any
    directory: Path

    def tree(self, format: SecretFormat) -> SecretTree:
        """The tree of a format's secrets."""
        return SecretTree(self.model, format, self.tokenizer)

    def canaries(self, given: str | None) -> CanarySet:
        """The canaries: from a file that was named, or from the one beside the model.

        Raises:
            ManifestError: There is none, or it cannot be read.
            ArgumentError: Some were made for an audit alone.
        """
        path = self.directory / CANARIES if given is None else Path(given)
        if not path.exists():
            raise MissingFileError(
                f"{path} does not exist; expected the canaries that the model was trained with. Name their file with "
                "--canaries FILE, or say what a secret looks like with --format."
            )
        found = CanarySet.load(path)
        found.refuse_made_for_audits()
        return found

    def known_canaries(self, given: str | None) -> CanarySet:
        """The same, but none at all if no file was named and there is none."""
        if given is None and not (self.directory / CANARIES).exists():
            return CanarySet([])
        return self.canaries(given)


def load_any_model(
    path: str,
    device: str = "cpu",
    *,
    option: str = "--model",
    model_class: str | None = None,
    tokenizer: str | None = None,
    alike: tuple[str | None, Any] = (None, None),
) -> LoadedModel:
    """Read a model and its tokenizer.

    Args:
        path: The directory of a run, one that `save_pretrained` wrote, or a checkpoint of Lightning.
        device: Where it is to run.
        option: What asked for it, for messages; those of its class and its tokenizer begin alike.
        model_class: Of a checkpoint: what makes its module, as `my.module:MyModel` or `file.py:MyModel`.
        tokenizer: A file or a directory; None: the one beside the model.
        alike: The class and the tokenizer of another model, for where nothing else is known.

    Raises:
        ManifestError: It is none of these, or cannot be read.
        ArgumentError: There is no such device.
    """
    given = Path(path)
    if not given.exists():
        raise MissingFileError(
            f"{option} is {path!r}, which does not exist; expected the directory of a run, one that save_pretrained() "
            "wrote, or a checkpoint. Check the path."
        )
    own = None if tokenizer is None else load_tokenizer(Path(tokenizer), _tokenizer_option(option))
    if _is_huggingface(given):
        if model_class is not None:
            raise ArgumentError(
                f"{option} is {path!r}, a Hugging Face directory, which says itself what model it is; expected a "
                f"checkpoint with {_class_option(option)}. Leave out one of them."
            )
        load = load_adapters if (given / ADAPTER_CONFIG).exists() else load_pretrained
        model, found = load(given, option, own)
        return LoadedModel(_on(device, model), found, given)
    checkpoint = _checkpoint_in(given, option)
    model = load_checkpoint(checkpoint, model_class or _class_of_other(given, alike[0]), option, _class_option(option))
    found = own or find_tokenizer(checkpoint.parent) or alike[1]
    if found is None:
        raise MissingFileError(
            f"{checkpoint.parent / 'tokenizer.json'} does not exist; expected the tokenizer beside the checkpoint. "
            f"Name a file or a directory: {_tokenizer_option(option)} PATH."
        )
    return LoadedModel(_on(device, model), found, checkpoint.parent)


def _is_huggingface(path: Path) -> bool:
    there = path.is_dir() and any((path / name).exists() for name in (HF_CONFIG, ADAPTER_CONFIG))
    return there and not (path / CHECKPOINT).exists()


def _checkpoint_in(path: Path, option: str) -> Path:
    """The checkpoint that is meant: the file itself, that of a run, or the only one there is."""
    if path.is_file():
        return path
    if (path / CHECKPOINT).exists():
        return path / CHECKPOINT
    found = sorted(path.glob("*.ckpt"))
    if len(found) == 1:
        return found[0]
    inside = found or [each for each in sorted(path.glob("checkpoint-*")) if (each / HF_CONFIG).exists()]
    if inside:
        raise ArgumentError(
            f"{option} is {str(path)!r}, in which there are {len(inside)} models; expected one. Name it, such as "
            f"{option} {inside[-1]}."
        )
    raise MissingFileError(
        f"{path / CHECKPOINT} does not exist, nor {path / HF_CONFIG}; expected the directory of a run, or one that "
        f"save_pretrained() wrote. Check the path, or give {option} a checkpoint."
    )


def _class_of_other(path: Path, model_class: str | None) -> str | None:
    """The class of the model that is measured, for a reference that is no run of ours."""
    return None if path.is_dir() and (path / CHECKPOINT).exists() else model_class


def _class_option(option: str) -> str:
    return f"{option}_class"


def _tokenizer_option(option: str) -> str:
    return "--tokenizer" if option == "--model" else f"{option}_tokenizer"


def _on(device: str, model: nn.Module) -> nn.Module:
    try:
        return model.to(torch.device(device)).eval()
    except (RuntimeError, AssertionError) as error:
        raise refusal("--device", device, f"one that can be used here ({in_short(error)})", "Try cpu.") from error
