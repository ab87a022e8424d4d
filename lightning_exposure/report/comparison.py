"""`Comparison`: one secret, one text, several privacy settings, and what came out of each training run."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure._files import Field, plain, read_json, write_json, write_whole
from lightning_exposure._html import html_table
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report._reading import optional_number, read_estimate
from lightning_exposure.report.amounts import exposure_text, interval_text
from lightning_exposure.report.tables import text_table
from lightning_exposure.report.verdicts import (
    HOLDS,
    LEAKS,
    UNKNOWN,
    Verdict,
    found_in_words,
    joint_mood,
    joint_shade,
    ruled_out_in_words,
    verdict_of_first_candidate,
)

FILE_NAME = "comparison.json"
"""What a comparison is called in its directory."""

CSV_NAME = "comparison.csv"
VERSION = 1

COLUMNS = ("optimizer", "privacy", "epsilon", "test loss", "exposure", "interval", "of", "guesses", "seconds")
"""Of the table that people read."""

_CSV_COLUMNS = (
    "optimizer",
    "private",
    "noise_multiplier",
    "epsilon",
    "test_loss",
    "exposure_bits",
    "exposure_low",
    "exposure_high",
    "is_bound",
    "size_bits",
    "method",
    "guesses_proven_at_least",
    "guesses_proven_at_most",
    "guesses_estimated_at_least",
    "guesses_estimated_at_most",
    "verdict",
    "seconds",
)


@dataclass(frozen=True)
class Outcome:
    """One training run.

    Attributes:
        optimizer: By name.
        noise_multiplier: 0: gradients were clipped only; None: plain training.
        epsilon: What the accountant says, per record; infinite without noise.
        test_loss: Of text that was not trained on, in nats per token.
        exposure: Of the secret, after training.
        extracted: Whether the attack's first candidate is the secret.
        proven: Whether the attack ran to its proof: no other secret is more likely than its first candidate.
        seconds: How long the training took, without the measurements.
    """

    optimizer: str
    noise_multiplier: float | None
    epsilon: float
    test_loss: float
    exposure: ExposureEstimate
    extracted: bool
    proven: bool
    seconds: float

    def __post_init__(self) -> None:
        """Refuse what no training can give."""
        if self.noise_multiplier is not None and not self.noise_multiplier >= 0:
            raise refusal("noise_multiplier", self.noise_multiplier, "a number of at least 0, or None for none")
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise refusal("epsilon", self.epsilon, "at least 0", "It is infinite where nothing is guaranteed.")
        if math.isfinite(self.epsilon) and not self.noise_multiplier:
            why = f"infinity, because noise_multiplier={self.noise_multiplier!r} hides nothing"
            raise refusal("epsilon", self.epsilon, why)

    @property
    def verdict(self) -> Verdict:
        """How many guesses find the secret."""
        return verdict_of_first_candidate(self.exposure, extracted=self.extracted, proven=self.proven)

    @property
    def privacy(self) -> str:
        """The setting in words."""
        if self.noise_multiplier is None:
            return "none"
        return f"noise {self.noise_multiplier:g}" if self.noise_multiplier else "clip only"


@dataclass
class Comparison:
    """Several training runs that differ in their privacy settings only.

    Attributes:
        outcomes: What came of each, in the order of the table.
        settings: What they share, as JSON types.

    Example:
        >>> estimate = ExposureEstimate("pin 1234", 13.3, 13.3, 13.3, "exact", 1, 3.0, 13.3, False, 0.95, 9)
        >>> Comparison([Outcome("sgd", None, math.inf, 1.86, estimate, True, True, 60.0)]).verdict.partition(";")[0]
        'Without differential privacy the secret can be extracted in 1 of 1 training run with the first guess'
    """

    outcomes: list[Outcome]
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Settings as JSON types from the start, so that what is saved is what is loaded."""
        self.settings = plain(self.settings, "settings")

    @property
    def verdict(self) -> str:
        """One line for people: does privacy keep the secret in?"""
        return f"{self.without_privacy}; {self.with_privacy[:1].lower()}{self.with_privacy[1:]}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = [
            (
                run.optimizer,
                run.privacy,
                "infinite" if math.isinf(run.epsilon) else f"{run.epsilon:.4g}",
                f"{run.test_loss:.3f}",
                f"{run.exposure.low:.2f}",
                run.verdict,
            )
            for run in self.outcomes
        ]
        columns = ("optimizer", "privacy", "epsilon", "test loss", "exposure in bits, at least", "guesses that find it")
        return html_table(self.verdict, rows, columns=columns)

    @property
    def without_privacy(self) -> str:
        """What became of the secret in training runs that promise nothing."""
        runs = [outcome for outcome in self.outcomes if not outcome.noise_multiplier]
        if not runs:
            return "Nothing was trained without differential privacy"
        return f"Without differential privacy the secret {_judged(runs)}"

    @property
    def with_privacy(self) -> str:
        """What became of it in training runs that promise something."""
        runs = [outcome for outcome in self.outcomes if outcome.noise_multiplier]
        if not runs:
            return "Nothing was trained with differential privacy"
        weakest = f", not even at epsilon {number(max(o.epsilon for o in runs))}" if self.mood == HOLDS else ""
        return f"With differential privacy the secret {_judged(runs)}{weakest}"

    @property
    def mood(self) -> str:
        """Of the private training runs: one "leaks", all are proven to "hold", or that is "unknown"."""
        return joint_mood(outcome.verdict for outcome in self.outcomes if outcome.noise_multiplier)

    @property
    def shade(self) -> str:
        """The same as a page may colour it: green ("holds") is for what was proven."""
        return joint_shade(outcome.verdict for outcome in self.outcomes if outcome.noise_multiplier)

    def rows(self) -> list[list[str]]:
        """The outcomes as text, in the order of `COLUMNS`."""
        return [_row(outcome) for outcome in self.outcomes]

    def table(self) -> str:
        """The outcomes under their headings."""
        return text_table(COLUMNS, self.rows())

    def to_csv(self) -> str:
        """The outcomes as comma-separated values, all digits kept; an infinite epsilon is "inf"."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV_COLUMNS)
        for outcome in self.outcomes:
            e = outcome.exposure
            private = outcome.noise_multiplier is not None
            values = [
                outcome.optimizer,
                private,
                outcome.noise_multiplier if private else "",
                outcome.epsilon,
                outcome.test_loss,
            ]
            verdict = outcome.verdict
            values += [e.bits, e.low, e.high, e.is_bound, e.size_bits, e.method]
            values += [*verdict.proven, *(verdict.estimated or ("", "")), verdict, outcome.seconds]
            writer.writerow(values)
        return text.getvalue()

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `comparison.json` and `comparison.csv` into a directory; returns the path of the first."""
        outcomes = [{**asdict(outcome), "exposure": outcome.exposure.to_dict()} for outcome in self.outcomes]
        path = Path(directory) / FILE_NAME
        write_json(path, {"version": VERSION, "settings": self.settings, "outcomes": outcomes}, private=True)
        write_whole(Path(directory) / CSV_NAME, self.to_csv())
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read what `save` wrote, from the file or from its directory.

        Raises:
            ManifestError: It is not a comparison; names the file and the field that is wrong.
        """
        given = Path(path)
        root = read_json(given / FILE_NAME if given.is_dir() else given)
        root["version"].only(VERSION)
        return cls([_read_outcome(item) for item in root["outcomes"].items()], root["settings"].as_(dict))


def number(value: float) -> str:
    """An epsilon as people write it.

    >>> number(0.654), number(89.2), number(2345.6), number(2e8), number(math.inf)
    ('0.65', '89', '2,346', '2.0e+08', 'infinite')
    """
    if value == math.inf:
        return "infinite"
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _judged(outcomes: Sequence[Outcome]) -> str:
    """What can be said of the secret in these training runs."""
    by_mood = {mood: [o.verdict for o in outcomes if o.verdict.mood == mood] for mood in (LEAKS, HOLDS, UNKNOWN)}
    of = f"of {len(outcomes)} training {'run' if len(outcomes) == 1 else 'runs'}"
    if by_mood[LEAKS]:
        words = found_in_words(by_mood[LEAKS])
        several = len({verdict.found_within for verdict in by_mood[LEAKS]}) > 1
        unknown = f", and it is unknown in {len(by_mood[UNKNOWN])}" if by_mood[UNKNOWN] else ""
        return f"can be extracted in {len(by_mood[LEAKS])} {of}{':' if several else ''} {words}{unknown}"
    if by_mood[UNKNOWN]:
        return f"is neither extracted nor ruled out in {len(by_mood[UNKNOWN])} {of}"
    return f"cannot be extracted in any {of} {ruled_out_in_words(by_mood[HOLDS])}"


def _row(outcome: Outcome) -> list[str]:
    e = outcome.exposure
    return [
        outcome.optimizer,
        outcome.privacy,
        number(outcome.epsilon),
        f"{outcome.test_loss:.3f}",
        exposure_text(e, 1, ">= "),
        interval_text(e, 1),
        f"{e.ceiling_bits:.1f}",
        outcome.verdict.short,
        f"{outcome.seconds:.0f}",
    ]


def _read_outcome(item: Field) -> Outcome:
    return Outcome(
        optimizer=item["optimizer"].as_(str),
        noise_multiplier=optional_number(item["noise_multiplier"]),
        epsilon=item["epsilon"].number(),
        test_loss=item["test_loss"].number(),
        exposure=read_estimate(item["exposure"]),
        extracted=item["extracted"].as_(bool),
        proven=item["proven"].as_(bool),
        seconds=item["seconds"].number(),
    )


def optimizers(outcomes: Iterable[Outcome]) -> list[str]:
    """The optimizers, each once, in the order of the outcomes."""
    return list(dict.fromkeys(outcome.optimizer for outcome in outcomes))
