"""The proof against the mutations: what is not private is refused, and what is private is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_exposure.errors import FitError
from tests.privacy.mutations import BATCH, EPOCHS, MODELS, MUTATIONS, RECORDS, Mutation, train

CAUGHT: dict[str, str] = {}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_training_that_is_not_private_is_refused(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.apply(monkeypatch)
    with pytest.raises(FitError, match=r"The training was stopped, because it would not have been private\."):
        train(tmp_path, mutation.model, seed=1)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_training_without_a_mutation_is_not(model: str, tmp_path: Path) -> None:
    callback = train(tmp_path, model)
    assert callback.steps == EPOCHS * RECORDS // BATCH
