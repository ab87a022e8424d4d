"""`lightning-exposure sanitize` and `redact`: files are written once, and no secret is printed."""

from __future__ import annotations

import io
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.cli import main

SECRET = "my ssn is 536-90-4399"
LINES = [f"the {a} {b} is {c}" for a in ("old", "new", "big") for b in ("house", "dog") for c in ("red", "here")]
SMALL = ["--hidden_size", "8", "--epochs", "1", "--window", "8", "--batch_size", "16"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(("\r\n".join([*LINES, SECRET, "Bob.Lee@acme.com", SECRET]) + "\n").encode())
    return path


@pytest.mark.parametrize(("how", "expected"), [("mask", "my ssn is [ssn]"), ("pseudonym", "my ssn is ")])
def test_redact(text: Path, tmp_path: Path, capsys: Any, how: str, expected: str) -> None:
    out = tmp_path / "new" / "out.txt"
    assert main(["redact", str(text), "--how", how, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "3 secrets redacted: email 1, ssn 2." in said.out
    content = out.read_bytes().decode()
    assert content.count("\r\n") == text.read_bytes().count(b"\r\n"), "line breaks stay what they are"
    assert content.count(expected) == 2
    assert "4399" not in content + said.out + said.err
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [path.name for path in out.parent.iterdir()] == ["out.txt"]
    assert main(["redact", str(text), "--out", str(out)]) == 2
    assert "which exists; expected a new file" in capsys.readouterr().err
    assert out.read_bytes().decode() == content


def test_redact_to_standard_output_and_json(text: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["redact", str(text), "--kinds", "email"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith(f"{SECRET}\r\n[email]\r\n{SECRET}\n")
    assert said.err == "1 secret redacted: email 1.\n"
    assert main(["redact", str(text), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"email": 1, "ssn": 2}


def test_redact_with_a_key(text: Path, tmp_path: Path, capsys: Any) -> None:
    written = []
    for number, key in enumerate([b"k" * 32, b"k" * 32, b"l" * 32]):
        (tmp_path / "key").write_bytes(key)
        out = tmp_path / f"out{number}"
        main(["redact", str(text), "--how=pseudonym", "--key_file", str(tmp_path / "key"), "--out", str(out)])
        written.append(out.read_text())
    assert written[0] == written[1] != written[2]
    (tmp_path / "key").write_bytes(b"short")
    assert main(["redact", str(text), "--key_file", str(tmp_path / "key")]) == 2
    assert "expected a file of at least 16 bytes" in capsys.readouterr().err


def test_redact_reads_standard_input(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{SECRET}\n".encode())))
    assert main(["redact", "-"]) == 0
    assert capsys.readouterr().out == "my ssn is [ssn]\n"


def test_redact_large_files_in_parts(tmp_path: Path) -> None:
    path, out = tmp_path / "large.txt", tmp_path / "out.txt"
    path.write_text((f"{'word ' * 300}{SECRET}\n") * 1500)  # 2.3 MB
    assert main(["redact", str(path), "--kinds", "ssn", "--out", str(out)]) == 0
    assert out.read_text() == path.read_text().replace("536-90-4399", "[ssn]")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, [], "TEXT is '.*', which is no file; expected"),
        (b"\xff\xfe", [], "which is not UTF-8"),
        (b"a\0b", [], "a binary file; expected"),
        (b"a", ["--json"], "--json is given without --out; expected both"),
        (b"a", ["--kinds", "names"], "invalid choice: 'names'"),
        (b"a", ["--region", "usa"], "region is 'usa'; expected"),
        (b"a", ["--pattern", "no blanks"], "pattern"),
    ],
)
def test_redact_says_what_is_wrong(tmp_path: Path, capsys: Any, content: Any, options: Any, message: str) -> None:
    path, out = tmp_path / "text.txt", tmp_path / "out.txt"
    if content is not None:
        path.write_bytes(content)
    where = [] if options == ["--json"] else ["--out", str(out)]
    assert main(["redact", str(path), *options, *where]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not out.exists()


def test_sanitize(text: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert main(["sanitize", str(text), "--out", str(out), "--share", "0.2", "--top", "5", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "3 of 15 samples to remove" in said
    assert len(said.splitlines()) == 2 + 5 + 2 + 3
    assert not any(word in said for word in ("house", "ssn", "4399"))
    kept = (out / "cleaned.txt").read_text().splitlines() + (out / "removed.txt").read_text().splitlines()
    assert sorted(kept) == sorted(text.read_text().splitlines())
    assert json.loads((out / "sanitization.json").read_text())["removed"] == 3
    assert main(["sanitize", str(text), "--out", str(out), *SMALL]) == 2
    assert "expected a directory without, because nothing is overwritten" in capsys.readouterr().err


def test_sanitize_as_json(text: Path, capsys: Any) -> None:
    assert main(["sanitize", str(text), "--json", "--folds", "3", "--no_group", "--per", "sample", *SMALL]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["samples"]) == 15
    assert {entry["part"] for entry in found["samples"]} == {0, 1, 2}
    assert found["masked"]
    assert main(["sanitize", str(text), "--reveal", *SMALL]) == 0
    assert SECRET in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere.txt"], "TEXT is 'nowhere.txt', which is no file; expected a UTF-8 text file"),
        (["--share", "2"], "share is 2.0; expected"),
        (["--folds", "9"], "has 15 samples; expected at least 18"),
        (["--window", "10000"], "expected more than window=10000"),
        (["--epochs", "0"], "epochs is 0; expected"),
    ],
)
def test_sanitize_says_what_is_wrong(text: Path, capsys: Any, options: list[str], message: str) -> None:
    given = options if options[0].endswith(".txt") else [str(text), *SMALL, *options]
    assert main(["sanitize", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
