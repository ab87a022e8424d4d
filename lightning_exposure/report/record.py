"""`RunRecord`: what one training run left behind, as one JSON file in the run's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_exposure._files import REMEDY, Field, plain, read_json, write_json
from lightning_exposure._html import html_table
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate, SkewNormal
from lightning_exposure.extraction import Extraction
from lightning_exposure.report._reading import optional_number, read_estimates, read_fit
from lightning_exposure.report._summary import of_the_scan, summarize
from lightning_exposure.report.verdicts import UNKNOWN, Verdict, verdict_of
from lightning_exposure.secrets import Canary, CanarySet, Redaction

FILE_NAME = "exposure.json"
"""What a record is called in the directory of its run."""

VERSION = 1

_FACTS = ("privacy", "audit", "ledger", "gate", "scan", "model", "data")
"""What is an object in JSON, or null."""


@dataclass(frozen=True)
class Measurement:
    """The exposures at one moment of training.

    Attributes:
        epoch: How many epochs were finished: 1 after the first.
        step: How many optimizer steps were taken.
        train_loss: Of the training data, if it is known.
        val_loss: Of the validation data, if there is any.
        seconds: How long the measurement took.
        estimates: Exposures by the id of the canary.
        method: What `measure_exposure` was asked for; None in records that do not say.
        samples: The cap on its walks.
        budget: The cap on its expansions.
        seed: The random seed of its walks.
        precision: The width at which it stops, in bits; None: it does not.
        cut: Whether the caps are lower than asked for, so as not to slow down training.
        prior: What the exposures were measured against: "without_adapters", "before_training", the path of a
            checkpoint or the class of a reference model; None: all secrets were equally likely.
    """

    epoch: int
    step: int
    train_loss: float | None
    val_loss: float | None
    seconds: float
    estimates: dict[str, ExposureEstimate]
    method: str | None = None
    samples: int | None = None
    budget: int | None = None
    seed: int | None = None
    precision: float | None = None
    cut: bool = False
    prior: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What `measure_exposure` was called with: with the same weights it gives the same estimates again.

        Give it the canaries of a format together, in their order, and the prior, if there was one. Empty in records
        that do not say.
        """
        if self.method is None or not self.estimates:
            return {}
        names = ("method", "samples", "budget", "seed", "precision")
        confidence = next(iter(self.estimates.values())).confidence
        return {**{name: getattr(self, name) for name in names}, "confidence": confidence}

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain values, for checkpoints and JSON."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**content, "estimates": _estimates_to_dict(self.estimates)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Measurement:
        """What `to_dict` gave."""
        estimates = {key: ExposureEstimate(**fields) for key, fields in content["estimates"].items()}
        return cls(**{**content, "estimates": estimates})


@dataclass(frozen=True)
class References:
    """What secrets that are drawn uniformly from a format cost after training.

    Attributes:
        costs: Their log-perplexities in bits.
        fit: The paper's distribution, if one could be fitted.
    """

    costs: list[float]
    fit: SkewNormal | None = None


