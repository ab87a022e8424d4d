"""Phone numbers."""

from __future__ import annotations

from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("phone")
def phone(prompt: str = "my phone number is ") -> SecretFormat:
    """A phone number of ten digits: 10^10 secrets.

    >>> SecretFormat.phone().render(2025550143)
    'my phone number is 202-555-0143'
    """
    return SecretFormat(literal(prompt) + "###-###-####", name="phone")
