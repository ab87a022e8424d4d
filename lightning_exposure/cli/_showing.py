"""What the commands show of a text: canaries, which are made up, in full; everything else masked unless revealed."""

from __future__ import annotations

from dataclasses import replace

from lightning_exposure.extraction import Extraction
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.secrets.masking import Mask

_TEXTS = ("known", "target")
"""Settings of attacks that are secrets, or begin like one."""


class Shown:
    """Texts as they may be seen.

    Args:
        canaries: What is no secret.
        reveal: Whether everything may be seen.
    """

    def __init__(self, canaries: CanarySet, *, reveal: bool) -> None:
        self._open = set(canaries.texts)
        self._mask = None if reveal else Mask()

    def text(self, text: str, format: SecretFormat) -> str:
        """A text of a format."""
        return text if self._mask is None or text in self._open else self._mask.text(text, format)

    def extraction(self, attack: Extraction, format: SecretFormat) -> Extraction:
        """An attack on a format, with its candidates as they may be seen."""
        if self._mask is None:
            return attack
        candidates = tuple(replace(one, text=self.text(one.text, format)) for one in attack.candidates)
        hidden = {name: "…" for name in _TEXTS if attack.settings.get(name) and attack.settings[name] not in self._open}
        return replace(attack, candidates=candidates, settings={**attack.settings, **hidden})
