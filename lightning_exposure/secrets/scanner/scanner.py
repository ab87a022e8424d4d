"""`Scanner`: finds the secrets in a text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.scanner._detectors import LONGEST, Detector, built_in, of_format
from lightning_exposure.secrets.scanner._validators import is_region
from lightning_exposure.secrets.scanner.finding import Finding

KINDS = tuple(detector.name for detector in built_in("US"))
"""What a scanner knows by itself."""

_AT_ONCE = 2**18
"""How many characters are scanned between two calls of `on_count`."""

_PROMPT = 40
"""How many characters a prompt has at most."""


class Scanner:
    r"""Finds secrets in text: by what they look like, by their check digits, and by the words before them.

    Social security numbers, card numbers, IBANs, phone numbers, addresses of mail, dates of birth, street addresses,
    API keys and passwords; and whatever fits a format of your own.

    Args:
        formats: Formats of your own to look for besides; their texts are found with their prompts.
        kinds: Which of the built-in kinds to look for; None: all.
        region: The country of phone numbers that are written without one, in two letters.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> finding, = Scanner().find("Dear Ann,\nmy card is 4111 1111 1111 1111, thanks.")
        >>> finding.format, finding.text, finding.line, finding.prompt
        ('credit-card', '4111 1111 1111 1111', 2, 'my card is ')
        >>> Scanner().find("order 4111 1111 1111 1112, version 1.2.3")
        []
    """

    def __init__(
        self, formats: Iterable[SecretFormat] = (), *, kinds: Sequence[str] | None = None, region: str = "US"
    ) -> None:
        own = [formats] if isinstance(formats, SecretFormat) else list(formats)
        for format in own:
            if not isinstance(format, SecretFormat):
                raise ArgumentError(
                    f"formats has {format!r}; expected SecretFormats, such as SecretFormat('pin ####')."
                )
        wanted = KINDS if kinds is None else tuple(kinds)
        unknown = [kind for kind in wanted if kind not in KINDS]
        if unknown or isinstance(kinds, str):
            raise ArgumentError(f"kinds is {kinds!r}; expected a list of {', '.join(KINDS)}.")
        if not isinstance(region, str) or not is_region(region):
            raise ArgumentError(
                f"region is {region!r}; expected a country in two capital letters as ISO 3166 has it, such as 'US' or "
                "'GB'. Without it, numbers without a country code are never found."
            )
        self.region = region
        # The user's own come first: they know better what it is.
        self._detectors = [*map(of_format, own), *(known for known in built_in(region) if known.name in wanted)]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of what it looks for, in the order in which they take what two of them find."""
        return tuple(detector.name for detector in self._detectors)

    @property
    def longest(self) -> int:
        """No secret that it finds has more characters, with what comes before it in a format of your own."""
        # No text of a format comes back to a state that it has passed.
        own = [len(detector.given.acceptor()) for detector in self._detectors if detector.given is not None]
        return max([LONGEST, *own])

    def find(self, text: str, *, on_count: Callable[[int, int], None] | None = None) -> list[Finding]:
        """The secrets in a text, in the order in which they stand there.

        Args:
            text: The text, of any length and any number of lines.
            on_count: Called with how many characters are done, and how many there are.

        Raises:
            ArgumentError: It is no text.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text is {type(text).__name__}; expected a string: read the file first.")
        found: list[tuple[int, int, Detector]] = []
        behind = [0] * len(self._detectors)  # where the last finding of each detector ends
        for begin in range(0, len(text), _AT_ONCE):
            end = min(len(text), begin + _AT_ONCE)
            for number, detector in enumerate(self._detectors):
                for start, stop in detector.search(text, max(begin, behind[number]), end):
                    found.append((start, stop, detector))
                    behind[number] = stop
            if on_count is not None:
                on_count(end, len(text))
        return self._as_findings(text, self._without_overlaps(found))

    def _without_overlaps(self, found: list[tuple[int, int, Detector]]) -> list[tuple[int, int, Detector]]:
        """Of two that overlap, the one of the detector that comes first."""
        order = {id(detector): place for place, detector in enumerate(self._detectors)}
        starts: list[int] = []
        kept: list[tuple[int, int, Detector]] = []
        for entry in sorted(found, key=lambda entry: (order[id(entry[2])], entry[0])):
            place = bisect_right(starts, entry[0])
            overlaps = (place > 0 and kept[place - 1][1] > entry[0]) or (
                place < len(kept) and kept[place][0] < entry[1]
            )
            if not overlaps:
                starts.insert(place, entry[0])
                kept.insert(place, entry)
        return kept

    def _as_findings(self, text: str, found: Sequence[tuple[int, int, Detector]]) -> list[Finding]:
        breaks = [match.start() for match in re.finditer("\n", text)]
        keys = [(detector.name, detector.same(text[start:end])) for start, end, detector in found]
        times = Counter(keys)
        findings = []
        behind = 0
        for (start, end, detector), key in zip(found, keys, strict=True):
            prompt = _prompt(text, start, behind) if detector.given is None else detector.given.prompt
            behind = end
            line = bisect_right(breaks, start - 1) + 1 if start else 1
            finding = Finding(detector.name, text[start:end], start, end, line, prompt, times[key])
            findings.append(finding if detector.given is None else replace(finding, _given=detector.given))
        return findings


def _prompt(text: str, start: int, behind: int) -> str:
    """The last words before a place: of its line, or of the lines before where it begins one.

    What stands behind another secret does not begin before its end: a prompt is shown, and secrets are not.
    """
    before = text[max(0, behind, start - _PROMPT) : start]
    line = before[before.rfind("\n", 0, len(before.rstrip())) + 1 :] if before.strip() else before
    # A word that was cut at the beginning is left out.
    if len(line) == _PROMPT and start > _PROMPT and not text[start - _PROMPT - 1].isspace() and " " in line.strip():
        line = line[line.index(" ") + 1 :]
    return line
