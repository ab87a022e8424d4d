"""The options that say which model: the same for every command that reads one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from lightning_exposure.cli.models._sources import LoadedModel, load_any_model
from lightning_exposure.errors import ArgumentError

_KINDS = (
    "the directory of a run, a directory that save_pretrained() wrote (Hugging Face, also PEFT adapters), or a "
    "Lightning checkpoint"
)


def add_model_options(parser: ArgumentParser) -> None:
    """`--model`, and what is not in its directory."""
    parser.add_argument("--model", required=True, metavar="PATH", help=f"the model: {_KINDS}")
    parser.add_argument(
        "--model_class",
        metavar="MODULE:NAME",
        help="of a checkpoint: the LightningModule that it is of, as my.module:MyModel or path/file.py:MyModel; or a "
        "function without arguments that makes it",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="the tokenizer, if it is not beside the model: a file that save() wrote, a tokenizer.json of Hugging "
        "Face, or a directory with one",
    )
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="where the model runs: cpu, cuda, mps (default: %(default)s)"
    )


def add_reference_options(parser: ArgumentParser, purpose: str) -> None:
    """`--reference`, a second model of any kind."""
    parser.add_argument("--reference", metavar="PATH", help=purpose)
    parser.add_argument(
        "--reference_class", metavar="MODULE:NAME", help="as --model_class, for the reference (default: the same)"
    )
    parser.add_argument(
        "--reference_tokenizer",
        metavar="PATH",
        help="as --tokenizer, for the reference (default: the one beside it; else that of the model)",
    )


def load_given(options: Namespace) -> LoadedModel:
    """The model that `--model` names."""
    return load_any_model(options.model, options.device, model_class=options.model_class, tokenizer=options.tokenizer)


def load_reference(options: Namespace, loaded: LoadedModel) -> LoadedModel | None:
    """The model that `--reference` names; None without it.

    Args:
        options: Those of the command line.
        loaded: The model that is measured: the reference may have its class and its tokenizer.
    """
    if options.reference is None:
        for name in ("reference_class", "reference_tokenizer"):
            if getattr(options, name) is not None:
                raise ArgumentError(f"--{name} is given without --reference; expected both. Add --reference PATH.")
        return None
    return load_any_model(
        options.reference,
        options.device,
        option="--reference",
        model_class=options.reference_class,
        tokenizer=options.reference_tokenizer,
        alike=(options.model_class, loaded.tokenizer),
    )
