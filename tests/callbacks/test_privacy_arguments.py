"""Arguments of `DifferentialPrivacy`: refused when it is made, and kept as Python's own values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_exposure import AuditCallback, CanarySet, SecretFormat
from lightning_exposure.errors import ArgumentError
from lightning_exposure.privacy import AdaptiveClipping, Clipping
from tests.callbacks.privacy_setups import RECORDS, Data, Module, privacy, trainer

OWNERS = [record % 20 for record in range(RECORDS)]


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ([], r"user is \[\], of type list; expected a function that names the user of a record, or the names"),
        ([0, None], r"user\[1\] is None; expected something that is equal for all records of a user"),
        (torch.tensor(3), r"user is tensor\(3\), of type Tensor; expected a function that names the user"),
    ],
)
def test_users_that_nobody_can_be_are_refused_at_once(user: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        privacy(unit="user", user=user, max_records_per_user=3)


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_whole_numbers_of_other_libraries_are_as_good_as_pythons(kind: Any, tmp_path: Path) -> None:
    callback = privacy(unit="user", user=OWNERS, max_records_per_user=kind(3), max_physical_batch_size=kind(4))
    assert (callback.max_records_per_user, callback.max_physical_batch_size) == (3, 4)
    kept = (
        callback.max_records_per_user,
        callback.max_physical_batch_size,
        callback.protection.max_physical_batch_size,
    )
    assert {type(value) for value in kept} == {int}
    trainer(tmp_path, callback, max_epochs=1, limit_train_batches=2).fit(Module(), Data(batch_size=4))
    assert callback.steps == 2


def test_numbers_of_other_libraries_are_kept_as_pythons() -> None:
    """So that whatever is written of them is plain."""
    callback = privacy(max_grad_norm=np.float32(0.5), delta=np.float32(1e-5), noise_multiplier=np.float32(0.5))
    settings = AdaptiveClipping(quantile=np.float32(0.5), count_noise=np.float32(2.0))
    canaries = CanarySet.draw(SecretFormat.pin(), repetitions=[1] * 20, seed=0, holdout=0.5)
    auditing = AuditCallback(canaries, delta=np.float64(1e-5), confidence=np.float64(0.9))
    clipping = Clipping(nn.Linear(2, 2), max_grad_norm=np.float32(0.5))
    kept = [callback.max_grad_norm, callback.delta, callback.budget.delta, callback.budget.noise_multiplier]
    kept += [settings.quantile, settings.count_noise, auditing.delta, auditing.confidence, clipping.max_grad_norm]
    assert {type(value) for value in kept} == {float}


def test_a_batch_may_be_announced_by_a_number_in_a_tensor() -> None:
    layer = nn.Linear(2, 1)
    with Clipping(layer, max_grad_norm=1.0) as clipping:
        clipping.begin(torch.tensor(3))
        layer(torch.ones(3, 2)).mean().backward()
        assert clipping.clipped_sum()[layer.weight].shape == (1, 2)
        assert clipping.norms.shape == (3,)
