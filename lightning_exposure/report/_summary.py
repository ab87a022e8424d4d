"""What is said of all canaries together, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
