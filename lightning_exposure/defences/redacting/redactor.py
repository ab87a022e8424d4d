"""`redact` and `Redactor`: texts without their secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, get_args, overload

from lightning_exposure._checks import choice, refusal
from lightning_exposure.defences.redacting.pseudonyms import Pseudonyms
from lightning_exposure.secrets.scanner import Finding, Scanner

How = Literal["mask", "pseudonym"]
"""What takes the place of a secret."""

_BEFORE = 128
"""How many characters before a place a scanner may look at."""

_AT_ONCE = 2**20


class FindsSecrets(Protocol):
    """What a redactor asks of a scanner."""

    def find(self, text: str, /) -> Sequence[Finding]:
        """The secrets in a text."""
        ...


class Redactor:
    """Takes the secrets out of texts: one for all texts of a corpus, so that pseudonyms agree in all of it.

    Args:
        scanner: What finds them; None: `Scanner()`. Anything with a method `find` that returns findings will do.
        how: "mask": a secret becomes the name of its kind in brackets. "pseudonym": it becomes another one of the same
            format that is, where such exist, never issued.
        key: What pseudonyms depend on; None: the key of this machine.

    Attributes:
        counts: How many secrets of each kind were replaced so far.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> redactor = Redactor(how="pseudonym", key=b"only for this example")
        >>> redactor("my ssn is 536-90-4399"), redactor("Ann's is 536 90 4399, too")
        ('my ssn is 666-57-3954', "Ann's is 666 57 3954, too")
        >>> redactor.counts
        Counter({'ssn': 2})
    """

    def __init__(self, scanner: FindsSecrets | None = None, how: How = "mask", *, key: bytes | None = None) -> None:
        self.scanner: FindsSecrets = Scanner() if scanner is None else scanner
        if isinstance(scanner, str) or not callable(getattr(self.scanner, "find", None)):
            raise refusal("scanner", scanner, "a Scanner, or an object with a method find(text)", with_type=True)
        if key is not None and (not isinstance(key, bytes) or not key):
            raise refusal(
                "key", "what was given", "bytes", "For example secrets.token_bytes(32), kept in a safe place."
            )
        self.how: How = choice("how", how, get_args(How))
        self.counts: Counter[str] = Counter()
        self._pseudonyms = Pseudonyms(key, region=getattr(self.scanner, "region", "US")) if how == "pseudonym" else None

    @property
    def settings(self) -> dict[str, Any]:
        """What it does, as JSON types."""
        return {"how": self.how, "kinds": list(getattr(self.scanner, "kinds", [type(self.scanner).__name__]))}

    def __call__(self, text: str) -> str:
        """The text without its secrets.

        Raises:
            ArgumentError: It is no text.
            PseudonymError: There are more secrets of a kind than pseudonyms.
        """
        return self._without(text, self._find(text))

    def learn(self, texts: Iterable[str]) -> None:
        """Give the secrets of some texts their pseudonyms, in this order, before any text is asked for.

        Processes that have learnt the same texts in the same order give the same pseudonyms.
        """
        if self._pseudonyms is not None:
            for text in texts:
                for finding in self._find(text):
                    self._pseudonyms.of(finding)

    def stream(self, parts: Iterable[str], *, at_once: int = _AT_ONCE) -> Iterator[str]:
        """The same for a text that is read in parts, which may be cut anywhere.

        Args:
            parts: The text.
            at_once: About how many characters are looked at together.
        """
        behind = getattr(self.scanner, "longest", 512) + _BEFORE  # a secret that begins before this is all there
        kept, context = "", 0  # the first characters of what is kept were handed on already
        for part in parts:
            kept += part
            if len(kept) - context < at_once + 2 * behind:
                continue
            found = [finding for finding in self._find(kept) if finding.start >= context]
            cut = _last_break(kept, context, len(kept) - behind, found)
            yield self._without(kept, [finding for finding in found if finding.end <= cut], context, cut)
            begin = max(0, cut - _BEFORE)
            kept, context = kept[begin:], cut - begin
        yield self._without(kept, [finding for finding in self._find(kept) if finding.start >= context], context)

    def _find(self, text: str) -> list[Finding]:
        if not isinstance(text, str):
            raise refusal("text", text, "a string", "Redact texts before they are tokenized.", with_type=True)
        found = sorted(self.scanner.find(text), key=lambda finding: (finding.start, -finding.end))
        for finding in found:
            if text[finding.start : finding.end] != finding.text or not finding.text:
                raise refusal(
                    "scanner", type(self.scanner).__name__,
                    f"findings whose text is text[start:end], which a {finding.format} at {finding.start} has not",
                )  # fmt: skip
        return _apart(text, found)

    def _without(self, text: str, found: Sequence[Finding], begin: int = 0, end: int | None = None) -> str:
        """A part of a text, with everything that was found in it replaced."""
        kept = []
        for finding in found:
            new = self._instead(finding)
            if new is not None:
                kept += [text[begin : finding.start], new]
                begin = finding.end
                self.counts[finding.format] += 1
        return "".join([*kept, text[begin:end]])

    def _instead(self, finding: Finding) -> str | None:
        return f"[{finding.format}]" if self._pseudonyms is None else self._pseudonyms.of(finding)


def _apart(text: str, found: Sequence[Finding]) -> list[Finding]:
    """Findings that do not overlap: those that do become one that covers them all.

    If none of them is all of it, it is of no kind with a range of its own: what two secrets cover together has the
    format of neither.
    """
    clusters: list[list[Finding]] = []
    end = 0
    for finding in found:
        if clusters and finding.start < end:
            clusters[-1].append(finding)
        else:
            clusters.append([finding])
        end = max(end, finding.end)
    return [_joined(text, cluster) for cluster in clusters]


def _joined(text: str, cluster: Sequence[Finding]) -> Finding:
    start, end = cluster[0].start, max(finding.end for finding in cluster)
    for finding in cluster:
        if (finding.start, finding.end) == (start, end):
            return finding
    kinds = "+".join(dict.fromkeys(finding.format for finding in cluster))
    return replace(cluster[0], format=kinds, text=text[start:end], end=end, _given=None)


def _last_break(text: str, begin: int, end: int, found: Sequence[Finding]) -> int:
    """Where to cut: behind the last line break before a place, else behind the last space, and through no secret."""
    for sign in ("\n", " "):
        place = text.rfind(sign, begin, end) + 1
        if place > begin:
            break
    else:
        place = end
    for finding in found:
        if finding.start < place < finding.end:
            return finding.end
    return place


@overload
def redact(text: str, scanner: FindsSecrets | None = ..., how: How = ..., *, key: bytes | None = ...) -> str: ...
@overload
def redact(
    text: list[str] | tuple[str, ...], scanner: FindsSecrets | None = ..., how: How = ..., *, key: bytes | None = ...
) -> list[str]: ...


def redact(
    text: str | list[str] | tuple[str, ...],
    scanner: FindsSecrets | None = None,
    how: How = "mask",
    *,
    key: bytes | None = None,
) -> str | list[str]:
    """A text, or all texts of a corpus, without their secrets.

    Pseudonyms keep the format of a secret: its length, separators and letter case, and check digits that are right. The
    same secret gets the same pseudonym in all texts, with or without spaces and dashes in its number, and two secrets
    never get the same one. Dates and addresses that are written in another way count as others.
    Which it is depends on a key, without which it cannot be undone. They come from ranges that are never issued where
    such exist. Whoever has the key can still tell whose they are: pseudonyms are personal data.

    Redacting twice changes nothing more with masks, nor with pseudonyms of card, social security, account and phone
    numbers and of mail addresses, which are never issued; others get new pseudonyms.

    Args:
        text: A text, or a list of them; for more than fits in memory, use a `Redactor`.
        scanner: What finds the secrets; None: `Scanner()`.
        how: "mask" or "pseudonym".
        key: What pseudonyms depend on; None: the key of this machine.

    Raises:
        ArgumentError: An argument is out of range; it is named.
        PseudonymError: There are more secrets of a kind than pseudonyms.

    Example:
        >>> redact("Call 212-456-7890 or mail Bob.Lee@acme.com")
        'Call [phone] or mail [email]'
        >>> redact("Call 212-456-7890 or mail Bob.Lee@acme.com", how="pseudonym", key=b"only for this example")
        'Call 607-555-0130 or mail Mkd.Xyp@yuv.test'
    """
    redactor = Redactor(scanner, how, key=key)
    if isinstance(text, str):
        return redactor(text)
    if not isinstance(text, list | tuple):
        raise refusal("text", text, "a text or a list of texts", with_type=True)
    return [redactor(part) for part in text]
