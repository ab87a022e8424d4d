"""Small tables for notebooks: what a result says of itself when it is the last line of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, rows: Iterable[Sequence[object]], *, columns: Sequence[str] = ()) -> str:
    """A heading and a table, as HTML in which nothing of the given is taken for markup.

    Args:
        title: What stands above the table.
        rows: The cells. Without columns, the first of each row is its heading.
        columns: The headings.

    Example:
        >>> html_table("a < b", [("bits", 3)])
        '<div><strong>a &lt; b</strong><table><tbody><tr><th>bits</th><td>3</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    head = f"<thead><tr>{head}</tr></thead>" if columns else ""
    body = "".join(f"<tr>{''.join(_cells(row, has_heading=not columns))}</tr>" for row in rows)
    return f"<div><strong>{escape(title)}</strong><table>{head}<tbody>{body}</tbody></table></div>"


def _cells(row: Sequence[object], *, has_heading: bool) -> Iterable[str]:
    for place, cell in enumerate(row):
        tag = "th" if has_heading and place == 0 else "td"
        yield f"<{tag}>{escape(str(cell))}</{tag}>"
