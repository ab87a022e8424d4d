"""Put runs beside each other; or train with more and less privacy, and compare how exposed a secret becomes."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lightning_exposure._checks import whole_number
from lightning_exposure._files import write_whole
from lightning_exposure.callbacks import DifferentialPrivacy
from lightning_exposure.cli._console import hushed, one_thread, say, search_progress, spinner
from lightning_exposure.cli._runs import new_run_dir
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.data import TextDataModule
from lightning_exposure.data.corpora import python_topics, read_text
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import measure_exposure
from lightning_exposure.extraction import extract
from lightning_exposure.modules import LanguageModel, OptimizerName
from lightning_exposure.privacy.steps.accounting import ACCOUNTANTS
from lightning_exposure.report import MissingExtraError
from lightning_exposure.report.comparison import COLUMNS, CSV_NAME, Comparison, Outcome
from lightning_exposure.report.pages.comparison import write_comparison
from lightning_exposure.report.pages.side_by_side import write_side_by_side
from lightning_exposure.report.side_by_side import SideBySide
from lightning_exposure.report.tables import text_table
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
from lightning_exposure.tree import SecretTree

MODEL: dict[str, Any] = {"hidden_size": 128, "embedding_size": 64, "num_layers": 2}
DATA: dict[str, Any] = {"window": 64, "batch_size": 64, "whole_canaries": True}
LEARNING_RATES: dict[OptimizerName, float] = {"rmsprop": 0.003, "sgd": 2.0, "adam": 0.003, "adamw": 0.003}
"""For plain and for private training alike: only the privacy setting differs between rows."""

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
ATTACK_BUDGET = 200_000
PICTURE = "comparison.png"


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "compare",
        "Put any runs beside each other: what was done against memorization in each, its epsilon and its losses, how "
        "exposed its canaries are, and how many guesses find them. Without runs: train one model on one text with one "
        "made-up social security number in it, several times, without privacy, with clipped gradients only, and with "
        "more and more noise, and compare these.",
        epilog=f"The model is an LSTM of {MODEL['num_layers']} layers of {MODEL['hidden_size']} units on batches of "
        f"about {DATA['batch_size']} windows of {DATA['window']} characters; the text is the topics of Python's own "
        "help(). Leaves a table, a picture, a CSV file and report.html in the directory of the results.",
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="two or more directories of runs; all other options but --run_dir train"
    )
    parser.add_argument(
        "--noise_multiplier",
        type=float,
        nargs="+",
        default=[0.0, 0.1, 0.5, 1.0],
        metavar="X",
        help="one or more; 0 only clips (default: 0 0.1 0.5 1). A run without privacy always comes first",
    )
    parser.add_argument(
        "--optimizer",
        nargs="+",
        default=["rmsprop", "sgd"],
        choices=sorted(LEARNING_RATES),
        metavar="NAME",
        help=f"one or more of {', '.join(sorted(LEARNING_RATES))} (default: rmsprop sgd)",
    )
    parser.add_argument(
        "--max_grad_norm",
        type=float,
        default=1.0,
        metavar="C",
        help="clip gradients to this norm (default: %(default)s)",
    )
    parser.add_argument(
        "--delta", type=float, default=1e-5, help="delta of the privacy guarantee (default: %(default)s)"
    )
    parser.add_argument(
        "--accountant", choices=ACCOUNTANTS, default="prv", help="what computes epsilon (default: %(default)s)"
    )
    parser.add_argument(
        "--max_epochs", type=int, default=20, metavar="N", help="epochs per training run (default: %(default)s)"
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=4,
        metavar="N",
        help="how often the number is in the text (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: %(default)s)")
    parser.add_argument("--text", metavar="FILE", help="another text, in UTF-8 (default: Python's help topics)")
    parser.add_argument(
        "--characters",
        type=int,
        default=300_000,
        metavar="N",
        help="how many characters of the text to train on (default: %(default)s)",
    )
    parser.add_argument("--run_dir", metavar="DIR", help="directory for all results (default: runs/<date-time>)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Train them all, say what came out, and leave it in the directory."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.runs:
        return _stand_side_by_side(parser, options)
    for name in ("max_epochs", "repetitions", "characters"):
        whole_number(f"--{name}", getattr(options, name), at_least=1)
    with hushed(), one_thread():
        directory = new_run_dir(options.run_dir)
        grid = [(optimizer, noise) for optimizer in dict.fromkeys(options.optimizer) for noise in _noises(options)]
        # What is wrong with a setting or with the text shows before hours of training.
        for _, noise in grid:
            _privacy(noise, options)
        _make_data(options)
        comparison = Comparison([], settings=_settings(options))
        say(f"{len(grid)} training runs of {options.max_epochs} epochs each; run directory: {directory}\n")
        for place, (optimizer, noise) in enumerate(grid, start=1):
            with spinner(f"training {place} of {len(grid)}: {optimizer}, {_in_words(noise)}") as update:
                outcome = train_one(optimizer, noise, options, update)
            comparison.outcomes.append(outcome)
            comparison.save(directory)  # whatever happens to the rest
            say(_line(comparison, first=place == 1))
        _conclude(comparison, directory)
    return 0


def _stand_side_by_side(parser: Parser, options: Namespace) -> int:
    """Compare runs that there are."""
    for name, value in vars(options).items():
        if name not in ("runs", "run_dir") and value != parser.get_default(name):
            raise ArgumentError(
                f"--{name} is given with runs to compare; expected one or the other, because it is for training. Leave "
                "out the runs, or the option."
            )
    with hushed():
        comparison = SideBySide.load(options.runs)
        directory = new_run_dir(options.run_dir)
        say(f"{comparison.table()}\n")
        write_whole(directory / CSV_NAME, comparison.to_csv())
        try:
            say(f"Report: {write_side_by_side(comparison, directory)}")
            from lightning_exposure.report.figures.run_exposures import exposures_of_runs
            from lightning_exposure.report.figures.style import save

            save(exposures_of_runs(comparison), directory / PICTURE)
        except MissingExtraError as error:
            say(f"No report: {error}")
    remarks = f" {comparison.remarks}" if comparison.remarks else ""
    say(f"Verdict: {comparison.verdict}.{remarks}")
    return 0


def _noises(options: Namespace) -> list[float | None]:
    """Plain training first, then the others as they were given."""
    return [None, *dict.fromkeys(options.noise_multiplier)]


def _privacy(noise: float | None, options: Namespace) -> DifferentialPrivacy | None:
    if noise is None:
        return None
    return DifferentialPrivacy(
        noise_multiplier=noise,
        max_grad_norm=options.max_grad_norm,
        delta=options.delta,
        accountant=options.accountant,
        seed=options.seed,
        verbose=False,
    )


def _make_data(options: Namespace) -> tuple[TextDataModule, Canary]:
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[options.repetitions], seed=options.seed)
    text = python_topics() if options.text is None else read_text(options.text, "--text")
    data = TextDataModule(text[: options.characters], canaries=canaries, seed=options.seed, **DATA)
    data.setup()
    return data, canaries[0]


def train_one(optimizer: OptimizerName, noise: float | None, options: Namespace, update: Any) -> Outcome:
    """One training run and what came of it."""
    data, canary = _make_data(options)
    torch.manual_seed(options.seed)
    model = LanguageModel(
        "lstm", vocab_size=data.tokenizer.vocab_size, optimizer=optimizer, lr=LEARNING_RATES[optimizer], **MODEL
    )
    privacy = _privacy(noise, options)
    trainer = pl.Trainer(
        max_epochs=options.max_epochs,
        limit_val_batches=0,
        callbacks=[_Epochs(update), *([] if privacy is None else [privacy])],
        **TRAINER,
    )
    # Of this process on one thread: what else runs on the machine does not count.
    start = time.process_time()
    trainer.fit(model, data)
    seconds = time.process_time() - start
    tree = SecretTree(model, canary.format, data.tokenizer)
    update("measuring")
    (estimate,) = measure_exposure(tree, [canary.text], seed=options.seed)
    attack = extract(tree, "shortest_path", budget=ATTACK_BUDGET, progress=search_progress(update))
    return Outcome(
        optimizer=optimizer,
        noise_multiplier=noise,
        epsilon=float("inf") if privacy is None else privacy.epsilon,
        test_loss=_test_loss(model, data),
        exposure=estimate,
        extracted=bool(attack.candidates) and attack.candidates[0].text == canary.text,
        proven=attack.optimal,
        seconds=seconds,
    )


def _test_loss(model: LanguageModel, data: TextDataModule) -> float:
    """Of the part of the text that was kept out of the training."""
    (metrics,) = pl.Trainer(**TRAINER).validate(model, data, verbose=False)
    return float(metrics["val_loss"])


class _Epochs(pl.Callback):
    """Says which epoch is running."""

    def __init__(self, update: Any) -> None:
        self._update = update

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._update(f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}")


def _in_words(noise: float | None) -> str:
    return "no privacy" if noise is None else "clip only" if noise == 0 else f"noise {noise:g}"


def _settings(options: Namespace) -> dict[str, Any]:
    given = {name: value for name, value in vars(options).items() if name not in ("run_dir", "text")}
    learning_rates = {name: LEARNING_RATES[name] for name in options.optimizer}
    text = options.text or "Python's help topics"
    return {"command": "compare", **given, "text": text, "lr": learning_rates, "model": MODEL, "data": DATA}


def _line(comparison: Comparison, *, first: bool) -> str:
    """The newest row; the widths are those of cells that are as long as they get."""
    widest = ["rmsprop", "noise 0.05", "infinite", "0.000", ">= 29.9", "29.9 to 29.9 (95%)", "29.9",
              "not within 1,000,000 (95%)", "1000"]  # fmt: skip
    lines = text_table(COLUMNS, [widest, comparison.rows()[-1]]).splitlines()
    return "\n".join([*lines[:2], lines[3]]) if first else lines[3]


def _conclude(comparison: Comparison, directory: Path) -> None:
    say()
    try:
        say(f"Report: {write_comparison(comparison, directory)}")
        _draw(comparison, directory / PICTURE)
    except MissingExtraError as error:
        say(f"No report: {error} Then: lightning-exposure report {directory}")
    copies = comparison.settings["repetitions"]
    if copies > 1:
        say(
            f"Epsilon is per record. The number is in {copies} of them, which are promised {copies} times as much only."
        )
    say(f"Verdict: {comparison.verdict}.")


def _draw(comparison: Comparison, path: Path) -> None:
    from lightning_exposure.report.figures.against_epsilon import exposure_against_epsilon
    from lightning_exposure.report.figures.style import save

    save(exposure_against_epsilon(comparison), path)
