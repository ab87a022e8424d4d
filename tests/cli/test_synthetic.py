"""`lightning-exposure synthetic`: from generated texts to a table, JSON and a page that show no canary."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulated_releases import FORMAT, blind, canaries, memorizing, prose
from lightning_exposure import CanarySet
from lightning_exposure.cli._records import read_records
from lightning_exposure.errors import DataError
from lightning_exposure.synthetic.text.scorers import SCORERS
from tests.cli.conftest import Run
from tests.secrecy import leaked


@pytest.fixture
def drawn(tmp_path: Path) -> CanarySet:
    drawn = canaries(60)
    drawn.save(tmp_path / "canaries.json")
    (tmp_path / "texts.txt").write_text("\n".join(memorizing(drawn, 0)) + "\n")
    (tmp_path / "blind.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in blind(drawn, 0)))
    train, held_out = (prose(np.random.default_rng(seed), 40) for seed in (1, 2))
    (tmp_path / "train.txt").write_text("\n".join(train))
    (tmp_path / "held-out.txt").write_text("\n".join(held_out))
    return drawn


@pytest.fixture
def given(tmp_path: Path, drawn: CanarySet) -> list[str]:
    return ["--texts", f"{tmp_path}/texts.txt", "--canaries", f"{tmp_path}/canaries.json", "--scorers", "ngram"]


def test_a_table_without_any_canary(run: Run, given: list[str], drawn: CanarySet, tmp_path: Path) -> None:
    done = run("synthetic", *given, "--train", tmp_path / "train.txt", "--span", "12")
    assert done.code == 0, done.err
    assert "The release has an epsilon of at least " in done.out
    assert "canaries, word for word" in done.out
    assert "other training texts in the place of as much of the release" in done.out
    secrets = [(text, FORMAT) for text in drawn.texts]
    assert not leaked(done.out, secrets)
    assert leaked(run("synthetic", *given, "--reveal").out, secrets)


def test_json_and_lines_of_json(run: Run, given: list[str], drawn: CanarySet, tmp_path: Path) -> None:
    files = ["--train", tmp_path / "train.txt", "--held_out", tmp_path / "held-out.txt"]
    done = run(
        "synthetic",
        *given,
        "--texts",
        tmp_path / "blind.jsonl",
        *files,
        "--json",
        "--span",
        "12",
        "--confidence",
        "0.9",
    )
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["texts"] == 50 + 30
    assert content["confidence"] == 0.9
    assert content["masked"] is True
    assert content["spans"]["compared_with"] == "held-out texts"
    assert content["epsilon_lower"] == 0.0
    assert {row["id"] for row in content["canaries"]} == {canary.id for canary in drawn}


def test_a_promise_that_is_contradicted_is_exit_code_1(run: Run, given: list[str]) -> None:
    done = run("synthetic", *given, "--promised", "0.1")
    assert done.code == 1
    assert done.out.splitlines()[-1] == "This contradicts the epsilon of 0.1 that was promised."
    assert run("synthetic", *given, "--promised", "8").code == 0


def test_a_page_and_who_may_read_it(run: Run, given: list[str], drawn: CanarySet, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    secrets = [(text, FORMAT) for text in drawn.texts]
    page = tmp_path / "page.html"
    assert run("synthetic", *given, "--out", page).code == 0
    content = page.read_text()
    assert "The texts show an epsilon of at least" in content
    assert "10 more are not shown" in content
    assert "://" not in content, "it needs nothing from elsewhere"
    assert not leaked(content, secrets)
    for name in ("revealed.html", "revealed.json"):
        out = tmp_path / name
        assert run("synthetic", *given, "--reveal", "--out", out).code == 0
        assert leaked(out.read_text(), secrets)
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert run("synthetic", *given, "--texts", tmp_path / "blind.jsonl", "--out", page).code == 0
    assert "Nothing is shown about single records" in page.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--texts", "nowhere.txt"], "--texts is 'nowhere.txt', which is no file"),
        (["--texts", "{empty}"], "which has no text in it"),
        (["--texts", "{little}"], "texts has 2 characters in 1 text; expected at least 180"),
        (["--train", "{empty}"], "--train is "),
        (["--canaries", "nowhere.json"], "--canaries is 'nowhere.json', which is no file; expected the canaries"),
        (["--canaries", "."], "--canaries is '.', which is no file; expected the canaries"),
        (["--canaries", "{no_coins}"], "none drawn with a holdout"),
        (["--held_out", "{little}"], "held_out is given without train"),
        (["--confidence", "95"], "confidence is 95"),
        (["--edits", "-1"], "--edits is -1"),
        (["--promised", "-1"], "--promised is -1"),
        (["--scorers", "nothing"], "--scorers"),
    ],
)
def test_mistakes_are_named(run: Run, given: list[str], tmp_path: Path, changes: list[str], message: str) -> None:
    (tmp_path / "empty").write_text("\n\n  \n")
    (tmp_path / "little").write_text("ab\n")
    CanarySet.draw(FORMAT, repetitions=[1] * 20).save(tmp_path / "no_coins")
    names = {name: tmp_path / name for name in ("empty", "little", "no_coins")}
    done = run("synthetic", *given, *(change.format(**names) for change in changes))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_too_few_canaries_are_warned_of(run: Run, given: list[str], tmp_path: Path) -> None:
    few = canaries(6)
    few.save(tmp_path / "few.json")
    done = run("synthetic", *given, "--canaries", tmp_path / "few.json")
    assert done.code == 0
    assert "warning: The audit has 6 canaries: even if every guess is right, it cannot show" in done.err


def test_a_scorer_of_one_s_own(run: Run, given: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from lightning_exposure.synthetic.text.scorers import SCORERS\n"
        "@SCORERS.register('said')\n"
        "def said(texts, asked, *, seed):\n"
        "    return [float(secret.text in texts) for secret in asked]\n"
    )
    try:
        done = run("--import", tmp_path / "mine.py", "synthetic", *given[:-1], "said", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["scorers"]["said"]["auc"] > 0.7
    finally:
        SCORERS.unregister("said")


def test_the_command_is_listed(run: Run) -> None:
    assert "synthetic" in run("--help").out


# --- what is read -------------------------------------------------------------------------------------------


def test_lines_are_texts_and_json_may_hold_line_breaks(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_bytes("\ufeffone\r\n\n  \n two\u2028still two\n".encode())
    lines.write_text('"one\\ntwo"\n\n{"text": "three", "id": 3}\n')
    assert read_records(str(plain), "--texts") == ["one", " two\u2028still two"]
    assert read_records(str(lines), "--texts") == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"a"\nb\n', "line 2 is not JSON"),
        (b"3\n", "line 1 is a int"),
        (b'{"txt": "a"}\n', "line 1 is an object without a string under 'text'"),
        (b"\xff\n", "which is not UTF-8"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_records(str(path), "--texts")
