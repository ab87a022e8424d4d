"""Audit generated texts: what they give away about the canaries in the data of their generator."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_exposure._checks import check_confidence, check_delta, number, whole_number
from lightning_exposure.cli._console import hushed, say, say_json, spinner
from lightning_exposure.cli._outputs import check_result_file, write_result
from lightning_exposure.cli._records import HOW, read_records
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.errors import MissingFileError
from lightning_exposure.measuring import audited
from lightning_exposure.report.pages.release import write_release
from lightning_exposure.secrets import CanarySet
from lightning_exposure.synthetic import audit_synthetic
from lightning_exposure.synthetic.text.scorers import SCORERS

_KEYS = ("epsilon_lower", "assumption", "scorers", "canaries")
"""By these fields an earlier result in JSON is known, which may be replaced."""


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "synthetic",
        "Audit texts that a model has generated, without the model: a lower bound on the epsilon of the release, and "
        "how many canaries and stretches of training texts stand in it. Fair coins must have said which canaries were "
        "in the training data, as CanarySet.draw(..., holdout=0.5) tosses them. Canaries are masked unless you ask. "
        "The exit code is 0, 1 if --promised is contradicted, and 2 for an error.",
    )
    parser.add_argument("--texts", required=True, metavar="FILE", help=f"the generated texts; {HOW}")
    parser.add_argument(
        "--canaries",
        required=True,
        metavar="FILE",
        help="the canaries of the generator's training data, with their coins, as CanarySet.save wrote them",
    )
    parser.add_argument("--train", metavar="FILE", help="the training texts, to count copies; in the same form")
    parser.add_argument(
        "--held_out",
        metavar="FILE",
        help="texts of the same source that were not trained on: what is copied by chance",
    )
    parser.add_argument(
        "--promised", type=float, metavar="EPSILON", help="the epsilon that the generator is said to keep"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--reveal", action="store_true", help="show the canaries, in files that only you can read")
    parser.add_argument("--out", metavar="FILE", help="write a page (.html) or JSON (.json), too")
    _add_measurement(parser)
    return parser


def _add_measurement(parser: Parser) -> None:
    group = parser.add_argument_group("how it is measured")
    group.add_argument(
        "--scorers", nargs="+", choices=SCORERS.names(), default=list(SCORERS.names()), metavar="NAME",
        help=f"what is trained on the texts: {', '.join(SCORERS.names())} (default: all)",
    )  # fmt: skip
    group.add_argument("--delta", type=float, default=1e-5, metavar="P", help="of the bound (default: %(default)s)")
    group.add_argument(
        "--confidence", type=float, default=0.95, metavar="P",
        help="confidence level of the bound, and of each interval (default: %(default)s)",
    )  # fmt: skip
    for name, default, words in (
        ("edits", 2, "how many characters of a near copy may differ"),
        ("span", 40, "how many characters of a training text make a copy"),
        ("seed", 0, "of all random numbers"),
    ):
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{words} (default: {default})")


def run(arguments: Sequence[str]) -> int:
    """Audit, and print."""
    options = make_parser().parse_args(arguments)
    _check(options)
    canaries = CanarySet.load(options.canaries)
    audited(canaries)  # before the texts are read
    texts = read_records(options.texts, "--texts")
    train, held_out = (
        None if path is None else read_records(path, f"--{name}")
        for name, path in (("train", options.train), ("held_out", options.held_out))
    )
    with hushed(), spinner("auditing") as update:
        found = audit_synthetic(
            texts, canaries, train=train, held_out=held_out, scorers=options.scorers, delta=options.delta,
            confidence=options.confidence, edits=options.edits, span=options.span, seed=options.seed, on_stage=update,
        )  # fmt: skip
    if options.json:
        say_json(found.to_dict(reveal=options.reveal))
    else:
        parts = (found.table(reveal=options.reveal), found.summary(), found.span_note())
        say("\n\n".join(filter(None, parts)))
    if options.out is not None:
        path = write_result(
            options.out,
            found.to_dict(reveal=options.reveal),
            lambda path: write_release(found, path, reveal=options.reveal),
            private=options.reveal,
        )
        if not options.json:
            say(f"\nWritten: {path}")
    contradicted = options.promised is not None and found.epsilon_lower > options.promised
    if contradicted and not options.json:
        say(f"\nThis contradicts the epsilon of {options.promised:g} that was promised.")
    return 1 if contradicted else 0


def _check(options: Namespace) -> None:
    """Refuse what cannot be, before anything is read."""
    check_delta(options.delta, pure=True)
    check_confidence(options.confidence)
    for name, least in (("edits", 0), ("span", 2), ("seed", 0)):
        whole_number(f"--{name}", getattr(options, name), at_least=least)
    if options.promised is not None:
        number("--promised", options.promised, at_least=0)
    if not Path(options.canaries).is_file():
        raise MissingFileError(
            f"--canaries is {options.canaries!r}, which is no file; expected the canaries of the generator's training "
            "data, as CanarySet.save wrote them. Check the path."
        )
    if options.out is not None:
        inputs = {f"--{name}": getattr(options, name) for name in ("canaries", "texts", "train", "held_out")}
        check_result_file(options.out, inputs, title="Generated texts: ", keys=_KEYS)
