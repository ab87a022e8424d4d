"""Attack a trained model: which secrets does it give away?"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure.cli._console import hushed, say, say_json, search_progress, spinner
from lightning_exposure.cli._runs import TrainedModel, load_model, make_format
from lightning_exposure.cli.arguments import Parser, add_format_options, add_run_options
from lightning_exposure.errors import ArgumentError
from lightning_exposure.extraction import (
    ATTACKS,
    CERTAIN,
    AttackSetting,
    Extraction,
    attack_settings,
    check_settings,
    extract,
)
from lightning_exposure.report.tables import extraction_table, verdict_table
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.secrets import CanarySet, SecretFormat

_INTERRUPTED = 130
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_PREFIX = "setting."
"""Keeps the settings of the attacks apart from the options of the command."""


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "extract",
        "Attack a trained model: find the secrets of a format that are most likely under it. The default attack ends "
        "with a proof that no other secret is more likely. Ctrl-C ends it early and shows what was found so far.",
    )
    add_run_options(parser)
    add_format_options(parser)
    parser.add_argument(
        "--algorithm", choices=ATTACKS.names(), default="shortest_path", help="the attack (default: %(default)s)"
    )
    parser.add_argument(
        "--top_k", type=int, metavar="N", help="candidates per format (default: as many as it has canaries, at least 1)"
    )
    parser.add_argument(
        "--known", metavar="TEXT", help="what the attacker already knows: the prompt and the first characters"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_settings(parser)
    return parser


def _add_settings(parser: Parser) -> None:
    """An option for every setting of every attack, those of the user's own included."""
    group = parser.add_argument_group("settings of the algorithms")
    for name, by_attack in _settings_by_name().items():
        words = _help(by_attack).replace("%", "%%")
        try:
            group.add_argument(f"--{name}", dest=f"{_PREFIX}{name}", metavar=_metavar(by_attack), help=words)
        except argparse.ArgumentError as error:
            raise ArgumentError(
                f"{name} is a setting of {' and '.join(by_attack)}; expected another name, because --{name} is an "
                "option of the command. Rename the setting."
            ) from error


def _settings_by_name() -> dict[str, dict[str, AttackSetting]]:
    """Every setting that some attack has, and what it is for each of these."""
    found: dict[str, dict[str, AttackSetting]] = {}
    for attack in ATTACKS.names():
        for name, setting in attack_settings(attack).items():
            found.setdefault(name, {})[attack] = setting
    return found


def _metavar(by_attack: Mapping[str, AttackSetting]) -> str:
    first, *others = by_attack.values()
    if any(other.kind != first.kind for other in others):
        return "VALUE"
    return f"{{{','.join(map(str, first.choices))}}}" if first.choices else _METAVARS.get(first.kind, "VALUE")


def _help(by_attack: Mapping[str, AttackSetting]) -> str:
    """What a setting means, and what it is by default, for each of the attacks that have it."""
    told: dict[str, list[str]] = {}
    for attack, setting in by_attack.items():
        told.setdefault(setting.help, []).append(attack)
    meanings = [f"{', '.join(names)}: {text[:1].lower()}{text[1:]}".removesuffix(": ") for text, names in told.items()]
    defaults = dict.fromkeys("none" if it.default is None else str(it.default) for it in by_attack.values())
    return f"{'; '.join(meanings)} (default: {', '.join(defaults)})"


def _given_settings(options: Namespace) -> dict[str, Any]:
    """The settings on the command line, as values of the attack that was chosen."""
    given = {
        name.removeprefix(_PREFIX): text
        for name, text in vars(options).items()
        if name.startswith(_PREFIX) and text is not None
    }
    check_settings(options.algorithm, given)
    known = attack_settings(options.algorithm)
    return {name: known[name].parse(text, f"--{name}") for name, text in given.items()}


def run(arguments: Sequence[str]) -> int:
    """Attack every format and print what was found."""
    options = make_parser().parse_args(arguments)
    settings = _given_settings(options)
    with hushed():
        trained = load_model(options.checkpoint, options.tokenizer, options.device)
        canaries, formats = _targets(options, trained)
        found: dict[str, Extraction] = {}
        for format_ in formats:
            top_k = options.top_k if options.top_k is not None else max(1, len(canaries.by_format().get(format_, [])))
            found[format_.name] = _attack(trained, format_, options, top_k, settings)
            if found[format_.name].ended_by == "interrupt":
                break
    verdicts = {
        format_.name: _verdicts(format_, found[format_.name], canaries) for format_ in formats if format_.name in found
    }
    if options.json:
        ids = {canary.text: canary.id for canary in canaries}
        say_json({name: _with_canaries(attack, ids, verdicts[name]) for name, attack in found.items()})
    else:
        say(extraction_table(found, canaries))
        judged = {key: verdict for group in verdicts.values() for key, verdict in group.items()}
        if judged:
            say(f"\n{verdict_table(judged)}\n")
        for name, attack in found.items():
            say(f"{name}: {in_words(attack)}")
    return _INTERRUPTED if any(attack.ended_by == "interrupt" for attack in found.values()) else 0


def in_words(attack: Extraction) -> str:
    """What an attack proved.

    >>> in_words(Extraction((), False, 12.0, "expansions", 9, 0.1, "shortest_path", {}))
    'not proven (ended by expansions): every secret costs at least 12.00 bits.'
    """
    if attack.optimal:
        proven = "proven optimal: no other secret of this format is more likely."
        return proven if attack.rests_on in ("", CERTAIN) else f"{proven} This rests on a sample: {attack.rests_on}."
    bound = "there may be more likely secrets"
    if attack.lower_bound > 0:
        bound = f"{'any other' if attack.candidates else 'every'} secret costs at least {attack.lower_bound:.2f} bits"
    return f"not proven (ended by {attack.ended_by}): {bound}."


def _attack(
    trained: TrainedModel, format: SecretFormat, options: Namespace, top_k: int, settings: Mapping[str, Any]
) -> Extraction:
    tree = trained.tree(format)
    with spinner(f"attacking {format.name}") as update:
        return extract(
            tree, options.algorithm, top_k, known=options.known, progress=search_progress(update), **settings
        )


def _targets(options: Namespace, trained: TrainedModel) -> tuple[CanarySet, list[SecretFormat]]:
    """The canaries, to tell them among the candidates, and the formats to attack."""
    format_ = make_format(options.format, options.pattern)
    if format_ is not None:
        return trained.known_canaries(options.canaries), [format_]
    canaries = trained.canaries(options.canaries)
    formats = list(canaries.by_format())
    if not formats:
        raise ArgumentError(
            "--canaries has no canary; expected at least one. Say what to look for: --pattern or --format."
        )
    if options.known is not None and len(formats) > 1:
        fitting = [format_ for format_ in formats if format_.acceptor().walk(options.known) is not None]
        if not fitting:
            raise refusal("--known", options.known, "how a format of the canaries begins")
        formats = fitting
    return canaries, formats


def _verdicts(format: SecretFormat, attack: Extraction, canaries: CanarySet) -> dict[str, Verdict]:
    """What the attack says of the canaries that it could have found."""
    return {
        canary.id: verdict_of(canary.text, format.size, attack=attack)
        for canary in canaries
        if format.fits(canary.text)
    }


def _with_canaries(attack: Extraction, ids: Mapping[str, str], verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """An attack as plain values; every candidate says which canary it is, if any, and every canary what was found."""
    content = attack.to_dict()
    content["candidates"] = [{**fields, "canary": ids.get(fields["text"])} for fields in content["candidates"]]
    content["canaries"] = {key: verdict.to_dict() for key, verdict in verdicts.items()}
    return content
