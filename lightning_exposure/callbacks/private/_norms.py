"""`NormInForce`: what the examples of a private training run are clipped to now, and how that came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.losses import LossReduction
from lightning_exposure.privacy.steps.adaptive import AdaptiveClipping, FollowedNorm, Tracking


class NormInForce:
    """A clipping norm that stays, or one that adapts, through the fits of one module and its checkpoints.

    An adaptive norm follows from counts that were released with noise. So it is covered by epsilon, as the weights are,
    and may be logged and saved.

    Args:
        clipping: How the user wants to clip: a name, or the settings of adaptive clipping.
        first: The norm to begin with.

    Attributes:
        epochs: The norm after each epoch, with the number of private steps before.

    Example:
        >>> NormInForce("flat", 1.0).norm
        1.0
    """

    def __init__(self, clipping: str | AdaptiveClipping, first: float) -> None:
        self._clipping, self._first = clipping, first
        self._followed: FollowedNorm | None = None
        self.epochs: list[tuple[int, float]] = []

    @property
    def norm(self) -> float:
        """The norm that the next step clips to."""
        return self._first if self._followed is None else self._followed.norm

    @property
    def name(self) -> str:
        """How examples are clipped: "flat", "per_layer" or "adaptive"."""
        return self._clipping if isinstance(self._clipping, str) else "adaptive"

    @property
    def facts(self) -> dict[str, Any]:
        """For the record of the run."""
        settings = {} if isinstance(self._clipping, str) else asdict(self._clipping)
        tracked = {}
        if self._followed is not None:
            tracking = self._followed.tracking
            tracked = {"count_noise": tracking.count_noise, "gradient_noise_multiplier": tracking.gradient_noise}
        return {
            "clipping": {"name": self.name, **settings, **tracked},
            "clipping_norms": [list(point) for point in self.epochs],
        }

    def clipping(self, module: nn.Module, loss_reduction: LossReduction) -> Clipping:
        """What clips the examples of a module, not yet attached."""
        per_layer = self.name == "per_layer"
        return Clipping(module, max_grad_norm=self.norm, loss_reduction=loss_reduction, per_layer=per_layer)

    def tracking(self, noise_multiplier: float, batch_size: float) -> Tracking | None:
        """How the norm moves, with the noise that there will be; None if it stays.

        Raises:
            ArgumentError: The noise on the count is not enough.
        """
        if isinstance(self._clipping, str):
            return None
        return self._clipping.tracking(noise_multiplier, batch_size)

    def follow(self, followed: FollowedNorm | None) -> None:
        """From now on it is moved there."""
        self._followed = followed

    def end_epoch(self, steps: int) -> None:
        """Note which norm the epoch has led to."""
        if self.name == "adaptive":
            self.epochs.append((steps, self.norm))

    def state(self) -> dict[str, Any]:
        """What a run goes on with, as plain values."""
        if self.name != "adaptive":
            return {}
        return {"clipping_norm": self.norm, "clipping_norms": [list(point) for point in self.epochs]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with a norm that was saved; one that stays is the one that was asked for."""
        if self.name == "adaptive" and "clipping_norm" in state:
            self._first, self._followed = float(state["clipping_norm"]), None
            self.epochs = [(int(steps), float(norm)) for steps, norm in state["clipping_norms"]]
