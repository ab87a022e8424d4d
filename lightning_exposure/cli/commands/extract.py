"""Attack a trained model: which secrets does it give away?"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_exposure.cli._console import hushed, say, say_json, search_progress, spinner
from lightning_exposure.cli._formats import add_format_option, make_format
from lightning_exposure.cli._given_texts import read_one, unspoken
from lightning_exposure.cli.arguments import Parser, add_canaries_option, add_output_options
from lightning_exposure.cli.models import LoadedModel, add_model_options, load_given
from lightning_exposure.errors import ArgumentError, SecretError
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
from lightning_exposure.secrets import CanarySet, Redaction, SecretFormat

_INTERRUPTED = 130
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_TARGET = "target"
_PREFIX = "setting."
"""Keeps the settings of the attacks apart from the options of the command."""


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "extract",
        "Attack a trained model: find the secrets of a format that are most likely under it. The default attack ends "
        "with a proof that no other secret is more likely. Ctrl-C ends it early and shows what was found so far.",
    )
    add_model_options(parser)
    add_canaries_option(parser)
    add_format_option(parser)
    parser.add_argument(
        "--algorithm", choices=ATTACKS.names(), default="shortest_path", help="the attack (default: %(default)s)"
    )
    parser.add_argument(
        "--top_k", type=int, metavar="N", help="candidates per format (default: as many as it has canaries, at least 1)"
    )
    parser.add_argument(
        "--known",
        metavar="TEXT",
        help="what the attacker already knows: the prompt and the first characters; '@FILE' and '-' read it from a "
        "file and from standard input",
    )
    add_output_options(parser, "candidates that are no canaries")
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
    if _TARGET in given:
        given[_TARGET] = read_one(given[_TARGET], f"--{_TARGET}")
    known = attack_settings(options.algorithm)
    return {name: known[name].parse(text, f"--{name}") for name, text in given.items()}


def run(arguments: Sequence[str]) -> int:
    """Attack every format and print what was found."""
    options = make_parser().parse_args(arguments)
    settings = _given_settings(options)
    known = None if options.known is None else read_one(options.known, "--known")
    found: dict[str, Extraction] = {}
    verdicts: dict[str, dict[str, Verdict]] = {}
    with hushed(), unspoken([text for text in (known, settings.get(_TARGET)) if text]):
        loaded = load_given(options)
        canaries, formats = _targets(options, loaded, known)
        shown = Redaction(canaries, reveal=options.reveal)
        for format_ in formats:
            top_k = options.top_k if options.top_k is not None else max(1, len(canaries.by_format().get(format_, [])))
            attack = _attack(loaded, format_, options.algorithm, top_k, known, settings)
            verdicts[format_.name] = _verdicts(format_, attack, canaries)
            found[format_.name] = attack.redacted(shown, format_)
            if attack.ended_by == "interrupt":
                break
    if options.json:
        ids = {canary.text: canary.id for canary in canaries}
        say_json({name: _with_canaries(attack, ids, verdicts[name]) for name, attack in found.items()})
    else:
        say(extraction_table(found, canaries, shown))
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
    loaded: LoadedModel,
    format: SecretFormat,
    algorithm: Any,
    top_k: int,
    known: str | None,
    settings: Mapping[str, Any],
) -> Extraction:
    tree = loaded.tree(format)
    with spinner(f"attacking {format.name}") as update:
        return extract(tree, algorithm, top_k, known=known, progress=search_progress(update), **settings)


def _targets(options: Namespace, loaded: LoadedModel, known: str | None) -> tuple[CanarySet, list[SecretFormat]]:
    """The canaries, to tell them among the candidates, and the formats to attack."""
    if options.format is not None:
        canaries, formats = loaded.known_canaries(options.canaries), [make_format(options.format)]
    else:
        canaries = loaded.canaries(options.canaries)
        formats = list(canaries.by_format())
    if not formats:
        raise ArgumentError("--canaries has no canary; expected at least one. Say with --format what to look for.")
    if known is not None:
        fitting = [format_ for format_ in formats if format_.acceptor().walk(known) is not None]
        if not fitting:
            patterns = " or ".join(repr(format_.pattern) for format_ in formats)
            raise SecretError(f"--known (not shown) is no beginning of {patterns}; expected one. Correct it.")
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
