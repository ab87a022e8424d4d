"""Train a language model with canaries in its data, and measure them as it trains.

Every option of every part of the run can be set.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from jsonargparse import ArgumentError as ParseError
from jsonargparse import ArgumentParser, Namespace

from lightning_exposure._checks import whole_number
from lightning_exposure.callbacks import AuditCallback, DifferentialPrivacy, ExposureCallback, ExtractionCallback
from lightning_exposure.cli._audit_windows import with_windows
from lightning_exposure.cli._console import hushed
from lightning_exposure.cli._formats import format_help, make_format
from lightning_exposure.cli._runs import CONFIG, new_run_dir
from lightning_exposure.cli._training import Run
from lightning_exposure.cli.arguments import PROGRAM
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import ArgumentError, MissingFileError
from lightning_exposure.exposure import METHODS
from lightning_exposure.extraction import ATTACKS
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import CanarySet, SecretFormat

_EPOCHS = 20
_TITLES = {
    "model": "the model",
    "data": "the text",
    "exposure": "measuring exposure during training",
    "extraction": "the attack after training",
    "privacy": "differential privacy of one window (with --privacy.noise_multiplier or --privacy.target_epsilon)",
    "audit": "an audit of the privacy (with --audit.canaries)",
    "trainer": "Lightning's Trainer",
}
_FROM_THE_RUN = {"canaries", "tokenizer", "model", "seed"}
"""What a callback is given by the run, and not by the user."""
_OF_USERS = {"unit", "user", "max_records_per_user"}
"""What is not offered: nobody knows whose the windows of a text are."""


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
    run.add_argument(
        "--resume",
        type=str,
        metavar="DIR",
        help="Go on with a run that was interrupted: its directory. Its own options are used; only the number of "
        "epochs and --wandb may be given beside it.",
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
        ("exposure", ExposureCallback, {*_FROM_THE_RUN, "method", "prior"}),
        ("extraction", ExtractionCallback, {*_FROM_THE_RUN, "verbose", "algorithm"}),
        ("privacy", DifferentialPrivacy, {"max_grad_norm", "delta", "history", "verbose", *_OF_USERS}),
        ("audit", AuditCallback, {*_FROM_THE_RUN, "name"}),
        ("trainer", pl.Trainer, {"logger", "default_root_dir"}),
    ):
        parser.add_class_arguments(part, name, skip=skipped, instantiate=False, sub_configs=True)
    _add_more(parser)
    # The run's own table takes the place of a progress bar, and one checkpoint is written at the end.
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    parser.set_defaults({f"trainer.{name}": value for name, value in {**quiet, "max_epochs": _EPOCHS}.items()})
    return parser


def _add_more(parser: ArgumentParser) -> None:
    """What the signatures of the parts do not say, or say for Python only."""
    groups: Any = parser.groups
    for name, title in _TITLES.items():
        groups[name].title = title
    # Not those that a type checker knows, but all there are: --import may have registered more.
    groups["exposure"].add_argument(
        "--exposure.method", choices=METHODS.names(), default="auto", help="How exposure is measured."
    )
    groups["exposure"].add_argument(
        "--exposure.prior",
        type=str,
        metavar="CHECKPOINT",
        help="Measure against this checkpoint of the model, from before it saw the canaries; null: all secrets are "
        "equally likely.",
    )
    groups["extraction"].add_argument(
        "--extraction.algorithm", choices=ATTACKS.names(), default="shortest_path", help="How the model is attacked."
    )
    groups["extraction"].add_argument(
        "--extraction.settings", type=dict[str, Any], default={}, help="Settings of the algorithm, such as {width: 50}."
    )
    groups["privacy"].add_argument(
        "--privacy.max_grad_norm", type=float, default=1.0, help="What the gradient of each window is clipped to."
    )
    groups["privacy"].add_argument(
        "--privacy.delta",
        type=float,
        default=1e-5,
        help="The probability with which epsilon need not hold. Epsilon is for one window of the text. Nobody knows "
        "whose it is: privacy of users, DifferentialPrivacy(unit='user'), is for data that name them, and not offered "
        "here.",
    )
    groups["audit"].add_argument(
        "--audit.canaries",
        type=int,
        default=0,
        help="How many more canaries are drawn for an audit, a fair coin deciding for each whether it is trained on, "
        "as a window of its own; 0: no audit.",
    )


def run(arguments: Sequence[str]) -> int:
    """Train, with everything that belongs to it."""
    # Lightning uses deprecated names of jsonargparse; the user cannot do anything about it.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    with hushed():
        parser = make_parser()
        options = _parse(parser, arguments)
        if options.resume is not None:
            options = _options_of(options.resume, parser, arguments)
        _make_run(parser, options).train()
    return 0


def _parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    try:
        return parser.parse_args(list(arguments))
    except ParseError as error:
        raise ArgumentError(f"{error} (see '{parser.prog} --help')") from error


def _options_of(directory: str, parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """The options that a run began with, and those few that may be given when it goes on."""
    config = Path(directory) / CONFIG
    if not config.exists():
        raise MissingFileError(
            f"--resume is {directory!r}, but {config} does not exist; expected the directory of a run. Check the path."
        )
    began = _parse(parser, ["--config", str(config)])
    options = _parse(parser, ["--config", str(config), *arguments])
    free = {"resume", "wandb", "config", "trainer.max_epochs"}
    for name, value in vars(options.as_flat()).items():
        before = getattr(began.as_flat(), name, None)
        if name not in free and value != before:
            raise ArgumentError(
                f"--{name} is {value!r}, and was {before!r} when the run began; expected the same, or nothing. Leave "
                "it out beside --resume, or begin a new run."
            )
    options.run_dir = directory
    return options


def _make_run(parser: ArgumentParser, options: Namespace) -> Run:
    """Everything of a run, before any of it is written down."""
    resumed = options.resume is not None
    directory = Path(options.run_dir) if resumed else new_run_dir(options.run_dir)
    format_ = make_format(options.format)
    canaries = CanarySet.draw(format_, repetitions=options.repetitions, seed=options.seed)
    # To do it all again, somewhere else.
    portable = copy.deepcopy(options)
    portable.run_dir = portable.resume = None
    config = parser.dump(portable)
    made = _instantiated(parser, options)
    privacy, audit = _privacy(made.privacy), _audit(made.audit, canaries, format_, options.seed)
    text = TextDataModule(**made.data, canaries=canaries, seed=options.seed)
    text.setup()
    torch.manual_seed(options.seed)
    settings = made.extraction.pop("settings")
    return Run(
        directory=directory,
        canaries=canaries,
        data=text if audit is None else with_windows(text, audit.canaries, options.seed),
        model=LanguageModel(**made.model, vocab_size=text.tokenizer.vocab_size),
        exposure=ExposureCallback(canaries, text.tokenizer, **made.exposure, seed=options.seed),
        extraction=ExtractionCallback(canaries, text.tokenizer, **made.extraction, verbose=False, **settings),
        trainer=dict(made.trainer),
        settings={"command": "fit", "seed": options.seed, "trainer": yaml.safe_load(config)["trainer"]},
        config=config,
        wandb=options.wandb,
        privacy=privacy,
        audit=audit,
        resumed=resumed,
    )


def _privacy(options: Mapping[str, Any]) -> DifferentialPrivacy | None:
    """What makes the training private, if that is asked for."""
    if options["noise_multiplier"] is not None or options["target_epsilon"] is not None:
        return DifferentialPrivacy(**options)
    _refuse_alone("privacy", options, "--privacy.noise_multiplier or --privacy.target_epsilon")
    return None


def _audit(options: Mapping[str, Any], canaries: CanarySet, format: SecretFormat, seed: int) -> AuditCallback | None:
    """What audits the training, with canaries of its own, if that is asked for."""
    count = whole_number("--audit.canaries", options["canaries"], at_least=0)
    if not count:
        _refuse_alone("audit", options, "--audit.canaries")
        return None
    named = SecretFormat.from_dict({**format.to_dict(), "name": "audit"})
    drawn = CanarySet.draw(named, repetitions=[1] * (count + len(canaries)), seed=seed + 1, holdout=0.5)
    others = [canary for canary in drawn if canary.text not in canaries.texts]
    rest = {name: value for name, value in options.items() if name != "canaries"}
    return AuditCallback(CanarySet(others[:count]), **rest)


def _refuse_alone(group: str, options: Mapping[str, Any], needed: str) -> None:
    """Refuse options of something that is off."""
    usual = make_parser().get_defaults()[group]
    for name, value in options.items():
        if (tuple(value) if isinstance(value, list) else value) != usual[name]:  # lists are what tuples became
            raise ArgumentError(f"--{group}.{name} is {value!r} without {needed}; expected both. Add it.")


def _instantiated(parser: ArgumentParser, options: Namespace) -> Namespace:
    """The options with the objects in them made, such as the Trainer's own callbacks."""
    try:
        made: Namespace = parser.instantiate_classes(options)
    except (ValueError, TypeError) as error:
        raise ArgumentError(str(error)) from error
    return made
