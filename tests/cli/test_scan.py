"""`lightning-exposure scan`: from a text or a mailbox to a table that shows no secret."""

from __future__ import annotations

import json
import mailbox
import stat
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import CanarySet, CharTokenizer
from lightning_exposure.cli._texts import is_mailbox, read_texts
from tests.cli.conftest import Run

FORMAT = "--format=my pin is ####"


@pytest.fixture
def secrets(run_dir: Path) -> list[str]:
    """What stands in the training data of the run: once, and 30 times."""
    return [canary.text for canary in CanarySet.load(run_dir / "canaries.json")]


@pytest.fixture
def text(tmp_path: Path, secrets: list[str]) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text(f"{secrets[0]}.\n{secrets[1]}.\nas i said: {secrets[1]}.\nmy ssn is 536-90-4399.\n")
    return path


def digits(secret: str) -> str:
    return secret[-4:]


def test_a_table_without_any_secret(run: Run, run_dir: Path, text: Path, secrets: list[str]) -> None:
    done = run("scan", text, "--model", run_dir, FORMAT)
    assert done.code == 0, done.err
    assert "Not calibrated" in done.out
    assert "3 distinct secrets" in done.out
    for hidden in (*map(digits, secrets), "536", "4399", "my pin"):
        assert hidden not in done.out.replace("pin-", "")
    shown = run("scan", text, "--model", run_dir, FORMAT, "--reveal")
    for secret in secrets:
        assert digits(secret) in shown.out


def test_json_has_one_row_for_each_secret(run: Run, run_dir: Path, text: Path, secrets: list[str]) -> None:
    done = run("scan", text, "--model", run_dir, "--reference", run_dir, FORMAT, "--json", "--reveal", "--alpha=0.1")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["calibrated"] is True
    assert content["threshold_bits"] == pytest.approx(4.907, abs=1e-3), "log2(3 / 0.1)"
    rows = {row["secret"]: row for row in content["rows"]}
    assert set(rows) == {*map(digits, secrets), "536-90-4399"}
    assert rows[digits(secrets[1])]["occurrences"] == 2
    assert rows[digits(secrets[1])]["places"] == [{"text": "notes.txt", "line": 2}, {"text": "notes.txt", "line": 3}]
    for row in content["rows"]:
        assert row["exposure"]["low"] <= row["exposure"]["bits"] <= row["exposure"]["high"]
        assert 0.0 <= row["leak"]["low"] <= row["leak"]["high"] <= 1.0
        # The model is its own reference: what it expects anyway is not memorized.
        assert row["memorized"] is False


