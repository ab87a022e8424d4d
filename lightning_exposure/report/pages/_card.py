"""The section of a model card about memorization: Markdown that can be published, without any secret."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightning_exposure import __version__
from lightning_exposure.report._advice import advice
from lightning_exposure.report.amounts import exposure_text, interval_text
from lightning_exposure.report.pages import _answers as answers
from lightning_exposure.report.pages._contents import canary_rows
from lightning_exposure.report.record import RunRecord

FILE_NAME = "model-card.md"
"""What the section is called in the directory of its run."""

_CANARIES_SHOWN = 20


def model_card(record: RunRecord) -> str:
    """The section as Markdown.

    Args:
        record: The run. Its canaries are named by their ids; their texts are not in it.

    Example:
        >>> from lightning_exposure.secrets import CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4]))
        >>> print(model_card(record).splitlines()[2])
        **Nothing is known: no exposure was measured, and no attack was made.**
    """
    parts = ["## Memorization and privacy", f"**{_escaped(record.verdict)}.**"]
    if record.interrupted:
        parts.append(f"The training was interrupted ({_escaped(record.interrupted)}): this is not about its end.")
    parts.append(_list(answers.subject_rows(record)))
    guesses = answers.guess_rows(record)
    if guesses:
        parts += [
            "### How many guesses find a secret",
            "Made-up secrets (canaries) were put into the training data. Somebody who guesses in the order of the "
            "model's preference finds so many of those that were inserted:",
            _table(("Guesses", "Find", "Do not find", "Unknown", "Blind guesses would find"), guesses),
        ]
    parts += [_escaped(words) for words in answers.chance_in_words(record)]
    parts += _exposures(record)
    parts += _promise(record)
    for title, rows in (
        ("Gate", answers.gate_rows(record)),
        ("Other defences", answers.defence_rows(record)),
        ("Secrets in the training texts", answers.scan_rows(record)),
    ):
        if rows:
            parts += [f"### {title}", _list(rows)]
    parts += ["### What to do next", _list(advice(record))]
    parts.append(f"Made by lightning-exposure {__version__}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _exposures(record: RunRecord) -> list[str]:
    rows = [
        (
            row.canary.id,
            f"{row.canary.copies:,}",
            f"{exposure_text(row.estimate)} of {row.estimate.ceiling_bits:.2f}" if row.estimate else "not measured",
            interval_text(row.estimate) if row.estimate else "",
            str(row.verdict),
        )
        for row in canary_rows(record)[:_CANARIES_SHOWN]
    ]
    if not rows:
        return []
    left = len(record.canaries) - len(rows)
    table = _table(("Canary", "Copies", "Exposure (bits)", "Interval", "Guesses that find it"), rows)
    return ["### Exposure", table, f"And {left:,} more canaries, less exposed." if left > 0 else ""]


def _promise(record: RunRecord) -> list[str]:
    rows = answers.privacy_rows(record)
    parts = ["### Differential privacy"]
    if not rows:
        parts.append("The model was trained without differential privacy.")
    else:
        parts += [_list(rows), _escaped(answers.promise_in_words(record))]
        groups = answers.group_rows(record)
        if groups:
            parts.append(_table(("Copies of a record", "Epsilon of all", "Delta of all"), groups))
    return [*parts, _escaped(answers.audit_in_words(record))]


def _list(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- **{_escaped(name)}**: {_escaped(value)}" for name, value in rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    r"""Text in which nothing is taken for markup, on one line.

    >>> print(_escaped("a|b *c* <script> [x](y) pin-4x"))
    a\|b \*c\* \<script\> \[x\](y) pin-4x
    """
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))
