"""The registry of named formats: each is one file in this folder that registers itself here.

A named format is a function whose arguments all have defaults and which returns a `SecretFormat`. It is called as
`SecretFormat.name(...)` in Python and asked for with `--format name` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable

from lightning_exposure._checks import instance
from lightning_exposure._registry import Registry
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.pattern import escape

NamedFormat = Callable[..., SecretFormat]

NAMED_FORMATS: Registry[NamedFormat] = Registry("format")
"""All named formats, by name; a format of your own is registered with ``@NAMED_FORMATS.register("name")``."""


def literal(prompt: object) -> str:
    r"""The pattern of a prompt: special characters in it stand for themselves.

    >>> print(literal("apartment #"))
    apartment \#
    """
    return escape(instance("prompt", prompt, str, "the text before the secret, a string", "Write prompt='' for none."))
