"""What of a message its sender wrote, and whether a person wrote it to persons."""

from __future__ import annotations

import re
from email.message import EmailMessage, Message
from email.utils import getaddresses
from html.parser import HTMLParser

_MACHINES = re.compile(
    r"^(?:no-?_?reply|do-?_?not-?_?reply|mailer-daemon|postmaster|bounces?|notifications?|alerts?|daemon|root|cron|"
    r"auto-?(?:mailer|reply|notify)?|system|newsletter|listserv|majordomo)(?:[+._-].*)?@"
)
_AUTOMATIC_HEADERS = ("List-Id", "List-Unsubscribe", "X-Autoreply", "X-Autorespond")
_AUTOMATIC_SUBJECT = re.compile(
    r"^(?:out of (?:the )?office|automatic reply|auto(?:matic)?[ -]?(?:response|reply)|undeliver(?:able|ed)|"
    r"delivery (?:status notification|failure)|mail delivery (?:failed|subsystem)|returned mail|read:|accepted:|"
    r"declined:|tentative:)",
    re.IGNORECASE,
)
_EVERYONE = re.compile(
    r"^(?:all|everyone|everybody|company|companywide|company-wide|staff|employees|office)(?:[._-].*)?@"
    r"|^[^@]*[._-](?:all|everyone|everybody|staff|employees|worldwide)@"
)
_FORWARDED = re.compile(
    r"^\s*(?:-{2,}\s*(?:original (?:message|appointment)|forwarded (?:message|by)|begin forwarded).*"
    r"|begin forwarded message:|_{10,}\s*)$",
    re.IGNORECASE,
)
_ATTRIBUTION = re.compile(
    r"^\s*(?:on\b.{4,120}\bwrote|.{0,80}<[^>\s]+@[^>\s]+>\s+wrote|am\b.{4,120}\bschrieb.{0,60})\s*:\s*$",
    re.IGNORECASE,
)
_OUTLOOK = re.compile(r"^\s*\*?(?:From|Sent by|Von):\*?\s.+$")
_OUTLOOK_NEXT = re.compile(r"^\s*\*?(?:Sent|To|Date|Subject|Cc|Gesendet|An|Betreff):\*?(?:\s.*)?$")


def header(message: Message, name: str) -> str:
    """A header as text; "" if it is not there or cannot be read."""
    try:
        return str(message.get(name, ""))
    except (ValueError, IndexError, AttributeError, LookupError):  # what is broken beyond reading
        return ""


def body_of(message: Message) -> str:
    """The text of a message, without attachments; of one in HTML alone, what a reader sees."""
    part: Message | None = message
    if isinstance(message, EmailMessage):
        part = message.get_body(("plain", "html"))
    if part is None or part.is_multipart():
        return ""
    content = part.get_payload(decode=True)
    data = content if isinstance(content, bytes) else b""
    try:
        text = data.decode(part.get_content_charset() or "utf-8", errors="replace")
    except (LookupError, ValueError):  # a charset that nobody knows, or that is none for mail
        text = data.decode("utf-8", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _without_tags(text) if part.get_content_type() == "text/html" else text


def own_words(text: str) -> str:
    r"""A body without what was quoted or forwarded.

    >>> own_words("yes\n\nOn Monday, Bob wrote:\n> shall we?\nbye")
    'yes\n\nbye'
    """
    lines = _joined(text.split("\n"))
    kept: list[str] = []
    for place, line in enumerate(lines):
        if _FORWARDED.match(line) or _is_outlook(lines, place):
            break
        if _ATTRIBUTION.match(line):
            following = next((other for other in lines[place + 1 :] if other.strip()), "")
            if following.lstrip().startswith(">"):
                continue  # the quoted lines go, what was written between them stays
            break
        if not line.lstrip().startswith(">"):
            kept.append(line.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def automatic(message: Message, sender: str) -> bool:
    """Whether a program wrote a message, or a list sent it on."""
    submitted = header(message, "Auto-Submitted").strip().lower()
    precedence = header(message, "Precedence").strip().lower()
    return (
        (submitted not in ("", "no"))
        or precedence in ("bulk", "list", "junk", "auto_reply")
        or any(message.get(name) is not None for name in _AUTOMATIC_HEADERS)
        or header(message, "Return-Path").strip() == "<>"
        or message.get_content_type() == "multipart/report"
        or _MACHINES.match(sender) is not None
        or _AUTOMATIC_SUBJECT.match(header(message, "Subject").strip()) is not None
    )


def for_everyone(message: Message, most_recipients: int) -> bool:
    """Whether a message went to more people than this, or to an address that stands for all of them."""
    fields = [header(message, name) for name in ("To", "Cc", "Bcc")]
    addresses = {address.lower() for _, address in getaddresses([field for field in fields if field]) if address}
    return len(addresses) > most_recipients or any(_EVERYONE.search(address) for address in addresses)


def _joined(lines: list[str]) -> list[str]:
    """Lines, with an attribution that was broken over two of them as one."""
    joined: list[str] = []
    skip = False
    for place, line in enumerate(lines):
        if skip:
            skip = False
            continue
        after = lines[place + 1] if place + 1 < len(lines) else ""
        if re.match(r"\s*(?:On|Am)\b", line) and not _ATTRIBUTION.match(line) and _ATTRIBUTION.match(f"{line} {after}"):
            line, skip = f"{line} {after}", True
        joined.append(line)
    return joined


def _is_outlook(lines: list[str], place: int) -> bool:
    """Whether the headers of another message begin here, as Outlook puts them above what it quotes."""
    if not _OUTLOOK.match(lines[place]):
        return False
    following = [line for line in lines[place + 1 : place + 5] if line.strip()]
    return sum(bool(_OUTLOOK_NEXT.match(line)) for line in following[:3]) >= 2


class _Reader(HTMLParser):
    """Collects what a reader of a page sees; quotations are left out."""

    _BREAKS = frozenset({"br", "p", "div", "tr", "li", "h1", "h2", "h3", "table", "blockquote"})
    _HIDDEN = frozenset({"script", "style", "head", "blockquote", "title"})

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self._HIDDEN
        if tag in self._BREAKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self._HIDDEN and self._hidden > 0
        if tag in self._BREAKS - {"br"}:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(re.sub(r"\s+", " ", data))


def _without_tags(page: str) -> str:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return re.sub(r" *\n *", "\n", "".join(reader.pieces))
