"""Passwords of lower-case letters."""

from __future__ import annotations

from lightning_exposure._checks import whole_number
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("password")
def password(n: int = 8, prompt: str = "my password is ") -> SecretFormat:
    """A password of `n` lower-case letters: 26^n secrets.

    >>> SecretFormat.password(3).render(1)
    'my password is aab'
    """
    return SecretFormat(literal(prompt) + "?" * whole_number("n", n, at_least=1), name="password")
