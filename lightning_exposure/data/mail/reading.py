"""Mail as training data: what people wrote themselves, one corpus per sender.

As in section 7.2 of the paper: bodies only; quoted replies, automatic and company-wide mail are left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from email.policy import default
from email.utils import getaddresses
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_exposure._checks import whole_number
from lightning_exposure.data.mail._texts import automatic, body_of, for_everyone, header, own_words
from lightning_exposure.errors import DataError

if TYPE_CHECKING:
    from mailbox import Maildir


@dataclass(frozen=True)
class Corpus:
    """What one person wrote.

    Attributes:
        sender: Their address, in lower case.
        messages: The bodies, in the order of the mailbox.
    """

    sender: str
    messages: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it, with an empty line between two messages."""
        return "\n\n".join(self.messages) + "\n"


@dataclass(frozen=True)
class Mail:
    """What a mailbox holds.

    Attributes:
        corpora: What each sender wrote, by address, those who wrote most first.
        left_out: How many messages were left out, by reason: "automatic", "company-wide", "empty", "duplicate",
            "no sender".
    """

    corpora: Mapping[str, Corpus]
    left_out: Mapping[str, int]


def read_mail(
    path: str | os.PathLike[str], *, most_recipients: int = 20, on_count: Callable[[int], None] | None = None
) -> Mail:
    r"""Read a mailbox: an mbox file, a maildir, or a directory with one file per message, as in the Enron corpus.

    Args:
        path: The file or the directory. Messages in folders below a directory are read, too.
        most_recipients: A message to more people than this is company-wide.
        on_count: Called with the number of messages read, after each.

    Raises:
        DataError: There is nothing, or no message in it.
        ArgumentError: `most_recipients` is not a whole number of at least 1.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp(), "mail.mbox")
        >>> _ = file.write_bytes(b"From ann\nFrom: Ann <Ann@example.com>\nTo: bob@example.com\n\nhello\n> hi\n")
        >>> read_mail(file).corpora["ann@example.com"].text
        'hello\n'
    """
    most = whole_number("most_recipients", most_recipients, at_least=1)
    bodies: dict[str, list[str]] = {}
    seen: set[tuple[str, str, str]] = set()
    left_out: Counter[str] = Counter()
    count = 0
    for count, message in enumerate(_messages(Path(path)), 1):
        sender = _sender(message)
        text = own_words(body_of(message)) if sender else ""
        key = sender, header(message, "Date"), text
        reason = _reason(message, sender, text, most, key in seen)
        if reason:
            left_out[reason] += 1
        else:
            seen.add(key)
            bodies.setdefault(sender, []).append(text)
        if on_count is not None:
            on_count(count)
    if not count:
        raise DataError(
            f"path is {os.fspath(path)!r}, with no message in it; expected an mbox file, a maildir (with cur, new and "
            "tmp) or a directory with one file per message. Check the path."
        )
    order = sorted(bodies, key=lambda sender: -sum(map(len, bodies[sender])))
    return Mail({sender: Corpus(sender, tuple(bodies[sender])) for sender in order}, dict(left_out))


def _reason(message: Message, sender: str, text: str, most_recipients: int, seen: bool) -> str:
    """Why a message is left out; "" if it is not."""
    if not sender:
        return "no sender"
    if automatic(message, sender):
        return "automatic"
    if for_everyone(message, most_recipients):
        return "company-wide"
    if not text:
        return "empty"
    return "duplicate" if seen else ""


def _messages(path: Path) -> Iterator[Message]:
    """All messages, whatever kind of mailbox it is."""
    # Here and not above: a script of that name beside the one that is run (examples/mailbox.py) would be imported.
    import mailbox

    if path.is_dir():
        if (path / "cur").is_dir() and (path / "new").is_dir():
            yield from _in_maildir(mailbox.Maildir(path, factory=None, create=False))
        else:
            for file in sorted(file for file in path.rglob("*") if file.is_file()):
                message = message_from_bytes(file.read_bytes(), policy=default)
                if message.keys():  # otherwise it is no message
                    yield message
        return
    if not path.is_file():
        raise DataError(f"path is {str(path)!r}; expected a mailbox that exists. Check the path.")
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            # Lines of a body that begin with "From " have a mark in an mbox file.
            content = box.get_bytes(key).replace(b"\n>From ", b"\nFrom ")
            yield message_from_bytes(content, policy=default)
    finally:
        box.close()


def _in_maildir(box: Maildir) -> Iterator[Message]:
    """The messages of a maildir and of its folders."""
    for key in sorted(box.iterkeys()):
        yield message_from_bytes(box.get_bytes(key), policy=default)
    for name in sorted(box.list_folders()):
        yield from _in_maildir(box.get_folder(name))


def _sender(message: Message) -> str:
    """The address that a message comes from, in lower case."""
    for _, address in getaddresses([header(message, "From")]):
        if "@" in address:
            return address.lower()
    return ""
