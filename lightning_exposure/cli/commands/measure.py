"""Measure how exposed the secrets in a trained model are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import NamedTuple

from lightning_exposure._checks import refusal
from lightning_exposure.cli._console import exposure_table, hushed, say, say_json, spinner
from lightning_exposure.cli._runs import TrainedModel, load_model, make_format
from lightning_exposure.cli.arguments import Parser, add_format_options, add_run_options
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import (
    METHODS,
    ExposureEstimate,
    PriorProbabilities,
    measure_exposure,
    prior_from_model,
)
from lightning_exposure.exposure.priors import OwnTokenizerPrior
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tree import SecretTree


class _Secret(NamedTuple):
    """A text to measure, and what to call it."""

    name: str
    text: str


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "measure",
        "Measure the exposure of the canaries of a run, or of secrets of your own, in a trained model: how many bits "
        "of guessing the model saves an attacker, and after how many guesses the attacker finds them. Exact where that "
        "is affordable, with a confidence interval where it is not.",
    )
    add_run_options(parser)
    parser.add_argument("--secret", nargs="+", metavar="TEXT", help="complete secrets to measure instead of canaries")
    add_format_options(parser)
    parser.add_argument(
        "--reference",
        metavar="CHECKPOINT",
        help="measure against the prior of this model, which has not seen the secrets: a run's model.ckpt, or the "
        "directory of the run (default: all secrets are equally likely)",
    )
    parser.add_argument(
        "--method", choices=METHODS.names(), default="auto", help="how to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=100_000,
        metavar="N",
        help="expansions of an exact count at most (default: %(default)s)",
    )
    parser.add_argument(
        "--samples", type=int, default=4096, metavar="N", help="walks of an estimate at most (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed of the walks (default: %(default)s)"
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="confidence level of the intervals (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    options = make_parser().parse_args(arguments)
    with hushed():
        trained = load_model(options.checkpoint, options.tokenizer, options.device)
        reference = None if options.reference is None else load_model(options.reference, None, options.device)
        wanted = _secrets(options, trained)
        names: list[str] = []
        estimates: list[ExposureEstimate] = []
        verdicts: list[Verdict] = []
        for format_, secrets in wanted.items():
            names += [secret.name for secret in secrets]
            found = _measure(trained, reference, format_, secrets, options)
            estimates += found
            verdicts += [verdict_of(estimate.secret, format_.size, estimate) for estimate in found]
    if options.json:
        triples = zip(names, estimates, verdicts, strict=True)
        say_json([{"canary": name or None, **found.to_dict(), "guesses": v.to_dict()} for name, found, v in triples])
    else:
        say(exposure_table(names, estimates, verdicts))
    return 0


def _measure(
    trained: TrainedModel,
    reference: TrainedModel | None,
    format: SecretFormat,
    secrets: Sequence[_Secret],
    options: Namespace,
) -> list[ExposureEstimate]:
    tree = trained.tree(format)
    prior = None if reference is None else _prior(reference, trained, tree)
    with spinner(f"measuring {format.name}") as update:
        return measure_exposure(
            tree,
            [secret.text for secret in secrets],
            options.method,
            options.budget,
            options.samples,
            options.seed,
            prior=prior,
            confidence=options.confidence,
            progress=lambda expansions, *_: update(f"{expansions:,} of at most {options.budget:,} nodes read"),
        )


def _prior(reference: TrainedModel, trained: TrainedModel, tree: SecretTree) -> SecretTree | PriorProbabilities:
    """The reference's tree, if it spells as the model does: then both are read in step; else what it says of texts."""
    same = reference.tokenizer == trained.tokenizer
    return prior_from_model(reference.model, tree) if same else OwnTokenizerPrior(reference.tree(tree.format))


def _secrets(options: Namespace, trained: TrainedModel) -> dict[SecretFormat, list[_Secret]]:
    """What to measure, by format: the canaries, or the secrets that were given."""
    format_ = make_format(options.format, options.pattern)
    if options.secret is None:
        if format_ is not None:
            raise ArgumentError(
                "--format or --pattern is given without --secret; expected both, because canaries have formats of "
                "their own. Add --secret TEXT, or leave it out."
            )
        canaries = trained.canaries(options.canaries)
        return {
            format_: [_Secret(canary.id, canary.text) for canary in group]
            for format_, group in canaries.by_format().items()
        }
    known = trained.known_canaries(options.canaries)
    formats = list(known.by_format()) if format_ is None else [format_]
    ids = {canary.text: canary.id for canary in known}
    wanted: dict[SecretFormat, list[_Secret]] = {}
    for text in options.secret:
        wanted.setdefault(_format_of(text, formats), []).append(_Secret(ids.get(text, ""), text))
    return wanted


def _format_of(text: str, formats: Sequence[SecretFormat]) -> SecretFormat:
    """The format that a text is a secret of; the only one if there is but one, whose error says what does not fit."""
    if not formats:
        raise refusal("--secret", text, "a --pattern or a --format beside it, because there are no canaries here")
    fitting = [format_ for format_ in formats if format_.fits(text)]
    if not fitting and len(formats) > 1:
        raise refusal("--secret", text, "a text of a format of the canaries", "Say which one it has with --pattern.")
    return fitting[0] if fitting else formats[0]
