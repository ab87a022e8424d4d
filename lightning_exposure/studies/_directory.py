"""The directory of a study: one program at a time, and every row safe on disk as soon as it is there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightning_exposure import __version__
from lightning_exposure._checks import refusal
from lightning_exposure._files import Field, plain, read_json, write_json
from lightning_exposure.studies.study import Row

MANIFEST = "study.json"
JOURNAL = "rows.jsonl"
LOCK = ".lock"
_ELSEWHERE = "Give another --out, or repeat the command that it was begun with."


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell.

    Attributes:
        key: The cell's.
        rows: Its rows; none if it failed.
        error: Why it failed; None if it did not.
        seconds: How long it took.
    """

    key: str
    rows: tuple[Row, ...] = ()
    error: str | None = None
    seconds: float = 0.0


def manifest(study: str, scale: str, settings: Mapping[str, Any], text: str, columns: Sequence[str]) -> dict[str, Any]:
    """What a directory's rows have in common; rows of anything else do not belong beside them."""
    versions = {"lightning-exposure": __version__, "torch": version("torch"), "python": platform.python_version()}
    return {
        "study": study,
        "--scale": scale,
        "settings": dict(settings),
        "columns": list(columns),
        "--text": {"characters": len(text), "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()},
        "versions": versions,
    }


@dataclass
class StudyDirectory:
    """Where the rows of a study are kept; use `opened`.

    Attributes:
        path: The directory.
        outcomes: What is known of each cell, by key.
    """

    path: Path
    outcomes: dict[str, CellOutcome] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def opened(cls, path: Path, content: Mapping[str, Any]) -> Iterator[StudyDirectory]:
        """The directory, made if there is none, and locked until the end.

        The lock is the operating system's: it ends with this process, however that ends.

        Raises:
            ArgumentError: It can't be made, another process is at work there, or it holds something else.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            expected = "a directory, or a path where one can be made"
            raise refusal("--out", str(path), expected, f"The system says: {error.strerror}.") from error
        _refuse_what_is_somebody_elses(path)
        lock = FileLock(path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            remedy = "Wait until it is done, or give another --out."
            raise refusal("--out", str(path), "a directory that no other process is working in", remedy) from None
        try:
            directory = cls(path)
            directory._claim(content)
            directory._read()
            yield directory
        finally:
            lock.release()

    def add(self, outcome: CellOutcome) -> None:
        """Write what became of a cell; when this returns it is on the disk."""
        line = {"cell": outcome.key, "seconds": round(outcome.seconds, 3)}
        line |= {"rows": list(outcome.rows)} if outcome.error is None else {"error": outcome.error}
        encoded = json.dumps(plain(line, "row"), ensure_ascii=False, allow_nan=False) + "\n"
        with (self.path / JOURNAL).open("ab") as file:
            file.write(encoded.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        self.outcomes[outcome.key] = outcome

    def _claim(self, content: Mapping[str, Any]) -> None:
        path = self.path / MANIFEST
        if path.exists():
            return _same(read_json(path), plain(dict(content), MANIFEST))
        write_json(path, content)

    def _read(self) -> None:
        """What is there; a last line that is not whole was being written when its process was killed, and is cut."""
        path = self.path / JOURNAL
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.decode("utf-8").splitlines(), start=1):
            outcome = _outcome(Field(f"{path}, line {number}: ", _parsed(line, path, number)))
            self.outcomes[outcome.key] = outcome


def _refuse_what_is_somebody_elses(path: Path) -> None:
    """Before anything is written there, the lock included."""
    if (path / MANIFEST).exists():
        return
    # What begins with a dot is the lock, or was left by a process that was killed while it wrote the manifest.
    others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if others:
        expected = f"an empty directory or one of this study, but it holds {others[0]!r} and no {MANIFEST}"
        raise refusal("--out", str(path), expected, "Give another --out.")


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise Field(f"{path}, line {number}", line).refused("a row in JSON", f"Remove it ({error}).") from error


def _outcome(line: Field) -> CellOutcome:
    key, seconds = line["cell"].as_(str), line["seconds"].number(finite=True)
    if "error" in line:
        return CellOutcome(key, error=line["error"].as_(str), seconds=seconds)
    return CellOutcome(key, tuple(row.as_(dict) for row in line["rows"].items()), seconds=seconds)


def _same(found: Field, expected: Mapping[str, Any]) -> None:
    """Refuse what differs from what the directory was begun with, by its name."""
    for name, value in expected.items():
        before = found[name].value
        if isinstance(value, Mapping) and name != "--text" and isinstance(before, dict):
            for key in dict.fromkeys([*before, *value]):
                if before.get(key) != value.get(key):
                    raise _refused(f"{name}.{key}", value.get(key), before.get(key))
        elif before != value:
            raise _refused(name, value, before)


def _refused(name: str, now: object, before: object) -> Exception:
    return refusal(name, now, f"{before!r}, with which the directory was begun", _ELSEWHERE)
