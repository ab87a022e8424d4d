"""What differs between a secret and a near miss."""

from __future__ import annotations


def marked(text: str, secret: str) -> tuple[int, str]:
    """The number of edits between a text and a secret, and the text with what differs in brackets.

    >>> marked("pin 1274", "pin 1234")
    (1, 'pin 12[7]4')
    >>> marked("pin 134", "pin 1234")
    (1, 'pin 1[]34')
    """
    rows = _distances(text, secret)
    at, of = len(text), len(secret)
    edits = rows[at][of]
    pieces: list[str] = []
    while at or of:
        if at and of and rows[at][of] == rows[at - 1][of - 1] + (text[at - 1] != secret[of - 1]):
            at, of = at - 1, of - 1
            pieces.append(text[at] if text[at] == secret[of] else f"[{text[at]}]")
        elif at and rows[at][of] == rows[at - 1][of] + 1:
            at -= 1
            pieces.append(f"[{text[at]}]")
        else:
            of -= 1
            pieces.append("[]")
    return edits, "".join(reversed(pieces))


def _distances(text: str, secret: str) -> list[list[int]]:
    """The fewest edits between all beginnings of the two."""
    rows = [list(range(len(secret) + 1))]
    for i, character in enumerate(text, 1):
        row = [i]
        for j, other in enumerate(secret, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (character != other)))
        rows.append(row)
    return rows
