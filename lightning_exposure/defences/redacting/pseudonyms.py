"""`Pseudonyms`: the same secret gets the same pseudonym, and two secrets never get the same."""

from __future__ import annotations

from lightning_exposure.defences.redacting._permutation import KeyedPermutation, keyed_number, subkey
from lightning_exposure.defences.redacting._ranges import Range, range_for
from lightning_exposure.errors import PseudonymError
from lightning_exposure.secrets.masking import machine_key
from lightning_exposure.secrets.scanner import Finding

_TRIES = 2**14
"""How many pseudonyms in a row may be taken, or refused, before a range counts as used up."""


class Pseudonyms:
    """Gives secrets pseudonyms that keep their format, and remembers which are taken.

    Where pseudonyms are from a range that is never issued, there are fewer of them than there may be secrets. Each
    secret then begins to look at a place that the key tells, and takes the first that is free; so nearly all
    pseudonyms depend on the key and the secret alone, and those few that two secrets would both begin with on which of
    them came first. Where there is no such range, pseudonyms are a permutation of the secrets of one shape, which
    depends on the key alone.

    What is remembered are keyed hashes: without the key nobody can tell from it which secrets there were.

    Args:
        key: What pseudonyms depend on; None: the key of this machine.
        region: The country of phone numbers without one, in two letters.

    Example:
        >>> from lightning_exposure.secrets import Scanner
        >>> pseudonyms = Pseudonyms(key=b"only for this example")
        >>> finding, again = Scanner().find("my ssn is 536-90-4399; SSN: 536 90 4399")
        >>> pseudonyms.of(finding), pseudonyms.of(again)
        ('666-57-3954', '666 57 3954')
    """

    def __init__(self, key: bytes | None = None, *, region: str = "US") -> None:
        self._key = subkey(machine_key() if key is None else key, "pseudonyms")
        self._region = region
        self._places: dict[bytes, int] = {}
        self._taken: dict[bytes, set[int]] = {}

    def __repr__(self) -> str:
        """Without the key."""
        return f"Pseudonyms({len(self._places):,} secrets)"

    def of(self, finding: Finding) -> str | None:
        """The pseudonym of a secret; None: it needs none, because it is from a range that is never issued.

        Raises:
            PseudonymError: None is left.
        """
        among = range_for(finding, self._region)
        if among is None:
            return None
        key = subkey(self._key, finding.format, among.name)
        if among.own is None:
            return among.text_of(self._place(finding.format, among, key))
        if among.size < 2:
            raise PseudonymError(
                f"{finding.format} has a secret that no other text looks like; expected at least two texts of its "
                "format. Use how='mask'."
            )
        return among.text_of(KeyedPermutation(key, among.size).displaced(among.own))

    def _place(self, kind: str, among: Range, key: bytes) -> int:
        secret = subkey(key, "secret", among.same)
        if secret in self._places:
            return self._places[secret]
        taken = self._taken.setdefault(key, set())
        permutation, begin = KeyedPermutation(key, among.size), keyed_number(key, among.same, among.size)
        for step in range(min(among.size, len(taken) + _TRIES)):
            place = permutation((begin + step) % among.size)
            if place not in taken and (among.accepts is None or among.accepts(among.text_of(place))):
                taken.add(place)
                self._places[secret] = place
                return place
        raise PseudonymError(
            f"{kind} has {len(taken):,} secrets of one format already; expected no more than have pseudonyms that are "
            f"never issued ({among.size:,} at most). Use how='mask', or look for other kinds."
        )
