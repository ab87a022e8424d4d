"""What is said of all canaries together, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lightning_exposure.report.verdicts import (
    HOLDS,
    LEAKS,
    NO_EVIDENCE,
    UNKNOWN,
    Verdict,
    found_in_words,
    ruled_out_in_words,
)
from lightning_exposure.secrets import Canary, CanarySet

_NAMES_SHOWN = 4
_NOTHING = "Nothing is known: no exposure was measured, and no attack was made"


def summarize(canaries: CanarySet, verdicts: Mapping[str, Verdict]) -> str:
    """How many guesses find the inserted secrets; then, after semicolons, what is unknown, and the controls.

    Args:
        canaries: Those that were inserted, and those that were not: controls, and what was held out.
        verdicts: By the id of the canary.
    """
    if not len(canaries):
        return _NOTHING
    secrets = [canary for canary in canaries if canary.copies]
    controls = [canary for canary in canaries if not canary.copies]
    clauses = _of_secrets(secrets, verdicts)
    for mood, what in ((LEAKS, "can be extracted"), (HOLDS, "ruled out"), (UNKNOWN, "unknown")):
        named = [canary.id for canary in controls if verdicts[canary.id].mood == mood]
        if named:
            clauses.append(f"{'control' if len(named) == 1 else 'controls'} {what}: {listed(named)}")
    return "; ".join(clauses)


def _of_secrets(secrets: Sequence[Canary], verdicts: Mapping[str, Verdict]) -> list[str]:
    by_mood: dict[str, list[str]] = {LEAKS: [], HOLDS: [], UNKNOWN: []}
    for canary in secrets:
        by_mood[verdicts[canary.id].mood].append(canary.id)
    found, open_ones = by_mood[LEAKS], by_mood[UNKNOWN]
    of = f"of {len(secrets):,} {'secret' if len(secrets) == 1 else 'secrets'}"
    if found:
        levels = {verdicts[key].found_within for key in found}
        words = found_in_words(verdicts[key] for key in found)
        clauses = [f"{len(found):,} {of} can be extracted{':' if len(levels) > 1 else ''} {words}"]
        return [*clauses, *([f"unknown: {listed(open_ones)}"] if open_ones else [])]
    if not secrets:
        return ["No secret was inserted"]
    if not open_ones:
        return [f"No secret can be extracted {ruled_out_in_words(verdicts[key] for key in by_mood[HOLDS])}"]
    if all(verdicts[key].why == NO_EVIDENCE for key in open_ones) and not by_mood[HOLDS]:
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