@dataclass
class RunRecord:
    """What one training run left behind. Grows while the run goes on; `save` it as often as you like.

    Attributes:
        canaries: The secrets that were inserted, and those that were not: controls, and what was held out.
        settings: Anything worth remembering (model, optimizer, seeds, versions), as JSON types.
        baseline: Exposures before training, by the id of the canary.
        history: The measurements, in order.
        references: Costs of ordinary secrets after training, by the name of the format.
        extractions: The attacks after training, by the name of the format.
        steps: How many optimizer steps the whole training run took; None: not known. An exposure that was measured
            before its end is not of the model that was attacked, and decides nothing.
        privacy: What differential privacy the run had and how it was spent, as JSON types; None: no such training.
        audit: What the audit says; None: there was none.
        ledger: How often each canary was read in training, by its id; None: not counted.
        gate: What the gate decided, and when; None: there was none.
        defences: What else was done against memorization, one entry each, with a "name".
        scan: What a scan of the training texts found, masked; None: there was none.
        model: What was trained: its "class", how many "parameters" it has, and the "sha256" of its weights; None: not
            known.
        data: What it was trained on: its "class" and how many "records" there are; None: not known.
        date: When the record was made, in UTC and as in ISO 8601; None: not known.
        interrupted: The kind of error that ended the training early, such as "KeyboardInterrupt"; None: it came to its
            end.
        others: What further callbacks measured or attacked: other canaries, or the same ones in another way. A record
            each, by the name of the callback.

    Raises:
        ArgumentError: `settings` holds something that has no JSON form.

    Example:
        >>> from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4]), settings={"model": "lstm"})
        >>> record.verdict
        'Nothing is known: no exposure was measured, and no attack was made'
    """

    canaries: CanarySet
    settings: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, ExposureEstimate] = field(default_factory=dict)
    history: list[Measurement] = field(default_factory=list)
    references: dict[str, References] = field(default_factory=dict)
    extractions: dict[str, Extraction] = field(default_factory=dict)
    steps: int | None = None
    privacy: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    ledger: dict[str, int] | None = None
    gate: dict[str, Any] | None = None
    defences: list[dict[str, Any]] = field(default_factory=list)
    scan: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    date: str | None = None
    interrupted: str | None = None
    others: dict[str, RunRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Settings as JSON types from the start, so that what is saved is what is loaded."""
        self.settings = plain(self.settings, "settings")

    # ---- what is put into it ------------------------------------------------------------------------------

    def place_for(self, name: str, canaries: CanarySet, results: str) -> RunRecord:
        """Where a callback puts its results: here, unless this record has such results already, or is about others.

        Args:
            name: Of the callback.
            canaries: That it is about.
            results: The attribute that it will fill, such as "history".

        Returns:
            This record, one of `others`, or a new one among them.
        """
        for record in (self, *self.others.values()):
            if getattr(record, results):
                continue
            known, given = ({canary.id: canary.text for canary in some} for some in (record.canaries, canaries))
            if known.items() <= given.items() or given.items() <= known.items():
                record.canaries = max(record.canaries, canaries, key=len)
                return record
        return self.others.setdefault(name, RunRecord(canaries, steps=self.steps))

    # ---- what it says -------------------------------------------------------------------------------------

    @property
    def final(self) -> Measurement | None:
        """The last measurement; None if there is none yet."""
        return self.history[-1] if self.history else None

    @property
    def extracted(self) -> tuple[str, ...]:
        """The ids of the canaries that are candidates of the attack on their format, most likely first."""
        by_text = {(canary.format.name, canary.text): canary.id for canary in self.canaries}
        pairs = [
            (name, candidate.text)
            for name, extraction in self.extractions.items()
            for candidate in sorted(extraction.candidates, key=lambda candidate: candidate.order)
        ]
        return tuple(by_text[pair] for pair in dict.fromkeys(pairs) if pair in by_text)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        estimates = self.final.estimates if self.final and self.steps in (None, self.final.step) else {}
        return {
            canary.id: verdict_of(
                canary.text, canary.format.size, estimates.get(canary.id), self.extractions.get(canary.format.name)
            )
            for canary in self.canaries
        }

    @property
    def judged(self) -> list[tuple[Canary, Verdict]]:
        """All canaries with their verdicts, those of `others` too; of one in several, the one that says more."""
        found: dict[tuple[str, str], tuple[Canary, Verdict]] = {}
        for record in (self, *self.others.values()):
            verdicts = record.verdicts
            for canary in record.canaries:
                key = (canary.format.name, canary.text)
                if key not in found or found[key][1].mood == UNKNOWN:
                    found[key] = (canary, verdicts[canary.id])
        return list(found.values())

    @property
    def verdict(self) -> str:
        """One line for people: how many guesses find the inserted secrets, and what else they should know.

        Controls, and canaries that are held out, were never inserted: they are not counted but named.
        """
        return "; ".join([summarize(self.judged), *of_the_scan(self.scan)])

    def _repr_html_(self) -> str:
        """For notebooks."""
        estimates, verdicts = self.final.estimates if self.final else {}, self.verdicts
        rows = [
            (
                canary.id,
                canary.copies,
                f"{estimates[canary.id].low:.2f} to {estimates[canary.id].high:.2f}" if canary.id in estimates else "",
                verdicts[canary.id],
            )
            for canary in self.canaries
        ]
        columns = ("canary", "copies", "exposure in bits", "how many guesses find it")
        return html_table(self.verdict, rows, columns=columns)

    # ---- the file -----------------------------------------------------------------------------------------

    def save(self, directory: str | os.PathLike[str], *, reveal: bool = False) -> Path:
        """Write `exposure.json` into a directory, in one step, and return its path.

        It holds the canaries, so nobody but its owner may read it.

        Args:
            directory: Where.
            reveal: Whether to write candidates of attacks that are no canary in full; otherwise they are masked.

        Raises:
            ArgumentError: An id or a format's name does not belong to the canaries; names the field.
        """
        path = Path(directory) / FILE_NAME
        write_json(path, {"version": VERSION, **self.to_dict(reveal=reveal)}, private=True)
        return path

    def to_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Everything as plain values, for JSON on this machine: canaries are in full.

        Args:
            reveal: Whether candidates of attacks that are no canary are in full, too; otherwise they are masked.

        Raises:
            ArgumentError: An id or a format's name does not belong to the canaries; names the field.
        """
        self._check()
        return {
            "canaries": self.canaries.to_dict(),
            "settings": self.settings,
            "baseline": _estimates_to_dict(self.baseline),
            "history": [measurement.to_dict() for measurement in self.history],
            "references": {
                name: {"costs": references.costs, "fit": None if references.fit is None else asdict(references.fit)}
                for name, references in self.references.items()
            },
            "extractions": self._extractions_to_dict(Redaction(self.canaries, reveal=reveal)),
            "steps": self.steps,
            **{name: plain(getattr(self, name), name) for name in _FACTS},
            "defences": plain(self.defences, "defences"),
            "date": self.date,
            "interrupted": self.interrupted,
            "others": {name: record.to_dict(reveal=reveal) for name, record in self.others.items()},
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunRecord:
        """Read what `save` wrote, from the file or from its directory.

        Raises:
            ManifestError: It is not a record; names the file and the field that is wrong.
        """
        given = Path(path)
        root = read_json(given / FILE_NAME if given.is_dir() else given)
        root["version"].only(VERSION)
        return cls._read(root)

    @classmethod
    def _read(cls, root: Field) -> RunRecord:
        canaries = CanarySet.from_dict(root["canaries"].value, root["canaries"].where)
        formats = list(dict.fromkeys(canary.format.name for canary in canaries))
        return cls(
            canaries=canaries,
            settings=root["settings"].as_(dict),
            baseline=read_estimates(root["baseline"], canaries),
            history=[_read_measurement(item, canaries) for item in root["history"].items()],
            references={name: _read_references(item) for name, item in _of_formats(root["references"], formats)},
            extractions={
                name: Extraction.from_dict(item.value, item.where)
                for name, item in _of_formats(root["extractions"], formats)
            },
            steps=_optional_count(root["steps"]),
            **{name: _optional(root[name], dict) for name in _FACTS},
            **{name: _optional(root[name], str) for name in ("date", "interrupted")},
            defences=[item.as_(dict) for item in root["defences"].items()],
            others={name: cls._read(item) for name, item in root["others"].entries().items()},
        )

    def _extractions_to_dict(self, redaction: Redaction) -> dict[str, Any]:
        formats = {canary.format.name: canary.format for canary in self.canaries}
        found = {name: attack.redacted(redaction, formats[name]) for name, attack in self.extractions.items()}
        return {name: attack.to_dict() for name, attack in found.items()}

    def _check(self) -> None:
        """What `load` would refuse must not be written."""
        formats = {canary.format.name for canary in self.canaries}
        for label, names in (("references", self.references), ("extractions", self.extractions)):
            for name in names:
                if name not in formats:
                    raise ArgumentError(
                        f"{label}[{name!r}] is about a format that no canary has; expected one of "
                        f"{', '.join(sorted(formats))}. Leave it out, or add its canaries."
                    )
        named = [(f"history[{place}].estimates", item.estimates) for place, item in enumerate(self.history)]
        texts = {canary.id: canary.text for canary in self.canaries}
        for label, estimates in [("baseline", self.baseline), *named]:
            for key, estimate in estimates.items():
                if texts.get(key) != estimate.secret:
                    raise ArgumentError(
                        f"{label}[{key!r}] is about another secret; expected the id and the text of one of the "
                        "canaries of this record. Measure these canaries, or record those."
                    )


def _estimates_to_dict(estimates: Mapping[str, ExposureEstimate]) -> dict[str, Any]:
    return {key: estimate.to_dict() for key, estimate in estimates.items()}


def _of_formats(parent: Field, formats: list[str]) -> Iterator[tuple[str, Field]]:
    for name, item in parent.entries().items():
        if name not in formats:
            raise item.error(f"no canary has a format of this name; expected one of {', '.join(formats)}. {REMEDY}")
        yield name, item


def _optional_count(field: Field) -> int | None:
    return None if field.value is None else field.count()


def _optional(field: Field, kind: type[Any]) -> Any:
    return None if field.value is None else field.as_(kind)


def _read_measurement(item: Field, canaries: CanarySet) -> Measurement:
    return Measurement(
        epoch=item["epoch"].count(),
        step=item["step"].count(),
        train_loss=optional_number(item["train_loss"]),
        val_loss=optional_number(item["val_loss"]),
        seconds=item["seconds"].number(),
        estimates=read_estimates(item["estimates"], canaries),
        method=_optional(item["method"], str),
        samples=_optional_count(item["samples"]),
        budget=_optional_count(item["budget"]),
        seed=_optional(item["seed"], int),
        precision=optional_number(item["precision"], finite=True),
        cut=item["cut"].as_(bool),
        prior=_optional(item["prior"], str),
    )


def _read_references(item: Field) -> References:
    return References([cost.number() for cost in item["costs"].items()], read_fit(item["fit"]))
