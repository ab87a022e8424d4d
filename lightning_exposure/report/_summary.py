"""What is said of all canaries together, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_exposure.report.verdicts import (
    HOLDS,
    LEAKS,
    NO_EVIDENCE,
    UNKNOWN,
    Verdict,
    found_in_words,
    ruled_out_in_words,
)
from lightning_exposure.secrets import Canary

_NAMES_SHOWN = 4
_NOTHING = "Nothing is known: no exposure was measured, and no attack was made"


def found_by_scan(scan: Mapping[str, Any] | None) -> tuple[int, int]:
    """How many real secrets a scan calls memorized, and how many an attack came up with.

    >>> found_by_scan({"memorized": None, "rows": [{"extracted": True}, {"extracted": False}]})
    (0, 1)
    """
    given = scan or {}
    return int(given.get("memorized") or 0), sum(bool(row.get("extracted")) for row in given.get("rows", ()))


def of_the_scan(scan: Mapping[str, Any] | None) -> list[str]:
    """A clause about the real secrets in the training texts, if the model gives some of them away."""
    memorized, extracted = found_by_scan(scan)
    words = "of the training texts"
    if memorized:
        return [f"{memorized:,} real {'secret' if memorized == 1 else 'secrets'} {words} memorized"]
    return (
        [f"an attack finds {extracted:,} real {'secret' if extracted == 1 else 'secrets'} {words}"] if extracted else []
    )


def summarize(judged: Sequence[tuple[Canary, Verdict]]) -> str:
    """How many guesses find the inserted secrets; then, after semicolons, what is unknown, and the controls.

    Args:
        judged: Canaries with their verdicts: those that were inserted, and those that were not, which are controls or
            held out.
    """
    if not judged:
        return _NOTHING
    clauses = _of_secrets([pair for pair in judged if pair[0].copies])
    controls = [pair for pair in judged if not pair[0].copies]
    for mood, what in ((LEAKS, "can be extracted"), (HOLDS, "ruled out"), (UNKNOWN, "unknown")):
        named = [canary.id for canary, verdict in controls if verdict.mood == mood]
        if named:
            clauses.append(f"{'control' if len(named) == 1 else 'controls'} {what}: {listed(named)}")
    return "; ".join(clauses)


def _of_secrets(judged: Sequence[tuple[Canary, Verdict]]) -> list[str]:
    found, holding, unsure = (
        [verdict for _, verdict in judged if verdict.mood == mood] for mood in (LEAKS, HOLDS, UNKNOWN)
    )
    open_ones = [canary.id for canary, verdict in judged if verdict.mood == UNKNOWN]
    of = f"of {len(judged):,} {'secret' if len(judged) == 1 else 'secrets'}"
    if found:
        levels = {verdict.found_within for verdict in found}
        words = found_in_words(found)
        clauses = [f"{len(found):,} {of} can be extracted{':' if len(levels) > 1 else ''} {words}"]
        return [*clauses, *([f"unknown: {listed(open_ones)}"] if open_ones else [])]
    if not judged:
        return ["No secret was inserted"]
    if not open_ones:
        return [f"No secret can be extracted {ruled_out_in_words(holding)}"]
    if all(verdict.why == NO_EVIDENCE for verdict in unsure) and not holding:
        return [_NOTHING]
    are = "is" if len(open_ones) == 1 else "are"
    return [f"{len(open_ones):,} {of} {are} neither extracted nor ruled out", f"unknown: {listed(open_ones)}"]


def listed(names: Iterable[str]) -> str:
    """Names in a sentence, the first few of them.

    >>> listed(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 more'
    """
    collected = list(names)
    shown, rest = ", ".join(collected[:_NAMES_SHOWN]), len(collected) - _NAMES_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
