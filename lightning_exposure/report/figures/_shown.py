"""A figure that a notebook shows. Only for `new_figure`, because Matplotlib is imported with it."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that is a picture when it is the last line of a cell, also where pyplot was never imported.

    Notebooks learn to draw Matplotlib's own figures from pyplot, which our figures leave out.
    """

    def _repr_png_(self) -> bytes:
        """For notebooks."""
        file = BytesIO()
        self.savefig(file, format="png", facecolor=self.get_facecolor())
        return file.getvalue()
