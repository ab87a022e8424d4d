"""Tokenizers from disk: ours and those of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure._files import read_json
from lightning_exposure.cli._runs import TOKENIZER
from lightning_exposure.cli.arguments import in_short
from lightning_exposure.errors import ArgumentError, ManifestError, MissingFileError
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer

_OURS = {tokenizer.kind: tokenizer for tokenizer in (CharTokenizer, WordTokenizer)}
_HUGGING_FACE_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


def load_tokenizer(path: Path, option: str = "--tokenizer") -> Any:
    """Read a tokenizer of either kind: a file says which it is, and so does a directory by its files.

    Raises:
        ManifestError: There is none, or it cannot be read.
    """
    if not path.exists():
        raise MissingFileError(
            f"{option} is {str(path)!r}, which does not exist; expected a file that save() wrote, a tokenizer.json of "
            "Hugging Face, or a directory with one. Check the path."
        )
    if path.is_file():
        return _from_file(path)
    found = find_tokenizer(path)
    if found is None:
        raise MissingFileError(
            f"{option} is {str(path)!r}, which has no tokenizer; expected tokenizer.json, vocab.json or the like. Save "
            "the tokenizer in it with save_pretrained()."
        )
    return found


def find_tokenizer(directory: Path) -> Any | None:
    """The tokenizer in a directory; None if there is none."""
    file = directory / TOKENIZER
    if file.exists() and "kind" in read_json(file):
        return _from_file(file)
    return pretrained_tokenizer(directory) if has_pretrained_tokenizer(directory) else None


def has_pretrained_tokenizer(directory: Path) -> bool:
    """Whether there is anything of a tokenizer: where there is not, some versions of transformers make up one."""
    return any(any(directory.glob(pattern)) for pattern in _HUGGING_FACE_FILES)


def pretrained_tokenizer(directory: Path) -> Any:
    """What `save_pretrained` of a tokenizer wrote.

    Raises:
        ManifestError: It cannot be read.
        ArgumentError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_package(directory, "transformers", "hf") from error
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what is broken or missing fails in as many ways as there are files
        raise ManifestError(
            f"{directory}: the tokenizer cannot be read ({type(error).__name__}: {in_short(error)}); expected "
            "tokenizer.json or the like. Save the tokenizer there with save_pretrained()."
        ) from error


def missing_package(path: Path, package: str, extra: str) -> ArgumentError:
    """The error for files that only another library can read."""
    return refusal(
        "the path", str(path), f"a run of ours, because {package} is not installed",
        f'Install it: pip install "lightning-exposure[{extra}]"',
    )  # fmt: skip


def _from_file(path: Path) -> Any:
    content = read_json(path)
    if "kind" not in content and "model" in content:
        return _huggingface_file(path)
    kind = content["kind"]
    if kind.as_(str) not in _OURS:
        raise kind.refused(f"one of {', '.join(map(repr, _OURS))}")
    return _OURS[kind.value].load(path)


def _huggingface_file(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_package(path, "tokenizers", "hf") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise ManifestError(
            f"{path}: the tokenizer cannot be read ({in_short(error)}); expected a tokenizer.json of Hugging Face. "
            "Save it again."
        ) from error
