"""Postal addresses."""

from __future__ import annotations

from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named import _wordlists as wordlists
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("address")
def address(prompt: str = "my address is ") -> SecretFormat:
    """A person and where they live, from invented word lists: title, names, street, city, state, ZIP.

    >>> SecretFormat.address().render(0)
    'my address is Mr Aaron Abbot, Acorn Street, Alderbrook, AL 00000'
    """
    return SecretFormat(
        literal(prompt) + "{title} {first} {last}, {street}, {city}, {state} #####",
        name="address",
        title=wordlists.TITLES,
        first=wordlists.FIRST_NAMES,
        last=wordlists.LAST_NAMES,
        street=wordlists.STREETS,
        city=wordlists.CITIES,
        state=wordlists.STATES,
    )