def test_a_page_and_who_may_read_it(run: Run, run_dir: Path, text: Path, secrets: list[str], tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    assert run("scan", text, "--model", run_dir, FORMAT, "--out", page, "--limit=1").code == 0
    content = page.read_text()
    assert "not calibrated" in content.lower()
    assert digits(secrets[1]) not in content
    assert "2 more not measured" in content
    for name in ("page.html", "scan.json"):
        out = tmp_path / name
        assert run("scan", text, "--model", run_dir, FORMAT, "--limit=1", "--reveal", "--out", out).code == 0
        assert digits(secrets[1]) in out.read_text()
        assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_a_reference_from_another_run_may_have_another_tokenizer(
    run: Run, run_dir: Path, text: Path, tmp_path: Path
) -> None:
    from lightning_exposure.modules import LanguageModel

    other = CharTokenizer.from_text((run_dir / "tokenizer.json").read_text(), text.read_text(), "0123456789 mypinsi~")
    torch.manual_seed(0)
    model = LanguageModel("gru", vocab_size=other.vocab_size, hidden_size=8, num_layers=1, embedding_size=8)
    (tmp_path / "other").mkdir()
    other.save(tmp_path / "other" / "tokenizer.json")
    _save(model, tmp_path / "other" / "model.ckpt")
    done = run("scan", text, "--model", run_dir, "--reference", tmp_path / "other", FORMAT, "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["calibrated"]
    assert all(row["exposure"] is not None for row in content["rows"])


def _save(model: Any, path: Path) -> None:
    import lightning.pytorch as pl

    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)


def test_a_hugging_face_directory(run: Run, hf_dir: Path, text: Path) -> None:
    done = run("scan", text, "--model", hf_dir, FORMAT, "--json", "--samples=256", "--budget=500")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert len(rows) == 3
    assert all(row["exposure"] for row in rows), rows


def test_a_format_by_its_name(run: Run, run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my pin is 1234, and my code is ab1\n")
    formats = ["--format=pin", "--format=regex:my code is [a-z]{2}[0-9]"]
    done = run("scan", path, "--model", run_dir, *formats, "--json", "--reveal", "--samples=64", "--budget=200")
    assert done.code == 0, done.err
    assert {row["secret"] for row in json.loads(done.out)["rows"]} == {"1234", "ab1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.txt", "--model", "{run}"], "nowhere.txt does not exist"),
        (["{text}", "--model", "nowhere"], "--model is 'nowhere', which does not exist"),
        (["{text}", "--model", "{run}", "--reference", "nowhere"], "--reference is 'nowhere'"),
        (["{text}", "--model", "{run}", "--alpha", "3"], "alpha is 3.0"),
        (["{text}", "--model", "{run}", "--limit", "0"], "limit is 0"),
        (["{text}"], "--model"),
    ],
)
def test_mistakes_are_named(run: Run, run_dir: Path, text: Path, arguments: list[str], message: str) -> None:
    done = run("scan", *(argument.format(run=run_dir, text=text) for argument in arguments))
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


# --- what is read -------------------------------------------------------------------------------------------


def message(sender: str, body: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = sender, "bob@example.com", "hello"
    made["Date"] = "Mon, 02 Jan 2023 10:00:00 +0000"
    made.set_content(body)
    return made


MAIL = [message("ann@example.com", "my ssn is 536-90-4399"), message("eve@example.com", "nothing\n> my pin is 1234")]


def as_mbox(path: Path) -> Path:
    box = mailbox.mbox(path / "box.mbox")
    for each in MAIL:
        box.add(each)
    box.close()
    return path / "box.mbox"


def as_maildir(path: Path) -> Path:
    box = mailbox.Maildir(path / "maildir")
    for each in MAIL:
        box.add(each)
    return path / "maildir"


def as_files(path: Path) -> Path:
    for number, each in enumerate(MAIL):
        (path / "enron" / f"person-{number}" / "sent").mkdir(parents=True)
        (path / "enron" / f"person-{number}" / "sent" / "1.").write_bytes(each.as_bytes())
    return path / "enron"


@pytest.mark.parametrize("make", [as_mbox, as_maildir, as_files])
def test_mailboxes_are_read_one_sender_at_a_time(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    assert is_mailbox(path)
    assert dict(read_texts(str(path), reveal=True)) == {
        "ann@example.com": "my ssn is 536-90-4399\n",
        "eve@example.com": "nothing\n",
    }
    # The address of a sender is a secret like any other.
    assert list(dict(read_texts(str(path)))) == ["sender 1", "sender 2"]


def test_a_directory_of_texts_without_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("From here on: to be continued\n")
    (tmp_path / "sub" / "b.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    assert not is_mailbox(tmp_path)
    assert dict(read_texts(str(tmp_path))) == {"a.txt": "From here on: to be continued\n", "sub/b.txt": "caf\ufffd\n"}


def test_a_secret_in_the_name_of_a_file_is_not_shown_either(run: Run, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "ann@example.com.txt").write_text("write to ann@example.com")
    done = run("scan", tmp_path / "ann@example.com.txt", "--model", run_dir, "--json")
    assert done.code == 0, done.err
    assert "ann@" not in done.out
