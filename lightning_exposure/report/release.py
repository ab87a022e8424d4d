"""`SyntheticAudit`: what generated texts give away about the data of their generator, and how it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scipy import stats

from lightning_exposure._checks import count_of
from lightning_exposure._html import html_table
from lightning_exposure.exposure.intervals import proportion_interval
from lightning_exposure.privacy.audit.audit import AuditResult
from lightning_exposure.report.tables import text_table
from lightning_exposure.secrets import Canary, Mask

ASSUMPTION = (
    "nothing about the generator; only that fair coins said which canaries are in its training data, and that scores "
    "depend on the coins through the texts alone"
)

COUNT_COLUMNS = ("in the texts", "of those trained on", "by chance", "p-value")
SCORER_COLUMNS = ("scorer", "AUC", "TPR at 1% FPR", "right guesses", "epsilon")
CANARY_COLUMNS = ("canary", "text", "trained on", "texts with it", "near copies", "score")


def _stand(count: int) -> str:
    return f"{count:,} {'stands' if count == 1 else 'stand'}"


@dataclass(frozen=True)
class FoundShare:
    """Which share of some things stands in a release, with its exact (Clopper-Pearson) interval.

    Attributes:
        found: How many.
        of: Of how many.
        low: The share in general is at least this.
        high: And at most this.
    """

    found: int
    of: int
    low: float
    high: float

    @classmethod
    def counted(cls, found: int, of: int, confidence: float) -> FoundShare:
        """The share with its interval; of nothing, nothing is known.

        >>> str(FoundShare.counted(9, 10, 0.95)), str(FoundShare.counted(0, 0, 0.95))
        ('9 of 10 (55.5% to 99.7%)', '0 of 0')
        """
        low, high = proportion_interval(found, of, confidence) if of else (0.0, 1.0)
        return cls(found, of, low, high)

    def __str__(self) -> str:
        interval = f" ({100 * self.low:.1f}% to {100 * self.high:.1f}%)" if self.of else ""
        return f"{self.found:,} of {self.of:,}{interval}"


@dataclass(frozen=True)
class CanaryCopies:
    """How many canaries stand in a release; those that were held out by a coin say how many would by chance.

    Attributes:
        edits: How many characters may differ at the most, of the longest secret; of a shorter one a quarter.
            0: word for word, with the prompt.
        inserted: Of the canaries in the training data.
        held_out: Of those that the generator never saw: the rate by chance.
    """

    edits: int
    inserted: FoundShare
    held_out: FoundShare

    @property
    def p_value(self) -> float:
        """How likely it is that coins alone put so many of those that were found into the training data.

        >>> share = FoundShare.counted
        >>> CanaryCopies(0, share(5, 10, 0.95), share(0, 10, 0.95)).p_value
        0.03125
        """
        found = self.inserted.found + self.held_out.found
        return float(stats.binom.sf(self.inserted.found - 1, found, 0.5)) if found else 1.0

    @property
    def name(self) -> str:
        """What was counted, in words."""
        return "canaries, word for word" if not self.edits else f"canaries, up to {count_of(self.edits, 'edit')}"


@dataclass(frozen=True)
class SpanCopies:
    """How many training texts share a stretch of characters with a release, and how many would by chance.

    Attributes:
        span: How many characters a stretch has.
        spans: How many different stretches the training texts have.
        found: How many of them stand in the release.
        training: Of the training texts that are compared: how many share at least one with the release.
        chance: The same of what the training texts are compared with.
        compared_with: What that is: "held-out texts", which were asked about the same release, or "other training
            texts", which took the place of the release.
    """

    span: int
    spans: int
    found: int
    training: FoundShare
    chance: FoundShare
    compared_with: str

    @property
    def above_chance(self) -> bool:
        """Whether the lower end of the one share is above the upper end of the other."""
        return self.training.low > self.chance.high


@dataclass(frozen=True)
class ScorerFinding:
    """What one scorer sees.

    Attributes:
        name: The scorer.
        alone: The audit with its scores alone. It holds for a scorer that was chosen beforehand; the largest of several
            is no bound.
    """

    name: str
    alone: AuditResult


@dataclass(frozen=True)
class ReleasedCanary:
    """One canary, and what the release has of it. Its `repr` does not show the text.

    Attributes:
        canary: The canary.
        verbatim: In how many texts it stands word for word.
        near: In how many with a few edits, word for word included.
        score: How much the release speaks for it, in standard deviations of secrets that nobody trained on.
    """

    canary: Canary = field(repr=False)
    verbatim: int
    near: int
    score: float


@dataclass(frozen=True)
class SyntheticAudit:
    """What a release of generated texts gives away.

    Attributes:
        combined: The audit with the scores of all scorers together, which `epsilon_lower` is from.
        scorers: What each of them sees.
        verbatim: Canaries that stand in the texts word for word.
        near: Canaries that stand in the texts with a few edits.
        spans: What training texts share with the release; None without training texts.
        canaries: The canaries, those with the highest scores first.
        texts: How many texts were released.
        characters: How many characters they have.
        settings: How it was measured.
        mask: Gives the names of canaries that are not shown.
    """

    combined: AuditResult
    scorers: tuple[ScorerFinding, ...]
    verbatim: CanaryCopies
    near: CanaryCopies
    spans: SpanCopies | None
    canaries: tuple[ReleasedCanary, ...] = field(repr=False)
    texts: int
    characters: int
    settings: dict[str, Any] = field(default_factory=dict)
    mask: Mask = field(default_factory=Mask, repr=False, compare=False)

    @property
    def epsilon_lower(self) -> float:
        """The release has at least this epsilon, with the given confidence, and so has the generator."""
        return self.combined.epsilon_lower

    @property
    def delta(self) -> float:
        """The delta that the bound grants."""
        return self.combined.delta

    @property
    def confidence(self) -> float:
        """The bound is too high with a probability of at most one minus this."""
        return self.combined.confidence

    @property
    def assumption(self) -> str:
        """What the bound assumes."""
        return ASSUMPTION

    @property
    def leaks(self) -> bool:
        """Whether it is shown that the release gives something away about single records."""
        return self.epsilon_lower > 0.0

    def summary(self) -> str:
        """What was found, in a few sentences."""
        found, level = self.combined, f"{100 * self.confidence:.4g}% confidence, delta {self.delta:g}"
        first = (
            f"The release has an epsilon of at least {self.epsilon_lower:.2f} ({level}): {found.correct:,} of "
            f"{found.guesses:,} guesses about who was in the training data are right."
            if self.leaks
            else f"Nothing is shown about single records ({level}), which does not prove that nothing is given away."
        )
        copied, near = self.verbatim.inserted, self.near.inserted
        return (
            f"{first} Of {copied.of:,} canaries in the training data, {_stand(copied.found)} in the texts word for "
            f"word and {near.found:,} with up to {count_of(self.near.edits, 'edit')}; of "
            f"{self.verbatim.held_out.of:,} that were held out, {self.verbatim.held_out.found:,} and "
            f"{self.near.held_out.found:,} do by chance."
        )

    def span_note(self) -> str:
        """What the counts of training texts mean; "" without training texts."""
        if self.spans is None:
            return ""
        chance = (
            "texts that were held out"
            if self.spans.compared_with == "held-out texts"
            else "the same texts, with other training texts in the place of as much of the release"
        )
        judged = "more than chance" if self.spans.above_chance else "not shown to be more than chance"
        return (
            f"Of {self.spans.spans:,} different stretches of {self.spans.span} characters in the training texts, "
            f"{self.spans.found:,} stand in the generated ones. A text counts if it shares one; by chance: {chance}. "
            f"This is {judged}."
        )

    def count_rows(self) -> list[tuple[str, str, str, str]]:
        """The plain counts as text, in the order of `COUNT_COLUMNS`."""
        rows = [
            (each.name, str(each.inserted), str(each.held_out), f"{each.p_value:.2g}")
            for each in (self.verbatim, self.near)
        ]
        if self.spans is not None:
            what = f"texts, {self.spans.span} characters"
            rows.append((what, str(self.spans.training), str(self.spans.chance), "-"))
        return rows

    def scorer_rows(self) -> list[tuple[str, str, str, str, str]]:
        """What the scorers see as text, in the order of `SCORER_COLUMNS`; the last row is all of them together."""
        several = len(self.scorers) > 1
        rows = [(each.name, each.alone, f"{each.alone.epsilon_lower:.2f} alone") for each in self.scorers if several]
        rows.append(
            ("together" if several else self.scorers[0].name, self.combined, f"at least {self.epsilon_lower:.2f}")
        )
        return [
            (name, f"{it.auc:.3f}", f"{it.tpr_at_1_percent_fpr:.3f}", f"{it.correct:,} of {it.guesses:,}", epsilon)
            for name, it, epsilon in rows
        ]

    def canary_rows(self, *, reveal: bool = False, most: int | None = None) -> list[tuple[str, ...]]:
        """The canaries as text, in the order of `CANARY_COLUMNS`.

        Args:
            reveal: Whether to show their texts.
            most: How many rows; None: all.
        """
        return [
            (
                row.canary.id,
                row.canary.text if reveal else self.mask.text(row.canary.text, row.canary.format),
                "no" if row.canary.held_out else "yes",
                f"{row.verbatim:,}",
                f"{row.near:,}",
                f"{row.score:.2f}",
            )
            for row in self.canaries[:most]
        ]

    def table(self, *, reveal: bool = False, most: int = 10) -> str:
        """Everything as text: the scorers, the counts, and the canaries with the highest scores."""
        return "\n\n".join(
            [
                text_table(SCORER_COLUMNS, self.scorer_rows()),
                text_table(COUNT_COLUMNS, self.count_rows()),
                text_table(CANARY_COLUMNS, self.canary_rows(reveal=reveal, most=most)),
            ]
        )

    def _repr_html_(self) -> str:
        """For notebooks, without the texts of canaries: they are shared."""
        counts: list[Sequence[object]] = [
            (name, f"{found}; by chance {chance}") for name, found, chance, _ in self.count_rows()
        ]
        rows = [
            ("epsilon", f"at least {self.epsilon_lower:.3f} ({100 * self.confidence:.4g}%, delta {self.delta:g})"),
            ("assumes", self.assumption),
            ("texts", f"{self.texts:,}, {self.characters:,} characters"),
            *(("scorer " + name, f"AUC {auc}, right guesses {right}") for name, auc, _, right, _ in self.scorer_rows()),
            *counts,
        ]
        return html_table("Audit of generated texts", rows)

    def to_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Everything as plain values, for JSON.

        Args:
            reveal: Whether to show the texts of the canaries.
        """
        return {
            "epsilon_lower": self.epsilon_lower,
            "delta": self.delta,
            "confidence": self.confidence,
            "assumption": self.assumption,
            "leaks": self.leaks,
            "texts": self.texts,
            "characters": self.characters,
            "combined": self.combined.to_dict(),
            "scorers": {each.name: each.alone.to_dict() for each in self.scorers},
            "verbatim": {**asdict(self.verbatim), "p_value": self.verbatim.p_value},
            "near": {**asdict(self.near), "p_value": self.near.p_value},
            "spans": None if self.spans is None else {**asdict(self.spans), "above_chance": self.spans.above_chance},
            "masked": not reveal,
            "settings": dict(self.settings),
            "canaries": [
                {
                    "id": row.canary.id,
                    "text": row.canary.text if reveal else self.mask.text(row.canary.text, row.canary.format),
                    "in_training": not row.canary.held_out,
                    "texts": row.verbatim,
                    "near_copies": row.near,
                    "score": row.score,
                }
                for row in self.canaries
            ],
        }
