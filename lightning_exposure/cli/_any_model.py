"""A model from disk, whoever wrote it: a run of ours, a checkpoint, or a directory of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from lightning_exposure._checks import refusal
from lightning_exposure.cli._runs import CHECKPOINT, load_model
from lightning_exposure.cli.arguments import one_line
from lightning_exposure.errors import ManifestError, MissingFileError

_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


class LoadedModel(NamedTuple):
    """A model, and how it reads text."""

    model: nn.Module
    tokenizer: Any


def load_any_model(path: str, device: str = "cpu", *, option: str = "--model") -> LoadedModel:
    """Read a model and its tokenizer; nothing is fetched, and no code from the files is run.

    Args:
        path: The directory of a run, a checkpoint of one, or a directory that `save_pretrained` wrote.
        device: Where it is to run.
        option: What asked for it, for messages.

    Raises:
        ManifestError: It is none of these, or cannot be read.
        ArgumentError: There is no such device.
    """
    given = Path(path)
    if not given.exists():
        raise MissingFileError(
            f"{option} is {path!r}, which does not exist; expected the directory of a run, or one that "
            "save_pretrained() wrote. Check the path."
        )
    if given.is_dir() and (given / "config.json").exists() and not (given / CHECKPOINT).exists():
        return _from_huggingface(given, device, option)
    trained = load_model(path, None, device)
    return LoadedModel(trained.model, trained.tokenizer)


def _from_huggingface(directory: Path, device: str, option: str) -> LoadedModel:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as hf_logging
    except ImportError as error:
        raise refusal(
            option, str(directory), "a run of ours, because transformers is not installed",
            'Install it: pip install "lightning-exposure[hf]"',
        ) from error  # fmt: skip
    if not any(any(directory.glob(pattern)) for pattern in _TOKENIZER_FILES):
        # Some versions of transformers would make up an empty tokenizer.
        raise MissingFileError(
            f"{option} is {str(directory)!r}, which has no tokenizer; expected tokenizer.json, vocab.json or the like "
            "beside the model. Save the tokenizer in it with save_pretrained()."
        )
    logging: Any = hf_logging
    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # ours is enough
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # what is broken or missing fails in as many ways as there are files
        raise ManifestError(
            f"{option} is {str(directory)!r}, which cannot be read ({type(error).__name__}: {one_line(error)[:200]}); "
            "expected config, weights and tokenizer of a causal language model. Save the model and the tokenizer in it "
            "with save_pretrained()."
        ) from error
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    try:
        return LoadedModel(model.to(device).eval(), tokenizer)
    except (RuntimeError, AssertionError) as error:
        raise refusal("--device", device, f"one that can be used here ({one_line(error)[:100]})", "Try cpu.") from error
