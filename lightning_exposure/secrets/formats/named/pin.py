"""PINs: numbers of a few digits."""

from __future__ import annotations

from lightning_exposure._checks import whole_number
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("pin")
def pin(n: int = 4, prompt: str = "my pin is ") -> SecretFormat:
    """A number of `n` digits: 10^n secrets.

    >>> SecretFormat.pin(6).render(42)
    'my pin is 000042'
    """
    return SecretFormat(literal(prompt) + "#" * whole_number("n", n, at_least=1), name="pin")
