"""Measure how exposed the secrets in a trained model are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lightning_exposure.cli._console import exposure_table, hushed, say, say_json, spinner
from lightning_exposure.cli._formats import add_format_option, make_format
from lightning_exposure.cli._given_texts import HOW, format_of, read_given, unspoken
from lightning_exposure.cli.arguments import Parser, add_canaries_option, add_output_options
from lightning_exposure.cli.models import (
    LoadedModel,
    add_model_options,
    add_reference_options,
    load_given,
    load_reference,
)
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import METHODS, ExposureEstimate, measure_exposure
from lightning_exposure.exposure.priors import prior_of_tree
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.secrets import CanarySet, Redaction, SecretFormat


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
    add_model_options(parser)
    add_canaries_option(parser)
    add_format_option(parser)
    parser.add_argument(
        "--secret", nargs="+", metavar="TEXT", help=f"complete secrets to measure instead of canaries; {HOW}"
    )
    add_reference_options(
        parser,
        "measure against what this model expects, which has not seen the secrets; any kind that --model takes "
        "(default: all secrets are equally likely)",
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
    add_output_options(parser, "your secrets")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Measure and print."""
    options = make_parser().parse_args(arguments)
    with hushed():
        given = None if options.secret is None else read_given(options.secret, "--secret")
        format_ = None if options.format is None else make_format(options.format)
        loaded = load_given(options)
        reference = load_reference(options, loaded)
        known = _canaries(options, loaded, given)
        wanted = _by_format(known, format_, given)
        shown = Redaction(known, reveal=options.reveal)
        names: list[str] = []
        estimates: list[ExposureEstimate] = []
        verdicts: list[Verdict] = []
        with unspoken(given or ()):
            for format_, secrets in wanted.items():
                found = _measure(loaded, reference, format_, secrets, options)
                names += [secret.name for secret in secrets]
                verdicts += [verdict_of(estimate.secret, format_.size, estimate) for estimate in found]
                estimates += [replace(each, secret=shown.text(each.secret, format_)) for each in found]
    if options.json:
        triples = zip(names, estimates, verdicts, strict=True)
        say_json([{"canary": name or None, **found.to_dict(), "guesses": v.to_dict()} for name, found, v in triples])
    else:
        say(exposure_table(names, estimates, verdicts))
    return 0


def _measure(
    loaded: LoadedModel,
    reference: LoadedModel | None,
    format: SecretFormat,
    secrets: Sequence[_Secret],
    options: Namespace,
) -> list[ExposureEstimate]:
    tree = loaded.tree(format)
    prior = None if reference is None else prior_of_tree(reference.tree(format), tree)
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


def _canaries(options: Namespace, loaded: LoadedModel, given: Sequence[str] | None) -> CanarySet:
    """The canaries of the model; there may be none if secrets are given."""
    if given is not None:
        return loaded.known_canaries(options.canaries)
    if options.format is not None:
        raise ArgumentError(
            "--format is given without --secret; expected both, because canaries have formats of their own. Add "
            "--secret TEXT, or leave it out."
        )
    return loaded.canaries(options.canaries)


def _by_format(
    canaries: CanarySet, format: SecretFormat | None, given: Sequence[str] | None
) -> dict[SecretFormat, list[_Secret]]:
    """What to measure, by format: the canaries, or the secrets that were given."""
    if given is None:
        return {
            format_: [_Secret(canary.id, canary.text) for canary in group]
            for format_, group in canaries.by_format().items()
        }
    formats = list(canaries.by_format()) if format is None else [format]
    if not formats:
        raise ArgumentError(
            "--secret is given without --format, and there are no canaries here that have one; expected what the "
            "secret looks like. Add --format, such as --format 'my code is ####'."
        )
    ids = {canary.text: canary.id for canary in canaries}
    wanted: dict[SecretFormat, list[_Secret]] = {}
    for place, text in enumerate(given, start=1):
        format_ = format_of(text, formats, "--secret", f"number {place} of {len(given)}")
        wanted.setdefault(format_, []).append(_Secret(ids.get(text, ""), text))
    return wanted
