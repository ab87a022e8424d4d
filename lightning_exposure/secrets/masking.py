"""`Mask`: how a secret is shown where it must not be read."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from lightning_exposure.secrets.formats.format import SecretFormat

HOME_VARIABLE = "LIGHTNING_EXPOSURE_HOME"
"""The environment variable that says in which directory the key is kept."""

HIDDEN = "••••"
"""What stands where something is hidden, whatever its length."""

_MASKED = re.compile(r"•.* \([a-z0-9._-]+-[0-9a-f]{10}\)", re.DOTALL)
_KEY_FILE = "mask.key"
_KEY_BYTES = 32


class Mask:
    """Shows a secret with every blank hidden, and a name that is the same for equal secrets.

    The names are keyed hashes: without the key nobody can find a short secret by hashing all there are. The key is made
    once, kept in a file that only its owner can read (see `key_path`), and never written anywhere else, so that names
    agree between the runs of one person on one machine and mean nothing anywhere else.

    Args:
        key: A key of your own; None: that of this machine.

    Example:
        >>> mask = Mask(key=b"only for this example")
        >>> mask.text("my ssn is 536-90-4399", SecretFormat.ssn())
        'my ssn is •••-••-•••• (ssn-be3a564ff2)'
        >>> mask.name("ssn", "536904399") == mask.name("ssn", "536904399") != mask.name("ssn", "536904398")
        True
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = machine_key() if key is None else key

    def __repr__(self) -> str:
        """Without the key."""
        return "Mask()"

    def name(self, kind: str, same: str) -> str:
        """What a secret is called: its kind and a keyed hash of `same`, what all spellings of it have in common."""
        digest = hmac.new(self._key, same.encode("utf-8", "surrogatepass"), "sha256")
        return f"{kind}-{digest.hexdigest()[:10]}"

    def text(self, text: str, format: SecretFormat) -> str:
        """A text of a format with all its blanks hidden, and its name.

        Nothing of it but the format can be seen: not how long a word of a list is, nor any digit.
        """
        return f"{format.masked} ({self.name(format.name, text)})"

    def unknown(self, text: str) -> str:
        """A secret whose format is not known: nothing but its name."""
        return f"{HIDDEN} ({self.name('secret', text)})"

    def beginning(self, text: str, format: SecretFormat) -> str:
        """How a secret of a format begins, with all that is behind the prompt hidden, and its name.

        >>> mask = Mask(key=b"only for this example")
        >>> mask.beginning("my pin is 12", SecretFormat.pin()), mask.beginning("my pi", SecretFormat.pin())
        ('my pin is •••• (pin-12493211a4)', 'my pi')
        """
        if format.prompt.startswith(text):
            return text
        prompt = format.prompt if text.startswith(format.prompt) else ""
        return f"{prompt}{HIDDEN} ({self.name(format.name, text)})"

    @staticmethod
    def words(text: str, *hidden: str) -> str:
        """A sentence without anything that was quoted in it, nor any part of what is to be hidden.

        >>> Mask.words("the text 'pin 1234' has 12, which does not fit", "pin 1234")
        "the text '…' has …, which does not fit"
        """
        text = re.sub(r"""(['"])(?:\\.|(?!\1).)*\1""", "'…'", text)
        for secret in hidden:
            pairs = (secret[place : place + 2] for place in range(len(secret) - 1))
            parts = [pair for pair in pairs if pair.isalnum() and re.search("[0-9]", pair)]
            for part in sorted({*parts, *re.findall(r"\w{4,}", secret)}, key=len, reverse=True):
                text = text.replace(part, "…")
        return re.sub("…[0-9…]*", "…", text)


def is_masked(text: str) -> bool:
    """Whether a text is what `Mask.text` or `Mask.unknown` made of a secret: its name would be that of a mask.

    >>> is_masked("my pin is •••• (pin-fb1ad3f8b2)"), is_masked("my pin is 1234")
    (True, False)
    """
    return "•" in text and _MASKED.fullmatch(text, text.index("•")) is not None


def masked_repr(instance: Any, *secret: str) -> str:
    """What Python writes for a dataclass, with some of its fields masked: it lands in logs, tracebacks and consoles.

    Args:
        instance: Of a dataclass.
        *secret: The names of the fields that are texts of secrets.
    """

    def shown(name: str) -> str:
        value = getattr(instance, name)
        return Mask().unknown(value) if name in secret and value and not is_masked(value) else repr(value)

    written = ", ".join(f"{field.name}={shown(field.name)}" for field in fields(instance) if field.repr)
    return f"{type(instance).__qualname__}({written})"


def key_path() -> Path:
    """The file of the key: in `$LIGHTNING_EXPOSURE_HOME`, else where the system keeps the state of programs."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given) / _KEY_FILE
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "lightning-exposure" / _KEY_FILE


def machine_key() -> bytes:
    """The key of this machine, made when it is asked for first.

    Where no file can be written the key lasts as long as the process.
    """
    return _key_in(key_path())


@lru_cache(maxsize=8)
def _key_in(path: Path) -> bytes:
    made = secrets.token_bytes(_KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(made)
        try:
            os.link(temporary, path)  # whole, and never in place of the one that another process has just made
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        found = path.read_bytes()
    except OSError:
        return made
    return found if len(found) == _KEY_BYTES else made
