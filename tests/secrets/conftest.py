"""What the tests of secrets share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lightning_exposure.secrets.formats._reading import Reader, State


@pytest.fixture
def counted_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a state of a format is looked at: a measure of work that needs no clock."""
    original, seen = Reader.steps, []

    def steps(reader: Reader, state: State) -> Mapping[str, tuple[State, ...]]:
        seen.append(len(seen))
        return original(reader, state)

    monkeypatch.setattr(Reader, "steps", steps)
    return seen
