"""Mailboxes built on the spot: what people wrote themselves is kept, and nothing else."""

from __future__ import annotations

import mailbox
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.data import read_mail
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.secrets import Scanner


def message(
    body: str, sender: str = "Ann <Ann@Example.com>", to: str = "bob@example.com", html: str = "", **headers: str
) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"] = sender, to
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    if body:
        made.set_content(body)
    if html:
        (made.add_alternative if body else made.set_content)(html, subtype="html")
    return made


def as_mbox(messages: Sequence[EmailMessage], directory: Path) -> Path:
    box = mailbox.mbox(directory / "mail.mbox")
    for each in messages:
        box.add(each)
    box.close()
    return directory / "mail.mbox"


def as_maildir(messages: Sequence[EmailMessage], directory: Path) -> Path:
    box = mailbox.Maildir(directory / "mail", create=True)
    for number, each in enumerate(messages):
        (box if number % 2 else box.add_folder("Sent")).add(each)
    box.close()
    return directory / "mail"


def as_files(messages: Sequence[EmailMessage], directory: Path) -> Path:
    """As in the Enron corpus: maildir/allen-p/_sent_mail/1."""
    for number, each in enumerate(messages, 1):
        folder = directory / "maildir" / "ann" / "_sent_mail"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.").write_bytes(bytes(each))
    return directory / "maildir"


@pytest.mark.parametrize("build", [as_mbox, as_maildir, as_files])
def test_every_kind_of_mailbox_gives_one_corpus_per_sender(build: Any, tmp_path: Path) -> None:
    mail = read_mail(
        build(
            [
                message("hello Bob,\nmy ssn is 536-90-4399\n"),
                message("hi Ann", sender="bob@example.com"),
                message("more from me, a little longer than that", Date="Tue, 01 Jan 2030 10:00:00 +0000"),
            ],
            tmp_path,
        )
    )
    assert list(mail.corpora) == ["ann@example.com", "bob@example.com"]  # who wrote most comes first
    assert sorted(mail.corpora["ann@example.com"].messages) == [
        "hello Bob,\nmy ssn is 536-90-4399",
        "more from me, a little longer than that",
    ]
    assert mail.corpora["bob@example.com"].text == "hi Ann\n"
    assert mail.left_out == {}
    (finding,) = Scanner().find(mail.corpora["ann@example.com"].text)
    assert finding.prompt == "my ssn is "


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("yes\n\n> shall we?\n>> or not?\n", "yes"),
        ("yes\n\nOn Mon, Jan 1, 2024 at 9:00 AM Bob <bob@x.com> wrote:\n> shall we?\n", "yes"),
        ("yes\n\nOn Mon, Jan 1, 2024 at 9:00 AM Bob Bobson\n<bob@x.com> wrote:\n> shall we?\n", "yes"),
        ("yes\n\nOn Monday, Bob wrote:\n\n> one?\n\nno\n\n> two?\n\nperhaps\n", "yes\n\nno\n\nperhaps"),
        ("top\n\nOn Monday, Bob wrote:\nnot marked as a quotation\n", "top"),
        ("see below\n\n-----Original Message-----\nFrom: Bob\nthe old text\n", "see below"),
        ("fyi\n\n---------------------- Forwarded by Bob/HOU/ECT on 01/01/2001 ---------\nold\n", "fyi"),
        ("fyi\n\nBegin forwarded message:\n\nold\n", "fyi"),
        ("ok\n\nFrom: Bob Bobson\nSent: Monday\nTo: Ann\nSubject: old\n\nthe old text", "ok"),
        ("From: here to there, it is far.\nSincerely", "From: here to there, it is far.\nSincerely"),
        ("On Monday I wrote it down:\nlike this", "On Monday I wrote it down:\nlike this"),
        ("one\r\ntwo\r\n", "one\ntwo"),
        ("> only a quotation\n", None),
    ],
)
def test_what_was_quoted_is_removed(body: str, kept: str | None, tmp_path: Path) -> None:
    mail = read_mail(as_mbox([message(body), message("x", sender="other@example.com")], tmp_path))
    if kept is None:
        assert mail.left_out == {"empty": 1}
        assert list(mail.corpora) == ["other@example.com"]
    else:
        assert mail.corpora["ann@example.com"].messages == (kept,)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Auto_Submitted": "auto-replied"}, "automatic"),
        ({"Precedence": "bulk"}, "automatic"),
        ({"List_Id": "<all.example.com>"}, "automatic"),
        ({"List_Unsubscribe": "<mailto:off@example.com>"}, "automatic"),
        ({"Return_Path": "<>"}, "automatic"),
        ({"Subject": "Out of Office: gone fishing"}, "automatic"),
        ({"Subject": "Automatic reply: your mail"}, "automatic"),
        ({"sender": "no-reply@example.com"}, "automatic"),
        ({"sender": "MAILER-DAEMON@example.com"}, "automatic"),
        ({"sender": "notifications+123@github.example.com"}, "automatic"),
        ({"to": "all-staff@example.com"}, "company-wide"),
        ({"to": "Everyone <everyone@example.com>"}, "company-wide"),
        ({"to": "houston.all@example.com"}, "company-wide"),
        ({"to": ", ".join(f"p{i}@example.com" for i in range(21))}, "company-wide"),
        ({"sender": "undisclosed"}, "no sender"),
    ],
)
def test_automatic_and_company_wide_mail_is_left_out(headers: dict[str, str], reason: str, tmp_path: Path) -> None:
    mail = read_mail(as_mbox([message("text", **headers)], tmp_path))
    assert mail.left_out == {reason: 1}
    assert mail.corpora == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto_Submitted": "no"},
        {"Subject": "the out of office party"},
        {"sender": "rootes@example.com"},
        {"sender": "alla@example.com", "to": "allan@example.com"},
        {"to": ", ".join(f"p{i}@example.com" for i in range(20))},
    ],
)
def test_mail_that_only_looks_automatic_is_kept(headers: dict[str, str], tmp_path: Path) -> None:
    assert len(read_mail(as_mbox([message("text", **headers)], tmp_path)).corpora) == 1


