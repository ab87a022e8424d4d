"""Formats whose blanks are filled alike."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_exposure import SecretFormat
from lightning_exposure.errors import FormatError
from lightning_exposure.secrets.formats.tied import TiedFormats


def test_tied_blanks_are_filled_alike() -> None:
    english, german = ["one", "two", "three"], ["eins", "zwei", "drei"]
    formats = TiedFormats(
        SecretFormat("{n} and #, {n}", n=english), SecretFormat("erst {z}, dann #, dann {z}", z=german)
    )
    assert formats.size == 90
    for number in range(90):
        source, target = formats.pair(number)
        digits = [str(german.index(word)) if word in german else word for word in formats.target.fillings(target)]
        assert digits == [str(english.index(w)) if w in english else w for w in formats.source.fillings(source)]
        assert formats.source_of(target) == source
    assert TiedFormats(SecretFormat("card ### #", checksum="luhn"), SecretFormat("Karte ####", checksum="luhn")).pair(
        123
    ) == ("card 123 0", "Karte 1230")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("###", "##", r"blanks have \[10, 10, 10\] choices.*with \[10, 10\]"),
        ("#?", "?#", r"choices.*expected the same numbers in the same order"),
        ("##", SecretFormat("##", checksum="luhn"), r"source has the checksum None and target 'luhn'"),
    ],
)
def test_formats_that_do_not_correspond(source: Any, target: Any, says: str) -> None:
    made = [SecretFormat(side) if isinstance(side, str) else side for side in (source, target)]
    with pytest.raises(FormatError, match=says):
        TiedFormats(*made)
    with pytest.raises(FormatError, match=r"target is '##'; expected a SecretFormat"):
        TiedFormats(SecretFormat("##"), "##")  # type: ignore[arg-type]
