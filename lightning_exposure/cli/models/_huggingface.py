"""Directories of Hugging Face: causal language models, and PEFT adapters on top of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from lightning_exposure._files import read_json
from lightning_exposure.cli.arguments import in_short
from lightning_exposure.cli.models._tokenizers import has_pretrained_tokenizer, missing_package, pretrained_tokenizer
from lightning_exposure.errors import ManifestError, MissingFileError, ModelError

HF_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
_OTHER_TASKS = ("Classification", "QuestionAnswering", "MultipleChoice")
"""What a model is for that writes no text, as the names of its class say."""


def load_pretrained(directory: Path, option: str, tokenizer: Any | None) -> tuple[nn.Module, Any]:
    """A causal language model that `save_pretrained` wrote, and its tokenizer.

    Args:
        directory: Where it is.
        option: What asked for it, for messages.
        tokenizer: One that was given; None: the one beside the model.

    Raises:
        ModelError: It is an encoder-decoder, or a model without a head for language.
        ManifestError: It cannot be read, or there is no tokenizer.
    """
    if tokenizer is None and not has_pretrained_tokenizer(directory):
        raise MissingFileError(
            f"{option} is {str(directory)!r}, which has no tokenizer; expected tokenizer.json, vocab.json or the like "
            "beside the model. Save the tokenizer in it with save_pretrained(), or name one with --tokenizer."
        )
    model = _causal_model(str(directory), directory, option)
    return model, pretrained_tokenizer(directory) if tokenizer is None else tokenizer


def load_adapters(directory: Path, option: str, tokenizer: Any | None) -> tuple[nn.Module, Any]:
    """PEFT adapters, with the model that they were trained on under them; as `load_pretrained` otherwise.

    The model under them is a path, or a name of which the files are in the cache of Hugging Face.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise missing_package(directory, "peft", "peft") from error
    base = read_json(directory / ADAPTER_CONFIG)["base_model_name_or_path"].as_(str)
    if tokenizer is None:
        homes = [path for path in (directory, Path(base)) if path.is_dir() and has_pretrained_tokenizer(path)]
        if not homes:
            raise MissingFileError(
                f"{option} is {str(directory)!r}, PEFT adapters without a tokenizer, nor is one in {base!r}; expected "
                "one in either. Save it with save_pretrained(), or name one with --tokenizer."
            )
        tokenizer = pretrained_tokenizer(homes[0])
    model = _causal_model(base, directory, option)
    with _reading(directory, option, "adapters of PEFT that fit their base model"):
        adapted: nn.Module = PeftModel.from_pretrained(model, str(directory))
    return adapted, tokenizer


def _causal_model(source: str, directory: Path, option: str) -> Any:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise missing_package(directory, "transformers", "hf") from error
    # Neither the network nor code from the directory, whatever the environment says.
    safely: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    what = f"config and weights of a causal language model on this disk in {source!r}"
    with _reading(directory, option, what):
        config = AutoConfig.from_pretrained(source, **safely)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{option} is {str(directory)!r}, a model of type {config.model_type!r}, which is an encoder-decoder: what "
            "it writes depends on a source; expected a causal language model. Measure it from Python, with "
            "Seq2SeqAdapter(model, source) from lightning_exposure.adapters."
        )
    other = [name for name in config.architectures or () if any(task in name for task in _OTHER_TASKS)]
    if other:
        # With tied weights it would load, and the numbers would be about a head that was never trained.
        raise ModelError(
            f"{option} is {str(directory)!r}, a {other[0]}; expected a causal language model, with its head. Measure "
            "the model that it was made from."
        )
    with _reading(directory, option, what):
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **safely)
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        # transformers makes up random ones, and the numbers would be about those.
        raise ModelError(
            f"{option} is {str(directory)!r}, which lacks {len(missing)} weights of a {type(model).__name__} "
            f"({', '.join(missing[:2])}{', ...' if len(missing) > 2 else ''}); expected a causal language model, with "
            "its head. Save that with save_pretrained()."
        )
    return model


@contextmanager
def _reading(directory: Path, option: str, expected: str) -> Iterator[None]:
    """Without transformers' bars and hints; whatever goes wrong is one error of ours."""
    from transformers.utils import logging as hf_logging

    logging: Any = hf_logging
    shows_bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # what is broken or missing fails in as many ways as there are files
        raise ManifestError(
            f"{option} is {str(directory)!r}, which cannot be read ({type(error).__name__}: {in_short(error)}); "
            f"expected {expected}. Save the model and the tokenizer with save_pretrained()."
        ) from error
    finally:
        logging.set_verbosity(level)
        if shows_bars:
            logging.enable_progress_bar()