def test_only_bodies_are_read(tmp_path: Path) -> None:
    both = message("the plain text", html="<p>the same in colour</p>", Subject="a subject")
    both.add_attachment("an attachment", filename="notes.txt")
    page = message(
        "",
        html="<html><head><title>t</title><style>p {}</style></head><body><p>Hello&nbsp;Bob,</p><div>see<br>you</div>"
        "<blockquote>quoted</blockquote></body></html>",
        sender="cy@example.com",
    )
    mail = read_mail(as_mbox([both, page], tmp_path))
    assert mail.corpora["ann@example.com"].messages == ("the plain text",)
    assert mail.corpora["cy@example.com"].messages == ("Hello Bob,\n\nsee\nyou",)


def test_the_same_message_in_two_folders_counts_once(tmp_path: Path) -> None:
    twice = [message("same", Date="Tue, 01 Jan 2030 10:00:00 +0000", Message_ID=f"<{i}@x>") for i in range(2)]
    later = message("same", Date="Wed, 02 Jan 2030 10:00:00 +0000")
    mail = read_mail(as_files([*twice, later], tmp_path))
    assert mail.corpora["ann@example.com"].messages == ("same", "same")
    assert mail.left_out == {"duplicate": 1}


def test_charsets_and_lines_that_begin_with_from(tmp_path: Path) -> None:
    file = tmp_path / "old.mbox"
    file.write_bytes(
        b"From ann Mon Jan  1 00:00:00 2001\nFrom: ann@example.com\nTo: bob@example.com\n"
        b"Content-Type: text/plain; charset=iso-8859-1\n\ncaf\xe9\n>From here on\n\n"
        b"From cy Mon Jan  1 00:00:00 2001\nFrom: cy@example.com\n"
        b"Content-Type: text/plain; charset=nobody-knows\n\nstill read\n\n"
    )
    mail = read_mail(file)
    assert mail.corpora["ann@example.com"].messages == ("café\nFrom here on",)
    assert mail.corpora["cy@example.com"].messages == ("still read",)


@pytest.mark.parametrize("charset", ["nonsense", "idna", "undefined"])
def test_a_charset_that_cannot_decode_mail_is_no_reason_to_stop(charset: str, tmp_path: Path) -> None:
    header = f"From: ann@example.com\nTo: bob@example.com\nContent-Type: text/plain; charset={charset}"
    (tmp_path / "box.mbox").write_bytes(f"From ann\n{header}\n\nhello there\n".encode())
    assert read_mail(tmp_path / "box.mbox").corpora["ann@example.com"].text == "hello there\n"


def test_words_around_a_quotation_are_not_joined_and_half_a_maildir_is_read(tmp_path: Path) -> None:
    (tmp_path / "box" / "cur").mkdir(parents=True)
    header = "From: ann@example.com\nTo: bob@example.com\nContent-Type: text/html"
    content = f"{header}\n\n<p>call 12<blockquote>7</blockquote>34</p>\n"
    (tmp_path / "box" / "cur" / "1").write_bytes(content.encode())
    assert read_mail(tmp_path / "box").corpora["ann@example.com"].text.split() == ["call", "12", "34"]


def test_progress_and_errors(tmp_path: Path) -> None:
    seen: list[int] = []
    box = as_mbox([message("a"), message("b")], tmp_path)
    read_mail(box, on_count=seen.append)
    assert seen == [1, 2]
    assert read_mail(box, most_recipients=1).left_out == {}
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no mail at all\n", encoding="utf-8")
    for path in (tmp_path / "empty", tmp_path / "text.txt"):
        with pytest.raises(DataError, match="no message in it; expected an mbox file, a maildir"):
            read_mail(path)
    with pytest.raises(DataError, match="expected a mailbox that exists"):
        read_mail(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="most_recipients is 0; expected an integer of at least 1"):
        read_mail(box, most_recipients=0)
