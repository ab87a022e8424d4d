"""A model from disk, whoever wrote it: a run of ours, a Lightning checkpoint, or a directory of Hugging Face."""

from lightning_exposure.cli.models._lightning import check_plain
from lightning_exposure.cli.models._options import add_model_options, add_reference_options, load_given, load_reference
from lightning_exposure.cli.models._sources import LoadedModel, load_any_model
from lightning_exposure.cli.models._tokenizers import find_tokenizer

__all__ = [
    "LoadedModel",
    "add_model_options",
    "add_reference_options",
    "check_plain",
    "find_tokenizer",
    "load_any_model",
    "load_given",
    "load_reference",
]
