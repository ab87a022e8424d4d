"""The texts within a few edits of a secret, as one deterministic graph: each of them once."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.tokenization.graphs.texts import Texts

_Place = tuple[int, int]
"""How much of the secret is written, and with how many edits."""


def by_substitution(before: str, secret: str, allowed: Sequence[frozenset[str]], edits: int) -> Texts:
    """The texts that differ from a secret in at most so many characters.

    Args:
        before: What stands before them all and is not edited.
        secret: The rest of the secret.
        allowed: For each of its characters, what may stand in its place.
        edits: How many characters may differ.
    """

    def steps(place: _Place) -> dict[str, _Place]:
        at, used = place
        if at == len(secret):
            return {}
        others = allowed[at] - {secret[at]} if used < edits else frozenset[str]()
        return {secret[at]: (at + 1, used), **dict.fromkeys(sorted(others), (at + 1, used + 1))}

    places: list[_Place] = [(0, 0)]
    number = {places[0]: 0}
    edges: list[dict[str, int]] = []
    for place in places:  # grows while it is walked
        edges.append({})
        for character, after in steps(place).items():
            if after not in number:
                number[after] = len(places)
                places.append(after)
            edges[-1][character] = number[after]
    return _behind(before, edges, [at == len(secret) for at, _ in places])


def by_levenshtein(before: str, secret: str, alphabet: frozenset[str], edits: int) -> Texts:
    """The texts that become a secret by substituting, leaving out or putting in at most so many characters.

    Args:
        before: What stands before them all and is not edited.
        secret: The rest of the secret.
        alphabet: The characters that may be put in or stand in place of others.
        edits: How many characters may be edited.
    """
    start = _with_omissions({0: 0}, len(secret), edits)
    rows = [start]
    number = {tuple(sorted(start.items())): 0}
    edges: list[dict[str, int]] = []
    for row in rows:  # grows while it is walked
        edges.append({})
        for character in sorted(alphabet | {secret[at] for at in row if at < len(secret)}):
            after = _levenshtein_step(row, character, secret, edits)
            if not after:
                continue
            key = tuple(sorted(after.items()))
            if key not in number:
                number[key] = len(rows)
                rows.append(after)
            edges[-1][character] = number[key]
    return _behind(before, edges, [len(secret) in row for row in rows])


def _levenshtein_step(row: dict[int, int], character: str, secret: str, edits: int) -> dict[int, int]:
    """For each beginning of the secret, the fewest edits that make it of what is written, one character later."""
    after: dict[int, int] = {}
    for at, used in row.items():
        fits = at < len(secret) and secret[at] == character
        candidates = [(at, used + 1), (at + 1, used + (not fits))]
        for place, cost in candidates:
            if place <= len(secret) and cost <= edits:
                after[place] = min(cost, after.get(place, cost))
    return _with_omissions(after, len(secret), edits)


def _with_omissions(row: dict[int, int], length: int, edits: int) -> dict[int, int]:
    """The same after leaving out characters of the secret."""
    for at in range(length):
        if at in row and row[at] < edits:
            row[at + 1] = min(row[at] + 1, row.get(at + 1, edits))
    return row


def _behind(before: str, edges: Sequence[dict[str, int]], accepting: Sequence[bool]) -> Texts:
    """A graph behind a fixed text."""
    shift = len(before)
    chain = [{character: position + 1} for position, character in enumerate(before)]
    moved = [{character: target + shift for character, target in outgoing.items()} for outgoing in edges]
    return Texts([*chain, *moved], [*[False] * shift, *accepting], 0)
