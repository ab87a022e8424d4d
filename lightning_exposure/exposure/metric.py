"""`Exposure`: a torchmetrics metric, for people who bring their own scores."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from lightning_exposure._checks import choice
from lightning_exposure.exposure.ranking import exposure_by_rank, finite_scores
from lightning_exposure.exposure.skewnormal import exposure_by_skew_normal

_METHODS = {"rank": exposure_by_rank, "skewnormal": exposure_by_skew_normal}


class Exposure(Metric):
    """The exposure, in bits, of secrets among references, from log-perplexities.

    Scores of secrets and of references may come in any number of updates and from any number of processes; the
    result has one entry per secret, in the order they came (process by process). For models that this library can
    read itself, `measure_exposure` is exact where this can only rank among the references it is given.

    Args:
        method: "rank" (see `exposure_by_rank`) or "skewnormal" (see `exposure_by_skew_normal`).
        **kwargs: As for any `torchmetrics.Metric`.

    Example:
        >>> from torch import tensor
        >>> metric = Exposure()
        >>> metric.update(tensor([0.5, 9.0]), tensor([1.0, 2.0, 3.0]))
        >>> metric.compute()
        tensor([2., 0.])
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    scores: list[Tensor]
    references: list[Tensor]

    def __init__(self, method: Literal["rank", "skewnormal"] = "rank", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.method = choice("method", method, _METHODS)
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("references", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor | None = None, references: Tensor | None = None) -> None:
        """Add scores of secrets, of references, or of both.

        Raises:
            ScoreError: A score is NaN or infinite; nothing is added then.
        """
        given = {"scores": scores, "references": references}
        flat = {name: value.detach().reshape(-1).double() for name, value in given.items() if value is not None}
        for name, value in flat.items():
            finite_scores(value.cpu().numpy(), name)
        for name, value in flat.items():
            getattr(self, name).append(value)

    def compute(self) -> Tensor:
        """The exposure of each secret.

        Raises:
            ScoreError: There are no references.
        """
        scores, references = _joined(self.scores), _joined(self.references)
        bits = _METHODS[self.method](scores.cpu().numpy(), references.cpu().numpy())
        return torch.from_numpy(bits).to(device=self.device, dtype=torch.get_default_dtype())


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    """A list state as one tensor: torchmetrics leaves a list before, and a tensor after, gathering."""
    if isinstance(parts, list) and not parts:
        return torch.empty(0, dtype=torch.float64)
    joined: Tensor = dim_zero_cat(parts)
    return joined
