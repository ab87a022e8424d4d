"""Proof that a training run is private: what it does, beside what a private training run does.

Whether a training run is private cannot be seen from its results. Something between the private optimizer and the
weights can take the privacy away without any sign: a hook, a second optimizer, a generator that gives zeros, a loss
that mixes the examples. So a training run is looked at while it runs, one question in each module:

- `_clipping`: was each example clipped?
- `_noise`: is it noise, and enough of it?
- `_batches`: were they drawn by Poisson sampling?
- `_users`: were users drawn as a whole, with no more records than they may have?
- `_accountant`: was it told what was done?
- `_weights`: did they move along the private gradient, and not otherwise?
- `mixing`, `reruns`: do examples have a part in each other's gradients?

All tests together refuse a private training run with a probability of `FALSE_ALARM`, however long it is.
"""

from lightning_exposure.privacy.steps.proof._accountant import check_accounting
from lightning_exposure.privacy.steps.proof._batches import BATCH_TESTS, BatchTests, check_draw
from lightning_exposure.privacy.steps.proof._clipping import check_clipping
from lightning_exposure.privacy.steps.proof._error import FALSE_ALARM, STOPPED, ErrorBudget
from lightning_exposure.privacy.steps.proof._noise import NOISE_TESTS, NoiseTests, check_noise, noise_limits
from lightning_exposure.privacy.steps.proof._step_proof import Promise, StepProof
from lightning_exposure.privacy.steps.proof._users import UsersOfProcess
from lightning_exposure.privacy.steps.proof._weights import Snapshot, weights_of
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates

__all__ = [
    "BATCH_TESTS",
    "FALSE_ALARM",
    "NOISE_TESTS",
    "STOPPED",
    "BatchTests",
    "Coordinates",
    "ErrorBudget",
    "NoiseTests",
    "Promise",
    "Snapshot",
    "StepProof",
    "UsersOfProcess",
    "check_accounting",
    "check_clipping",
    "check_draw",
    "check_noise",
    "noise_limits",
    "weights_of",
]
