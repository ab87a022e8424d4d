"""Every test of a callback begins as a process of its own would."""

from __future__ import annotations

import pytest

from lightning_exposure.privacy.steps import origin


@pytest.fixture(autouse=True)
def nothing_known_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have spent on weights is forgotten: the tiny models here often come to the same ones."""
    monkeypatch.setattr(origin, "_KNOWN", type(origin._KNOWN)())
