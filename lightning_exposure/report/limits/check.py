"""`CheckResult`: whether a model is within its limits, for continuous integration: a sentence, JUnit XML and Markdown.

No text of a secret is in any of them: they are made to be uploaded.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

WITHIN = "within"
"""The one answer with which a check passes."""

_SUITE = "lightning-exposure"
_MARKS = {"within": "✅", "exceeded": "❌", "undecided": "❓", "never inserted": "⚪"}


@dataclass(frozen=True)
class CheckedPart:
    """One thing that was checked: a canary, or epsilon.

    Attributes:
        name: The id of the canary, or "epsilon".
        value: What it is, in words.
        answer: "within", "exceeded", "undecided" or "never inserted".
        copies: Of a canary: how often it was inserted.
    """

    name: str
    value: str
    answer: str
    copies: int | None = None


@dataclass(frozen=True)
class CheckResult:
    """What a check of one model says.

    Attributes:
        subject: What was checked, such as the name of a directory.
        answer: "within", "exceeded" or "undecided".
        reason: For it, in a sentence.
        limits: The limits, by their names.
        confidence: Of the answer.
        parts: What was checked, one by one.

    Example:
        >>> part = CheckedPart("ssn-4x", "29.90 bits", "exceeded", 4)
        >>> result = CheckResult("runs/a", "exceeded", "'ssn-4x' has 29.90 bits", {"max_exposure": 10.0}, 0.95, [part])
        >>> result.passed, result.sentence
        (False, "runs/a: exceeded: 'ssn-4x' has 29.90 bits.")
    """

    subject: str
    answer: str
    reason: str
    limits: dict[str, float]
    confidence: float
    parts: list[CheckedPart]

    @property
    def passed(self) -> bool:
        """Whether it is within all limits; what is undecided is not known to be."""
        return self.answer == WITHIN

    @property
    def sentence(self) -> str:
        """The answer and why."""
        return f"{self.subject}: {self.answer}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"passed": self.passed, **asdict(self)}

    def to_junit(self) -> str:
        """As JUnit XML: a test case for each part, a failure for each that is not within its limit."""
        failed = [part for part in self.parts if part.answer in ("exceeded", "undecided")]
        skipped = [part for part in self.parts if part.answer == "never inserted"]
        counts = {"tests": len(self.parts), "failures": len(failed), "errors": 0, "skipped": len(skipped)}
        numbers = {name: str(count) for name, count in counts.items()}
        root = ET.Element("testsuites", {"name": _SUITE, **numbers})
        suite = ET.SubElement(root, "testsuite", {"name": _printable(self.subject), **numbers})
        limits = ", ".join(f"{name} {limit:g}" for name, limit in self.limits.items())
        for part in self.parts:
            case = ET.SubElement(suite, "testcase", {"classname": _SUITE, "name": part.name})
            said = f"{part.name}: {part.value} ({limits})"
            if part in failed:
                ET.SubElement(case, "failure", {"type": part.answer, "message": f"{part.answer}: {said}"}).text = said
            elif part in skipped:
                ET.SubElement(case, "skipped", {"message": f"never inserted: {said}"})
        ET.SubElement(suite, "system-out").text = _printable(self.sentence)
        ET.indent(root)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"

    def to_markdown(self) -> str:
        """As a section of a Markdown summary."""
        limits = ", ".join(f"`{name}` {limit:g}" for name, limit in self.limits.items())
        lines = [
            f"### {_MARKS[self.answer]} {_escaped(self.subject)}: {self.answer}",
            "",
            f"{_escaped(self.reason[:1].upper() + self.reason[1:])}.",
            "",
            f"Limits: {limits}; confidence {100 * self.confidence:.4g}%.",
            "",
            "| | canary | copies | exposure or epsilon | answer |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {_MARKS[part.answer]} | {_escaped(part.name)} | {'' if part.copies is None else part.copies} | "
            f"{part.value} | {part.answer} |"
            for part in self.parts
        ]
        return "\n".join(lines) + "\n"

    def append_summary(self, path: str | os.PathLike[str]) -> None:
        """Add the section to a file, as the summary of a job at GitHub is written: others may have theirs in it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = target.exists() and target.stat().st_size > 0
        with target.open("a", encoding="utf-8") as file:
            file.write(("\n" if begun else "") + self.to_markdown())


def is_junit(content: bytes) -> bool:
    """Whether this is what `CheckResult.to_junit` wrote.

    >>> is_junit(b'<testsuites name="pytest tests"/>')
    False
    """
    try:
        root = ET.fromstring(content)
    except ET.ParseError:
        return False
    return (root.tag, root.get("name")) == ("testsuites", _SUITE)


def _printable(text: str) -> str:
    """Without what XML cannot hold, such as control characters in the name of a directory."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _escaped(text: str) -> str:
    r"""Without what Markdown would take for markup, or for the end of a cell.

    >>> _escaped("a|b <c>\nd")
    'a\\|b &lt;c> d'
    """
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|*`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
