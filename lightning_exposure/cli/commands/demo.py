"""See it work: train a small model on text with planted secrets, and extract them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lightning_exposure._checks import whole_number
from lightning_exposure.callbacks import ExposureCallback, ExtractionCallback
from lightning_exposure.cli._console import hushed, one_thread, say
from lightning_exposure.cli._runs import new_run_dir
from lightning_exposure.cli._training import Run
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.data import TextDataModule
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import CanarySet, SecretFormat

EPOCHS = 10
REPETITIONS = (1, 4, 16)
MODEL: dict[str, Any] = {"hidden_size": 128, "embedding_size": 64, "num_layers": 2, "optimizer": "rmsprop", "lr": 0.003}
DATA: dict[str, Any] = {"window": 64, "batch_size": 64, "whole_canaries": True}
ATTACK: dict[str, Any] = {"algorithm": "shortest_path", "budget": 1_000_000}
TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "demo",
        "Plant three made-up social security numbers in half a megabyte of English (once, 4 times and 16 times), train "
        "an LSTM on it, watch how exposed they become, and attack the model. Takes one to three minutes on two cores.",
        epilog=f"The model is an LSTM of {MODEL['num_layers']} layers of {MODEL['hidden_size']} units (about 250,000 "
        f"parameters), trained with RMSProp at a learning rate of {MODEL['lr']} on batches of {DATA['batch_size']} "
        f"windows of {DATA['window']} characters. The text is the topics of Python's own help(). No window cuts a "
        "planted number in two; otherwise the numbers are treated like the rest of the text.",
    )
    parser.add_argument("--run_dir", metavar="DIR", help="directory for all results (default: runs/<date-time>)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: %(default)s)")
    parser.add_argument(
        "--max_epochs", type=int, default=EPOCHS, metavar="N", help="number of training epochs (default: %(default)s)"
    )
    parser.add_argument("--text", metavar="FILE", help="another text, in UTF-8 (default: Python's help topics)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Train, measure, attack, report."""
    options = make_parser().parse_args(arguments)
    whole_number("--max_epochs", options.max_epochs, at_least=1)
    with hushed():
        made = _make_run(options.run_dir, options.seed, options.max_epochs, options.text)
        say(f"An LSTM with {made.parameters:,} parameters; planted in its training text:")
        for canary in made.canaries:
            say(f"  {canary.text}, {'once' if canary.repetitions == 1 else f'{canary.repetitions} times'}")
        say()
        with one_thread():
            made.train()
    return 0


def _make_run(directory: str | None, seed: int, max_epochs: int, text: str | None) -> Run:
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=REPETITIONS, seed=seed)
    data = TextDataModule(text, canaries=canaries, seed=seed, **DATA)
    data.setup()
    torch.manual_seed(seed)
    return Run(
        directory=new_run_dir(directory),
        canaries=canaries,
        data=data,
        model=LanguageModel("lstm", vocab_size=data.tokenizer.vocab_size, **MODEL),
        # On a slow machine as on a fast one: no measurement is cut short, so that everybody sees the same numbers.
        exposure=ExposureCallback(canaries, data.tokenizer, seed=seed, max_share=None),
        extraction=ExtractionCallback(canaries, data.tokenizer, verbose=False, **ATTACK),
        trainer={"max_epochs": max_epochs, **TRAINER},
        settings={"command": "demo", "seed": seed, "max_epochs": max_epochs, "text": text or "Python's help topics"},
    )
