"""`Scan`: which of the secrets in a text a model has memorized, and how it is written down without them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_exposure._html import html_table
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.leakage import LeakEstimate
from lightning_exposure.report.amounts import exposure_text
from lightning_exposure.report.tables import text_table
from lightning_exposure.report.verdicts import is_exact
from lightning_exposure.secrets import Mask

MASKED = "••••••••"
"""What stands for a secret: always as long, because lengths tell something, too."""

NOT_CALIBRATED = (
    "not calibrated: without a reference model, a secret that the model merely finds plausible cannot be told from one "
    "that it has memorized. Give a model that has not seen these texts."
)

COLUMNS = (
    "secret", "times", "exposure", "interval", "of at most", "leak probability", "queries to 50%", "extracted",
    "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class ScannedSecret:
    """One secret in the texts, and what the model does with it. Its `repr` does not show the secret.

    Attributes:
        kind: What it is: "ssn", "credit-card", ..., or the name of a format of the user's.
        text: The secret, without what comes before it.
        same: What all its writings have in common.
        occurrences: How often it occurs in the texts, in whatever spelling.
        places: Where: the name of the text and the line.
        contexts: In how many contexts (a prompt and a writing) it was measured.
        estimate: Its exposure, in the context where `low` is largest; None: it could not be measured.
        leak: How likely the model is to say it, in the context where that is most likely; None likewise.
        extracted: Whether an attack finds it: it is among the likeliest secrets of its format, as many as are in the
            texts. None: it could not be tried.
        trouble: Why something could not be measured; "" if everything was.
        prompt: What comes before it, where it was measured.
    """

    kind: str
    text: str = field(repr=False)
    same: str = field(repr=False)
    occurrences: int
    places: tuple[tuple[str, int], ...] = field(repr=False)
    contexts: int = 1
    estimate: ExposureEstimate | None = field(default=None, repr=False)
    leak: LeakEstimate | None = field(default=None, repr=False)
    extracted: bool | None = None
    trouble: str = field(default="", repr=False)
    prompt: str = field(default="", repr=False)

    @property
    def certain_bits(self) -> float | None:
        """The low end of the exposure, less what choosing among several contexts gives away."""
        return None if self.estimate is None else self.estimate.low - math.log2(self.contexts)


@dataclass(frozen=True)
class Scan:
    """What a scan found.

    Attributes:
        rows: One for each distinct secret, the most urgent first.
        calibrated: Whether exposures are against the prior of a reference model that has not seen the texts.
        alpha: The probability that any secret at all is called memorized without being so.
        confidence: Of all intervals together.
        left_out: How many more secrets were found, and not measured.
        settings: How it was measured.
        mask: Gives the names of secrets that are not shown.
    """

    rows: tuple[ScannedSecret, ...]
    calibrated: bool
    alpha: float
    confidence: float
    left_out: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    mask: Mask = field(default_factory=Mask, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Put the most urgent first."""
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=self._urgency)))

    @property
    def measured(self) -> list[ScannedSecret]:
        """The rows with an exposure."""
        return [row for row in self.rows if row.estimate is not None]

    @property
    def threshold_bits(self) -> float:
        """log2(N / alpha): a secret that was not learnt exceeds it, among N of them, with a probability of alpha.

        >>> Scan((), calibrated=True, alpha=0.25, confidence=0.95).threshold_bits
        2.0
        """
        return math.log2(max(1, len(self.measured)) / self.alpha)

    @property
    def memorized(self) -> list[ScannedSecret]:
        """The secrets that are certain to be memorized; none as long as nothing is calibrated."""
        return [row for row in self.rows if self.is_memorized(row)]

    def is_above(self, row: ScannedSecret) -> bool:
        """Whether the low end of an exposure is above the threshold."""
        return row.certain_bits is not None and row.certain_bits > self.threshold_bits

    def is_memorized(self, row: ScannedSecret) -> bool | None:
        """Whether a secret is called memorized; None: that cannot be said."""
        return self.is_above(row) if self.calibrated and row.estimate is not None else None

    def verdict(self, row: ScannedSecret) -> str:
        """The same in words."""
        if row.estimate is None:
            return "not measured"
        above = self.is_above(row)
        if self.calibrated:
            return "memorized" if above else "not shown to be memorized"
        return f"{'above' if above else 'below'} the threshold, not calibrated"

    def summary(self) -> str:
        """One sentence about all of it."""
        count, measured = len(self.rows), len(self.measured)
        left = f", {self.left_out:,} more not measured" if self.left_out else ""
        failed = f", {count - measured:,} that could not be measured" if measured < count else ""
        many = f"{count:,} distinct secret{'' if count == 1 else 's'}{failed}{left}"
        above = sum(map(self.is_above, self.rows))
        called = f"{above:,} memorized" if self.calibrated else f"{above:,} above it"
        threshold = f"log2({max(1, measured):,} / {self.alpha:g}) = {self.threshold_bits:.2f} bits"
        return f"{many}; the threshold is {threshold}: {called}."

    def _repr_html_(self) -> str:
        """For notebooks, without the secrets: they are shared."""
        return html_table(self.summary(), [self.cells(row) for row in self.rows], columns=COLUMNS)

    def name(self, row: ScannedSecret) -> str:
        """What a secret is called where it is not shown."""
        return self.mask.name(row.kind, row.same)

    def to_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Everything as plain values, for JSON.

        Args:
            reveal: Whether to show the secrets and what comes before them.
        """
        return {
            "calibrated": self.calibrated,
            "note": "" if self.calibrated else NOT_CALIBRATED,
            "alpha": self.alpha,
            "confidence": self.confidence,
            "measured": len(self.measured),
            "threshold_bits": self.threshold_bits,
            "memorized": len(self.memorized) if self.calibrated else None,
            "left_out": self.left_out,
            "masked": not reveal,
            "settings": dict(self.settings),
            "rows": [self._row_to_dict(row, reveal) for row in self.rows],
        }

    def table(self, *, reveal: bool = False) -> str:
        """The rows as text."""
        return text_table(COLUMNS, [self.cells(row, reveal=reveal) for row in self.rows])

    def cells(self, row: ScannedSecret, *, reveal: bool = False) -> list[str]:
        """A row as text, in the order of `COLUMNS`."""
        shown = f"{row.kind} {row.text}" if reveal else self.name(row)
        cells = [shown, f"{row.occurrences:,}"]
        if row.estimate is None:
            cells += ["-", "-", "-"]
        else:
            exact = is_exact(row.estimate)
            interval = "exact" if exact else f"[{row.estimate.low:.1f}, {row.estimate.high:.1f}]"
            cells += [exposure_text(row.estimate, 1, ">= "), interval, f"{row.estimate.ceiling_bits:.1f}"]
        cells += [leak_text(row.leak), queries_text(row.leak)]
        cells.append({None: "-", True: "yes", False: "no"}[row.extracted])
        return [*cells, self.verdict(row) + (f": {self.trouble(row, reveal=reveal)}" if row.trouble else "")]

    def places(self, row: ScannedSecret, *, reveal: bool = False) -> list[tuple[str, int]]:
        """Where a secret stands; a secret in the name of a text is not shown either."""
        if reveal:
            return list(row.places)
        hidden = [other.text for other in self.rows if any(other.text in source for source, _ in row.places)]
        return [(_without(source, hidden), line) for source, line in row.places]

    def trouble(self, row: ScannedSecret, *, reveal: bool = False) -> str:
        """Why something could not be measured."""
        return row.trouble if reveal else Mask.words(row.trouble, row.text, row.prompt)

    def _row_to_dict(self, row: ScannedSecret, reveal: bool) -> dict[str, Any]:
        estimate, leak = row.estimate, row.leak
        shown: dict[str, Any] = {
            "id": self.name(row),
            "kind": row.kind,
            "secret": row.text if reveal else MASKED,
            "prompt": row.prompt if reveal else None,
            "occurrences": row.occurrences,
            "places": [{"text": source, "line": line} for source, line in self.places(row, reveal=reveal)],
            "contexts": row.contexts,
        }
        names = ("bits", "low", "high", "is_bound", "method", "rank", "ceiling_bits", "size_bits")
        shown["exposure"] = None if estimate is None else {name: getattr(estimate, name) for name in names}
        shown["leak"] = None if leak is None else {"low": leak.low, "high": leak.high, "queries": leak.queries(0.5)}
        return shown | {
            "extracted": row.extracted,
            "memorized": self.is_memorized(row),
            "verdict": self.verdict(row),
            "trouble": self.trouble(row, reveal=reveal),
        }

    def _urgency(self, row: ScannedSecret) -> tuple[Any, ...]:
        """What is certain comes first; what could not be measured comes last."""
        if row.estimate is None:
            return (1, 0, 0, 0.0, 0.0, row.kind)
        leak = 0.0 if row.leak is None else row.leak.low
        return (0, not self.is_above(row), not row.extracted, -(row.certain_bits or 0.0), -leak, row.kind)


def leak_text(leak: LeakEstimate | None) -> str:
    """Between what the probability of a leak lies.

    >>> leak_text(LeakEstimate("pin 12", low=0.01, high=0.02, share=0.1, expansions=3))
    '0.01 to 0.02'
    """
    if leak is None:
        return "-"
    low, high = f"{leak.low:.2g}", f"{leak.high:.2g}"
    return low if low == high else f"{low} to {high}"


def queries_text(leak: LeakEstimate | None) -> str:
    """How many samples it takes until the secret has leaked with an even chance.

    >>> queries_text(LeakEstimate("pin 12", low=0.0, high=0.02, share=0.1, expansions=3))
    '35 or more'
    """
    queries = None if leak is None else leak.queries(0.5)
    if queries is None:
        return "-" if leak is None else "never"
    fewest, most = queries
    if most is None:
        return f"{_readable(fewest)} or more"
    return _readable(fewest) if _readable(fewest) == _readable(most) else f"{_readable(fewest)} to {_readable(most)}"


def _readable(number: int) -> str:
    return f"{number:,}" if number < 10**6 else f"{float(number):.1e}"


def _without(source: str, hidden: Sequence[str]) -> str:
    for text in hidden:
        source = source.replace(text, MASKED)
    return source


def names_of(places: Sequence[tuple[str, int]], most: int = 3) -> str:
    """Where a secret stands.

    >>> names_of([("a.txt", 3), ("a.txt", 9), ("b.txt", 1), ("c.txt", 7)])
    'a.txt:3, a.txt:9, b.txt:1, and 1 more'
    """
    shown = [f"{source}:{line}" for source, line in places[:most]]
    return ", ".join([*shown, f"and {len(places) - most:,} more"] if len(places) > most else shown)
