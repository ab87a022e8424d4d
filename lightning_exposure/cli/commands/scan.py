"""Find the secrets in a text or a mailbox, and say which of them a model has memorized."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from lightning_exposure.cli._console import hushed, progress_bar, say, say_json
from lightning_exposure.cli._formats import format_help, make_format
from lightning_exposure.cli._outputs import check_result_file, write_result
from lightning_exposure.cli._texts import KINDS, read_texts
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.cli.models import add_model_options, add_reference_options, load_given, load_reference
from lightning_exposure.leakage import Decoder
from lightning_exposure.measuring.scanning import Reference, ScanSettings, scan_model
from lightning_exposure.report.pages.scan import write_scan
from lightning_exposure.report.scan import NOT_CALIBRATED, Scan
from lightning_exposure.secrets import Scanner
from lightning_exposure.secrets.scanner import Finding

_KEYS = ("calibrated", "threshold_bits", "memorized", "rows")
"""By these fields an earlier result in JSON is known, which may be replaced."""


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "scan",
        "Find the secrets in a text or a mailbox (card and social security numbers, addresses, keys, "
        "passwords, ...) and measure each in a model: exposure, probability of a leak, and whether an attack finds it. "
        "The most urgent come first, and none is shown unless you ask for it.",
    )
    parser.add_argument(
        "texts",
        metavar="TEXT_OR_MAILBOX",
        help="a text, a directory of texts, an mbox file, a maildir, or a directory with one file per message",
    )
    add_model_options(parser)
    add_reference_options(
        parser,
        "a model that has not seen the texts, of any kind that --model takes; without one nothing is calibrated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--reveal", action="store_true", help="show the secrets, in files that only you can read")
    parser.add_argument("--out", metavar="FILE", help="write a page (.html) or JSON (.json), too")
    parser.add_argument(
        "--alpha", type=float, default=0.05, metavar="P",
        help="the probability that any secret is called memorized and is not (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="measure only the N secrets that occur most often")
    parser.add_argument("--kind", choices=KINDS, default="auto", help="what the texts are (default: %(default)s)")
    parser.add_argument(
        "--format", action="append", default=[], metavar="FORMAT",
        help=f"look for this, too: {format_help()}; may be repeated".replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument(
        "--region", default="US", metavar="CC", help="country of phone numbers without one (default: %(default)s)"
    )
    _add_measurement(parser)
    return parser


def _add_measurement(parser: Parser) -> None:
    group, usual = parser.add_argument_group("how it is measured"), ScanSettings()
    group.add_argument(
        "--budget", type=int, default=usual.budget, metavar="N",
        help="expansions of each count, leak and search at most (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--samples",
        type=int,
        default=usual.samples,
        metavar="N",
        help="walks of an estimate (default: %(default)s)",
    )
    group.add_argument(
        "--confidence", type=float, default=usual.confidence, metavar="P",
        help="confidence level of all intervals together (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the walks (default: %(default)s)")
    group.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="sampling temperature (default: %(default)s)",
    )
    group.add_argument("--top_k", type=int, metavar="N", help="sample among the N likeliest tokens (default: all)")
    group.add_argument(
        "--top_p",
        type=float,
        metavar="P",
        help="sample among the likeliest tokens with total probability P (default: all)",
    )


def run(arguments: Sequence[str]) -> int:
    """Scan, measure, and print."""
    options = make_parser().parse_args(arguments)
    settings = ScanSettings(
        alpha=options.alpha, confidence=options.confidence, budget=options.budget, samples=options.samples,
        decoder=Decoder(options.temperature, options.top_k, options.top_p), limit=options.limit, seed=options.seed,
    )  # fmt: skip
    if options.out is not None:
        names = ("model", "tokenizer", "reference", "reference_tokenizer")
        inputs = {"TEXT_OR_MAILBOX": options.texts, **{f"--{name}": getattr(options, name) for name in names}}
        check_result_file(options.out, inputs, title="Scan: ", keys=_KEYS)
    with hushed():
        found = _find(options)
        scan = _measure(found, options, settings)
    if options.json:
        say_json(scan.to_dict(reveal=options.reveal))
    else:
        say(_in_words(scan, reveal=options.reveal))
    if options.out is not None:
        path = write_result(
            options.out,
            scan.to_dict(reveal=options.reveal),
            lambda path: write_scan(scan, path, reveal=options.reveal),
            private=options.reveal,
        )
        if not options.json:
            say(f"\nWritten: {path}")
    return 0


def _find(options: Namespace) -> dict[str, list[Finding]]:
    """What is found in the texts, by their names."""
    scanner = Scanner([make_format(given) for given in options.format], region=options.region)
    found = {}
    with progress_bar("scanning") as update:
        for name, text in read_texts(options.texts, options.kind, reveal=options.reveal):
            found[name] = scanner.find(text, on_count=update)
    return found


def _measure(found: dict[str, list[Finding]], options: Namespace, settings: ScanSettings) -> Scan:
    loaded = load_given(options)
    other = load_reference(options, loaded)
    reference = None if other is None else Reference(other.model, other.tokenizer)
    with progress_bar("measuring") as update:
        return scan_model(found, loaded.model, loaded.tokenizer, reference, settings, on_count=update)


def _in_words(scan: Scan, *, reveal: bool) -> str:
    parts = [scan.table(reveal=reveal)] if scan.rows else []
    parts.append(scan.summary())
    if not scan.calibrated:
        parts.append(NOT_CALIBRATED[0].upper() + NOT_CALIBRATED[1:])
    return "\n\n".join(parts)
