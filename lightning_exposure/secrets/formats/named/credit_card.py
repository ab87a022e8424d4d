"""Credit card numbers."""

from __future__ import annotations

from lightning_exposure._checks import choice
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named._registered import NAMED_FORMATS, literal


@NAMED_FORMATS.register("credit_card")
def credit_card(prompt: str = "my credit card number is ", *, separator: str = " ") -> SecretFormat:
    """A credit card number: sixteen digits in groups of four, the last a Luhn check digit; 10^15 secrets.

    Args:
        prompt: The text before the number.
        separator: What is between the groups: a space, a dash or nothing.

    Example:
        >>> SecretFormat.credit_card(separator="-").render(411_111_111_111_111)
        'my credit card number is 4111-1111-1111-1111'
    """
    between = choice("separator", separator, (" ", "-", ""), remedy="Write a pattern for another one.")
    return SecretFormat(literal(prompt) + between.join(["####"] * 4), checksum="luhn", name="credit-card")
