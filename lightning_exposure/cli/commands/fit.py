"""Train a language model with canaries in its data, and measure them as it trains.

Every option of every part of the run can be set.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from jsonargparse import ArgumentError as ParseError
from jsonargparse import ArgumentParser, Namespace

from lightning_exposure.callbacks import ExposureCallback, ExtractionCallback
from lightning_exposure.cli._console import hushed
from lightning_exposure.cli._formats import format_help, make_format
from lightning_exposure.cli._runs import new_run_dir
from lightning_exposure.cli._training import Run
from lightning_exposure.cli.arguments import PROGRAM
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import METHODS
from lightning_exposure.extraction import ATTACKS
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import CanarySet

_EPOCHS = 20
_FROM_THE_RUN = {"canaries", "tokenizer", "model", "seed"}
"""What a callback is given by the run, and not by the user."""


def make_parser() -> ArgumentParser:
    """What can be asked for."""
    parser = ArgumentParser(
        prog=f"{PROGRAM} fit",
        usage=f"{PROGRAM} fit [--config FILE] [--print_config] [options]",
        description="Train a language model on a text with canaries in it, measure their exposure after every epoch, "
        "and attack the model at the end. Leaves the model, the measurements and a report in the run's directory.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="A YAML file with any of these options.")
    run = parser.add_argument_group("the run")
    run.add_argument("--run_dir", type=str, help="Directory for all results; null: runs/<date-time>.")
    run.add_argument(
        "--seed", type=int, default=0, help="Random seed of the canaries, their places, the weights and the walks."
    )
    run.add_argument("--wandb", type=str, metavar="PROJECT", help="Log to this project at Weights & Biases too.")
    canaries = parser.add_argument_group("the canaries")
    canaries.add_argument(
        "--format", type=str, default="ssn", help=f"What they look like: {format_help()}.".replace("%", "%%")
    )
    canaries.add_argument(
        "--repetitions",
        type=int,
        nargs="+",
        default=[1, 4, 16],
        help="Draw one canary for each number, and insert it that many times.",
    )
    for name, part, skipped in (
        ("model", LanguageModel, {"vocab_size"}),
        ("data", TextDataModule, {"canaries", "seed"}),
        ("exposure", ExposureCallback, {*_FROM_THE_RUN, "method"}),
        ("extraction", ExtractionCallback, {*_FROM_THE_RUN, "verbose", "algorithm"}),
        ("trainer", pl.Trainer, {"logger", "default_root_dir"}),
    ):
        parser.add_class_arguments(part, name, skip=skipped, instantiate=False, sub_configs=True)
    # Not those that a type checker knows, but all there are: --import may have registered more.
    parser.add_argument("--exposure.method", choices=METHODS.names(), default="auto", help="How exposure is measured.")
    parser.add_argument(
        "--extraction.algorithm", choices=ATTACKS.names(), default="shortest_path", help="How the model is attacked."
    )
    parser.add_argument(
        "--extraction.settings", type=dict[str, Any], default={}, help="Settings of the algorithm, such as {width: 50}."
    )
    # The run's own table takes the place of a progress bar, and one checkpoint is written at the end.
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    parser.set_defaults({f"trainer.{name}": value for name, value in {**quiet, "max_epochs": _EPOCHS}.items()})
    return parser


def run(arguments: Sequence[str]) -> int:
    """Train, with everything that belongs to it."""
    # Lightning uses deprecated names of jsonargparse; the user cannot do anything about it.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    with hushed():
        parser = make_parser()
        _make_run(parser, _parse(parser, arguments)).train()
    return 0


def _parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    try:
        return parser.parse_args(list(arguments))
    except ParseError as error:
        raise ArgumentError(f"{error} (see '{parser.prog} --help')") from error


def _make_run(parser: ArgumentParser, options: Namespace) -> Run:
    """Everything of a run, before any of it is written down."""
    directory = new_run_dir(options.run_dir)
    canaries = CanarySet.draw(make_format(options.format), repetitions=options.repetitions, seed=options.seed)
    # To do it all again, somewhere else.
    portable = copy.deepcopy(options)
    portable.run_dir = None
    config = parser.dump(portable)
    made = _instantiated(parser, options)
    data = TextDataModule(**made.data, canaries=canaries, seed=options.seed)
    data.setup()
    torch.manual_seed(options.seed)
    settings = made.extraction.pop("settings")
    return Run(
        directory=directory,
        canaries=canaries,
        data=data,
        model=LanguageModel(**made.model, vocab_size=data.tokenizer.vocab_size),
        exposure=ExposureCallback(canaries, data.tokenizer, **made.exposure, seed=options.seed),
        extraction=ExtractionCallback(canaries, data.tokenizer, **made.extraction, verbose=False, **settings),
        trainer=dict(made.trainer),
        settings={"command": "fit", "seed": options.seed, "trainer": yaml.safe_load(config)["trainer"]},
        config=config,
        wandb=options.wandb,
    )


def _instantiated(parser: ArgumentParser, options: Namespace) -> Namespace:
    """The options with the objects in them made, such as the Trainer's own callbacks."""
    try:
        made: Namespace = parser.instantiate_classes(options)
    except (ValueError, TypeError) as error:
        raise ArgumentError(str(error)) from error
    return made
