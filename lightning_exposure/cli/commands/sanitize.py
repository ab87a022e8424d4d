"""Find the lines of a text that a model learns by heart, and write the text without them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from lightning_exposure.cli._console import hushed, say, say_json, spinner
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.defences.sanitizing import ReferenceTraining, Sanitization, sanitize
from lightning_exposure.defences.sanitizing.sanitization import check_new
from lightning_exposure.errors import MissingFileError
from lightning_exposure.modules import Architecture


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "sanitize",
        "Find the lines of a text that a model learns by heart: the text is divided, a model is trained on each half, "
        "and the lines that cost much more where they were held out than where they were seen come first. Writes what "
        "to remove and the text without it. Only line numbers and scores are printed.",
    )
    parser.add_argument("text", metavar="TEXT", help="a UTF-8 text file")
    parser.add_argument("--out", metavar="DIR", help="write cleaned.txt, removed.txt and sanitization.json in there")
    parser.add_argument(
        "--share",
        type=float,
        default=0.1,
        metavar="P",
        help="which share of the lines to remove (default: %(default)s)",
    )
    parser.add_argument(
        "--folds", type=int, default=2, metavar="N", help="how many parts and models (default: %(default)s)"
    )
    parser.add_argument(
        "--unit",
        choices=("line", "paragraph"),
        default="line",
        help="what is removed as a whole (default: %(default)s)",
    )
    parser.add_argument(
        "--per", choices=("symbol", "sample"), default="symbol",
        help="compare bits per character, or per line (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no_group", action="store_true", help="let copies of a line fall into different parts")
    parser.add_argument("--largest_group", type=int, metavar="N", help="lines in a group of copies (default: 1 in 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the division and the models (default: 0)")
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="how many lines to list (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--reveal", action="store_true", help="show the lines themselves")
    _add_model(parser)
    return parser


def _add_model(parser: Parser) -> None:
    group, usual = parser.add_argument_group("the models"), ReferenceTraining()
    group.add_argument("--architecture", choices=get_args(Architecture), default="lstm", help="(default: %(default)s)")
    for name, default in (("hidden_size", 128), ("num_layers", 1)):
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help="(default: %(default)s)")
    group.add_argument("--lr", type=float, default=0.003, metavar="X", help="learning rate (default: %(default)s)")
    for name, words in (
        ("epochs", "how often all lines are read, twice each"),
        ("window", "characters that are read at once"),
        ("batch_size", "windows in a batch"),
    ):
        default = getattr(usual, name)
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{words} (default: %(default)s)")
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, mps, auto (default: %(default)s)")


def run(arguments: Sequence[str]) -> int:
    """Train, rank, print and write."""
    options = make_parser().parse_args(arguments)
    if not Path(options.text).is_file():
        raise MissingFileError(
            f"TEXT is {options.text!r}, which is no file; expected a UTF-8 text file. Check the path."
        )
    if options.out is not None:
        check_new(Path(options.out), "--out")  # before hours of training
    with hushed(), spinner("sanitizing") as update:
        result = sanitize(
            Path(options.text), _training(options), folds=options.folds, share=options.share, per=options.per,
            group=not options.no_group, largest_group=options.largest_group, unit=options.unit, seed=options.seed,
            on_stage=update,
        )  # fmt: skip
    files = [] if options.out is None else result.save(options.out)
    _say(result, files, options)
    return 0


def _training(options: Namespace) -> ReferenceTraining:
    names = ("architecture", "hidden_size", "num_layers", "lr")
    accelerator = "gpu" if options.device == "cuda" else options.device
    return ReferenceTraining(
        {name: getattr(options, name) for name in names}, epochs=options.epochs, window=options.window,
        batch_size=options.batch_size, seed=options.seed, accelerator=accelerator,
    )  # fmt: skip


def _say(result: Sanitization, files: Sequence[Path], options: Namespace) -> None:
    if options.json:
        say_json({**result.to_dict(reveal=options.reveal), "files": [str(path) for path in files]})
        return
    say(result.table(options.top, reveal=options.reveal))
    say(f"\n{result.summary()}")
    for path in files:
        say(f"Written: {path}")
