"""Social security numbers."""

from __future__ import annotations

from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("ssn")
def ssn(prompt: str = "my ssn is ") -> SecretFormat:
    """A social security number: nine digits, 10^9 secrets.

    >>> SecretFormat.ssn().render(123456789)
    'my ssn is 123-45-6789'
    """
    return SecretFormat(literal(prompt) + "###-##-####", name="ssn")
