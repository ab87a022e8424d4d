"""What all pages of HTML share: the templates, figures in every size and theme, and where a page is written."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_exposure import __version__
from lightning_exposure._checks import refusal
from lightning_exposure.report.figures.style import THEMES, ThemeName, require, to_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE_NAME = "report.html"
"""What a report is called in the directory of its run."""

_WIDTHS = {"wide": 8.0, "narrow": 4.0}
"""In inches: text that can be read on a desk is too small when the figure shrinks to a phone."""


@dataclass(frozen=True)
class Picture:
    """A figure in every theme and width, as data addresses.

    Attributes:
        title: The heading above it.
        alt: What it shows, for those who do not see it.
        caption: How to read it.
        sources: The images, by width and theme: "wide-light", "narrow-dark", ...
    """

    title: str
    alt: str
    caption: str
    sources: dict[str, str]


def in_all_sizes(draw: Callable[[ThemeName, float], Figure]) -> dict[str, str]:
    """A figure as data addresses: as images, because the ids inside inlined SVGs would clash.

    Args:
        draw: Makes the figure for a theme and a width in inches.
    """
    return {
        f"{label}-{theme}": "data:image/svg+xml;base64,"
        + base64.b64encode(to_bytes(draw(theme, width), "svg")).decode("ascii")
        for label, width in _WIDTHS.items()
        for theme in THEMES
    }


def render_page(template: str, **values: Any) -> str:
    """A page as a string.

    Args:
        template: The file with its template.
        **values: What the template names.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    jinja = require("jinja2")
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(_read_template),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.get_template(template).render(version=__version__, **values)
    return page


def page_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """The file to write a page to: the one given, or `report.html` in the directory given.

    Args:
        path: What was given.
        name: What the argument is called.

    Raises:
        ArgumentError: It is a file that is no page: it would be lost.

    >>> page_path("runs/v1.2").name, page_path("mine.html").name
    ('report.html', 'mine.html')
    """
    if not isinstance(path, str | os.PathLike):
        raise refusal(name, path, "the path of a directory, or of a page that ends in .html")
    given = Path(path)
    if given.suffix.lower() in (".html", ".htm") and not given.is_dir():
        return given
    if given.is_file():
        raise refusal(name, str(given), "a directory, or a page that ends in .html", "A file is not overwritten.")
    return given / FILE_NAME


def _read_template(name: str) -> str:
    return resources.files("lightning_exposure.report.pages").joinpath(name).read_text(encoding="utf-8")
