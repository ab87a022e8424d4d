"""Which secrets stand in what a model has written, and in how many samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage.writer import Written
from lightning_exposure.secrets import CanarySet, Finding, Mask, Scanner

Training = str | Sequence[str] | Sequence[Finding] | Mapping[str, Sequence[Finding]]
"""The texts that a model was trained on, or what a scanner found in them."""


@dataclass(frozen=True)
class WantedSecret:
    """A secret that is looked for. Its `repr` does not show it.

    Attributes:
        kind: Its class: the name of its format, or what the scanner calls it.
        name: What it is called where it is not shown: the id of a canary, or a masked name.
        text: The secret.
        in_training: Whether it is in the training data; a control is not.
    """

    kind: str
    name: str
    text: str = field(repr=False)
    in_training: bool = True


class Appearance(NamedTuple):
    """A secret in a sample: which of those that are looked for, or -1; its class; and what its writings share."""

    number: int
    kind: str
    same: str


class Finder(Protocol):
    """Finds secrets in samples."""

    @property
    def wanted(self) -> Sequence[WantedSecret]:
        """What is looked for."""
        ...

    def find(self, written: Written) -> list[Appearance]:
        """What stands in a sample; what stands in its prompt as a whole is not counted."""
        ...


class CanaryFinder:
    """Finds canaries, word for word and with their prompts, also inside of longer words."""

    def __init__(self, canaries: CanarySet) -> None:
        self.wanted = [WantedSecret(it.format.name, it.id, it.text, bool(it.copies)) for it in canaries]

    def find(self, written: Written) -> list[Appearance]:
        """Every place where a canary stands."""
        found = []
        for number, secret in enumerate(self.wanted):
            # Behind the prompt at least one character of it has to be.
            place = written.text.find(secret.text, max(0, written.start - len(secret.text) + 1))
            while place >= 0:
                found.append(Appearance(number, secret.kind, secret.text))
                place = written.text.find(secret.text, place + 1)
        return found


class ScannerFinder:
    """Finds whatever a scanner finds, and tells what is in the training texts from what is not.

    Args:
        scanner: What looks.
        training: The training texts, or what the scanner found in them.
    """

    def __init__(self, scanner: Scanner, training: Training) -> None:
        self._scanner = scanner
        mask = Mask()
        known: dict[tuple[str, str], Finding] = {}
        for finding in _findings(scanner, training):
            known.setdefault((finding.format, finding.same), finding)
        self.wanted = [WantedSecret(kind, mask.name(kind, same), it.text) for (kind, same), it in known.items()]
        self._numbers = {key: number for number, key in enumerate(known)}

    def find(self, written: Written) -> list[Appearance]:
        """Every finding, in whatever writing."""
        keys = [(it.format, it.same) for it in self._scanner.find(written.text) if it.end > written.start]
        return [Appearance(self._numbers.get(key, -1), *key) for key in keys]


@dataclass
class SampleTally:
    """How often what appeared, in some samples; those of other samples can be added.

    Attributes:
        samples: How many samples.
        tokens: How many tokens they have.
        hits: In how many samples each secret appeared, by its number.
        times: How often, by its number.
        leaky: In how many samples at least one secret of the training data appeared, by class; "" is all classes.
        controls: The same for those that are not in the training data.
        new: What was found in no training text, with the number of times, by class.
        leaky_new: In how many samples at least one of them appeared, by class.
    """

    samples: int = 0
    tokens: int = 0
    hits: Counter[int] = field(default_factory=Counter)
    times: Counter[int] = field(default_factory=Counter)
    leaky: Counter[str] = field(default_factory=Counter)
    controls: Counter[str] = field(default_factory=Counter)
    new: Counter[tuple[str, str]] = field(default_factory=Counter, repr=False)
    leaky_new: Counter[str] = field(default_factory=Counter)

    def add(self, other: SampleTally) -> None:
        """Those of other samples."""
        self.samples += other.samples
        self.tokens += other.tokens
        for name in ("hits", "times", "leaky", "controls", "new", "leaky_new"):
            getattr(self, name).update(getattr(other, name))


def count(finder: Finder, texts: Iterable[Written]) -> SampleTally:
    """What stands in some samples, each looked at alone: what is split over two of them is in neither."""
    tally = SampleTally()
    for written in texts:
        found = finder.find(written)
        tally.samples += 1
        tally.tokens += written.tokens
        numbers = [it.number for it in found if it.number >= 0]
        tally.times.update(numbers)
        tally.hits.update(set(numbers))
        secrets = [finder.wanted[number] for number in set(numbers)]
        kinds = {secret.kind for secret in secrets if secret.in_training}
        tally.leaky.update([*kinds, ""] if kinds else [])
        kinds = {secret.kind for secret in secrets if not secret.in_training}
        tally.controls.update([*kinds, ""] if kinds else [])
        unseen = [(it.kind, it.same) for it in found if it.number < 0]
        tally.new.update(unseen)
        tally.leaky_new.update({kind for kind, _ in unseen})
    return tally


def _findings(scanner: Scanner, training: Training) -> list[Finding]:
    if isinstance(training, Mapping):
        items: list[object] = [finding for found in training.values() for finding in found]
    else:
        items = [training] if isinstance(training, str) else list(training)
    findings: list[Finding] = []
    for place, item in enumerate(items):
        if isinstance(item, str):
            findings += scanner.find(item)
        elif isinstance(item, Finding):
            findings.append(item)
        else:
            raise ArgumentError(
                f"training[{place}] is {type(item).__name__}; expected the texts that the model was trained on, or "
                "what Scanner.find found in them. Read files first."
            )
    return findings
