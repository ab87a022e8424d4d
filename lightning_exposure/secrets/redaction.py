"""`Redaction`: which texts are shown in full, where, and how the others are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from lightning_exposure._checks import flag
from lightning_exposure.secrets.canaries.canary import Canary
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.masking import Mask, is_masked


class Redaction:
    """The one rule for what is shown of a secret. Whatever prints, logs or writes a text asks here first.

    | text | on this machine: console, page, JSON | what leaves it: loggers, shared pages, checkpoints |
    | --- | --- | --- |
    | a canary, which is made up | in full | masked |
    | any other: a real secret, a candidate of an attack that is no canary | masked | masked |

    With `reveal` everything is in full, everywhere. A console that a logger records has left the machine.

    Args:
        canaries: The secrets that are made up.
        shared: Whether what is shown leaves this machine.
        reveal: Whether the user asked for all of it.
        mask: Gives the masked texts their names; None: with the key of this machine.

    Example:
        >>> pin = SecretFormat.pin()
        >>> made_up = Canary("pin-4x", "my pin is 0451", pin, 4)
        >>> here = Redaction([made_up], mask=Mask(key=b"only for this example"))
        >>> here.text("my pin is 0451", pin), here.text("my pin is 7777", pin)
        ('my pin is 0451', 'my pin is •••• (pin-9900de7b2f)')
        >>> Redaction([made_up], shared=True).shows("my pin is 0451")
        False
        >>> Redaction([made_up], shared=True, reveal=True).text("my pin is 7777", pin)
        'my pin is 7777'
    """

    def __init__(
        self,
        canaries: Iterable[Canary] = (),
        *,
        shared: bool = False,
        reveal: bool = False,
        mask: Mask | None = None,
    ) -> None:
        self.shared = flag("shared", shared)
        self.reveal = flag("reveal", reveal)
        self._ids = {canary.text: canary.id for canary in canaries}
        self._given = mask

    def __repr__(self) -> str:
        """Without the texts."""
        return f"<Redaction with {len(self._ids)} canaries: shared={self.shared}, reveal={self.reveal}>"

    @cached_property
    def mask(self) -> Mask:
        """Gives the masked texts their names."""
        return Mask() if self._given is None else self._given  # the key is not asked for until it is needed

    @property
    def private(self) -> bool:
        """Whether what is written may hold secrets in full: then only its owner may read the file."""
        return self.reveal or not self.shared

    def canary(self, text: str) -> str | None:
        """The id of the canary that a text is; None if it is none."""
        return self._ids.get(text)

    def shows(self, text: str) -> bool:
        """Whether a text is shown in full."""
        return self.reveal or (not self.shared and text in self._ids)

    def text(self, text: str, format: SecretFormat | None = None) -> str:
        """A secret as it is shown: in full, or with every blank hidden and a name that is the same for equal ones.

        What is masked already stays as it is.

        Args:
            text: The secret, with its prompt.
            format: What it looks like; None: that is not known, and nothing of it is shown.
        """
        if self.shows(text) or is_masked(text):
            return text
        return self.mask.unknown(text) if format is None else self.mask.text(text, format)

    def beginning(self, text: str, format: SecretFormat | None = None) -> str:
        """How a secret begins, such as what an attacker knows of it: the prompt is shown, what is behind it is not.

        Args:
            text: The beginning.
            format: What the whole secret looks like; None: that is not known, and nothing of it is shown.
        """
        of_canary = not self.shared and any(made_up.startswith(text) for made_up in self._ids)
        if self.reveal or of_canary or is_masked(text) or not text:
            return text
        return self.mask.unknown(text) if format is None else self.mask.beginning(text, format)

    def words(self, sentence: str, *hidden: str) -> str:
        """A sentence, such as that of an error, without the secrets that it may quote."""
        return sentence if self.reveal else Mask.words(sentence, *hidden)
