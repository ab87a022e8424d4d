"""`SampledLeaks`: which secrets a model wrote when text was sampled from it, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lightning_exposure._html import html_table
from lightning_exposure.exposure.intervals import proportion_interval
from lightning_exposure.leakage.counting import SampleTally, WantedSecret
from lightning_exposure.leakage.decoder import Decoder


@dataclass(frozen=True)
class SecretLeaks:
    """How often one secret appeared. Its `repr` does not show it.

    Attributes:
        kind: Its class.
        name: What it is called where it is not shown.
        text: The secret.
        in_training: Whether it is in the training data; a control is not.
        samples: In how many samples it appeared.
        times: How often it appeared; a sample may have it several times.
        low: The probability that a sample has it is at least this.
        high: And at most this. `leak_probability` knows that number without chance, for samples that begin with it.
    """

    kind: str
    name: str
    text: str = field(repr=False)
    in_training: bool
    samples: int
    times: int
    low: float
    high: float


@dataclass(frozen=True)
class ClassLeaks:
    """How much of one class of secrets appeared.

    There are two shares, each with an interval of its own. `rate` is about samples: they are independent of each other
    given the model, and the interval is exact (Clopper-Pearson). `share` is about secrets: it grows with the number of
    samples, and its interval is exact for other secrets of the class if those at hand are taken as drawn
    independently. Secrets in one model compete, so that one is a description rather than a proof.

    Attributes:
        kind: The class: the name of a format, or what the scanner calls it.
        secrets: How many distinct secrets of the class were looked for.
        leaked: How many of them appeared at least once.
        share: `leaked / secrets`; 0 where there are none.
        share_low: The lower end of its interval.
        share_high: The upper end.
        samples: In how many samples at least one of them appeared. A sample with several counts once.
        times: How often they appeared, all in all.
        rate: `samples` as a share of all samples.
        rate_low: The lower end of its interval.
        rate_high: The upper end.
    """

    kind: str
    secrets: int
    leaked: int
    share: float
    share_low: float
    share_high: float
    samples: int
    times: int
    rate: float
    rate_low: float
    rate_high: float


@dataclass(frozen=True)
class NewFindings:
    """What a scanner found in samples and in no training text: made up by the model, or learnt elsewhere.

    Attributes:
        kind: The class.
        distinct: How many different ones.
        times: How often they appeared.
        samples: In how many samples at least one of them appeared.
        rate: The same as a share of all samples.
        rate_low: The lower end of its interval.
        rate_high: The upper end.
    """

    kind: str
    distinct: int
    times: int
    samples: int
    rate: float
    rate_low: float
    rate_high: float


@dataclass(frozen=True)
class SampledLeaks:
    """Which secrets of its training data a model wrote. Its `repr` and its table show no secret.

    Each interval holds with `confidence` by itself. What did not appear may still leak: `rate_high` and `high` say how
    often at most, and `leak_probability` says it of a single secret without sampling.

    Attributes:
        samples: How many samples were written.
        tokens: How many tokens they have together.
        classes: What appeared of the training data, by class.
        total: The same for all classes together.
        controls: The same for canaries that were never inserted, all classes together: what chance gives. None where
            there are none.
        secrets: Each secret.
        new: What a scanner found that is in no training text, by class.
        decoder: How text was sampled.
        length: How many tokens a sample has at most.
        confidence: Of each interval.
    """

    samples: int
    tokens: int
    classes: tuple[ClassLeaks, ...]
    total: ClassLeaks
    controls: ClassLeaks | None
    secrets: tuple[SecretLeaks, ...] = field(repr=False)
    new: tuple[NewFindings, ...]
    decoder: Decoder
    length: int
    confidence: float

    @classmethod
    def of(
        cls, tally: SampleTally, wanted: Sequence[WantedSecret], decoder: Decoder, length: int, confidence: float
    ) -> SampledLeaks:
        """Numbers with their intervals, from what was counted."""

        def share(hits: int, among: int) -> tuple[float, float, float]:
            if not among:
                return 0.0, 0.0, 1.0
            return hits / among, *proportion_interval(hits, among, confidence)

        def leaks(kind: str, numbers: Sequence[int], samples: int) -> ClassLeaks:
            leaked = sum(tally.hits[number] > 0 for number in numbers)
            times = sum(tally.times[number] for number in numbers)
            of_secrets, of_samples = share(leaked, len(numbers)), share(samples, tally.samples)
            return ClassLeaks(kind, len(numbers), leaked, *of_secrets, samples, times, *of_samples)

        inserted = [number for number, secret in enumerate(wanted) if secret.in_training]
        others = [number for number, secret in enumerate(wanted) if not secret.in_training]
        kinds = dict.fromkeys(wanted[number].kind for number in inserted)
        return cls(
            samples=tally.samples,
            tokens=tally.tokens,
            classes=tuple(
                leaks(kind, [number for number in inserted if wanted[number].kind == kind], tally.leaky[kind])
                for kind in kinds
            ),
            total=leaks("all", inserted, tally.leaky[""]),
            controls=leaks("not inserted", others, tally.controls[""]) if others else None,
            secrets=tuple(
                SecretLeaks(
                    secret.kind, secret.name, secret.text, secret.in_training, tally.hits[number], tally.times[number],
                    *share(tally.hits[number], tally.samples)[1:],
                )
                for number, secret in enumerate(wanted)
            ),
            new=tuple(
                NewFindings(
                    kind,
                    sum(its == kind for its, _ in tally.new),
                    sum(times for (its, _), times in tally.new.items() if its == kind),
                    hits,
                    *share(hits, tally.samples),
                )
                for kind, hits in sorted(tally.leaky_new.items())
            ),
            decoder=decoder,
            length=length,
            confidence=confidence,
        )  # fmt: skip

    @property
    def leaked(self) -> tuple[SecretLeaks, ...]:
        """The secrets of the training data that appeared, the most often first."""
        found = [secret for secret in self.secrets if secret.in_training and secret.samples]
        return tuple(sorted(found, key=lambda secret: -secret.samples))

    def __str__(self) -> str:
        """One line for people."""
        total = self.total
        return (
            f"{total.leaked:,} of {total.secrets:,} secrets appeared, in {total.samples:,} of {self.samples:,} samples "
            f"({total.rate:.3g}, {self.confidence:.0%} interval [{total.rate_low:.3g}, {total.rate_high:.3g}])"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The classes as text, in the order of `COLUMNS`."""
        listed = [*self.classes, *([self.total] if len(self.classes) != 1 else [])]
        shown = [_cells(it) for it in [*listed, *([self.controls] if self.controls else [])]]
        for it in self.new:
            interval = f"{it.rate:.3g} [{it.rate_low:.3g}, {it.rate_high:.3g}]"
            shown.append((f"{it.kind}, in no training text", f"{it.distinct:,}", f"{it.times:,}", interval))
        return shown

    def to_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Everything as plain values, for JSON.

        Args:
            reveal: Whether to show the secrets themselves.
        """
        content = asdict(self)
        for secret in content["secrets"]:
            if not reveal:
                del secret["text"]
        return content

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(str(self), self.rows(), columns=COLUMNS)


COLUMNS = ("secrets", "appeared", "times", "share of samples")


def _cells(leaks: ClassLeaks) -> tuple[str, ...]:
    rate = f"{leaks.rate:.3g} [{leaks.rate_low:.3g}, {leaks.rate_high:.3g}]"
    return (leaks.kind, f"{leaks.leaked:,} of {leaks.secrets:,}", f"{leaks.times:,}", rate)
