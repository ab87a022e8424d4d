"""What was found in several texts as distinct secrets, each with the contexts in which it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning_exposure.secrets.scanner import Finding


@dataclass(frozen=True)
class FoundSecret:
    """A secret, however often and in whatever spelling it occurs in the texts.

    Attributes:
        kind: What it is.
        same: What all its writings have in common.
        occurrences: How often it stands there.
        places: The name of the text and the line, for each of them.
        contexts: One finding for each prompt and writing, the most common first.
    """

    kind: str
    same: str = field(repr=False)
    occurrences: int
    places: tuple[tuple[str, int], ...] = field(repr=False)
    contexts: tuple[Finding, ...]

    @property
    def text(self) -> str:
        """The secret in its most common writing."""
        return self.contexts[0].text


def distinct_secrets(findings: Sequence[Finding] | Mapping[str, Sequence[Finding]]) -> list[FoundSecret]:
    """The secrets among findings, those that stand there most often first.

    Args:
        findings: As `Scanner.find` gave them; of several texts, by the names of the texts.

    Example:
        >>> from lightning_exposure.secrets import Scanner
        >>> secret, = distinct_secrets(Scanner().find("my ssn is 536-90-4399. ssn: 536 90 4399"))
        >>> secret.occurrences, [finding.secret for finding in secret.contexts]
        (2, ['my ssn is 536-90-4399', '. ssn: 536 90 4399'])
    """
    by_text = findings if isinstance(findings, Mapping) else {"text": findings}
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for source, found in by_text.items():
        for finding in found:
            groups.setdefault((finding.format, finding.same), []).append((source, finding))
    secrets = [_as_one(kind, key, members) for (kind, key), members in groups.items()]
    return sorted(secrets, key=lambda secret: -secret.occurrences)  # stable: otherwise in the order of the texts


def _as_one(kind: str, key: str, members: Sequence[tuple[str, Finding]]) -> FoundSecret:
    times = Counter(finding.secret for _, finding in members)
    first = {finding.secret: finding for _, finding in reversed(members)}
    contexts = tuple(first[secret] for secret, _ in times.most_common())
    return FoundSecret(kind, key, len(members), tuple((source, it.line) for source, it in members), contexts)
