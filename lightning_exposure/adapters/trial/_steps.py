"""Texts read in parts, in rows of a batch and alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lightning_exposure.adapters._differences import Changes, SameLogits, comparable, difference, eps_of
from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.trial._refusals import Verdicts
from lightning_exposure.adapters.trial._texts import MOST, PLACES, Probe

_GROWTH = 16.0
"""By how many times rounding may grow from one token to the next."""


class Steps:
    """Reads secrets token by token.

    Args:
        model: What is tried.
        probe: Texts of the format.
        proven: Whether it is known that parts are the whole, so that only the rest is looked at.
    """

    def __init__(self, model: StepModel, probe: Probe, *, proven: bool) -> None:
        self._model = model
        self._root = probe.root
        self._paths = torch.from_numpy(probe.paths[:3]).to(device_of(model.module))
        self._alphabet = probe.alphabet.tolist()
        self._proven = proven
        limit = getattr(model, "longest", None)
        if limit is not None:
            self._paths = self._paths[:, : max(0, limit - len(self._root))]

    def judge(self) -> None:
        """Read some secrets to their ends."""
        logits, state = self._model.start(self._root)
        self._eps = eps_of(self._model.module, logits)
        self._verdicts = Verdicts(self._model.module, self._eps)
        first = comparable(logits)[:, None]
        self._verdicts.deterministic(first, comparable(self._model.start(self._root)[0])[:, None])
        self._verdicts.not_probabilities(first)
        if self._paths.shape[1] == 0:
            return
        if not self._proven:
            self._parts_are_the_whole(state)
        self._own_token_counts(state)

    def _parts_are_the_whole(self, state: Any) -> None:
        """Rows that are picked, mixed and read together are what each of them is alone, and read in one go."""
        model, device = self._model, self._paths.device
        together = model.select(state, torch.zeros(3, dtype=torch.long, device=device))
        order = torch.arange(3, device=device)
        alone, single, apart = state, list[Tensor](), list[float]()
        for step in range(self._paths.shape[1]):
            if step == 1:  # whoever keeps the states of rows in some order shows here that it is kept
                order = torch.tensor([2, 0, 1], device=device)
                together = model.concatenate([model.select(together, rows) for rows in (order[:2], order[2:])])
            logits, together = model.step(together, self._paths[order, step])
            found, alone = model.step(alone, self._paths[:1, step])
            single.append(comparable(found)[0])
            apart.append(float(difference(single[-1], comparable(logits)[order == 0][0]).max()))
        whole = torch.cat([self._whole(self._paths[row]) for row in order])
        close = SameLogits(self._eps).limit(whole)
        if self._jumps(apart, close):
            self._verdicts.refuse_mixed_rows(time_first=False)
        wrong = difference(comparable(logits), whole).amax(dim=1) > close + 4.0 * max(apart)
        if int(wrong.sum()) >= MOST:  # look at every step: rounding grows little by little, and never jumps
            wholes = [self._whole(self._paths[0, : step + 1])[0] for step in range(len(single))]
            if self._jumps([float(difference(*pair).max()) for pair in zip(single, wholes, strict=True)], close):
                self._verdicts.refuse_parts(len(self._root), self._paths.shape[1])

    def _whole(self, path: Tensor) -> Tensor:
        return comparable(self._model.start([*self._root, *path.tolist()])[0])

    def _jumps(self, apart: list[float], close: float) -> bool:
        """Whether two ways to read a text part suddenly, token by token, and not as rounding that a network amplifies.

        A network may double every error with each token that it reads; then the last digits of its logits mean little,
        but it is what it seems.
        """
        least = close / 16.0
        return any(now > close and now > _GROWTH * max(before, least) for before, now in pairwise([0.0, *apart]))

    def _own_token_counts(self, state: Any) -> None:
        """From one state, different tokens lead to different logits somewhere, if anything does anywhere."""
        model = self._model
        tokens = [self._alphabet[i * len(self._alphabet) // 4] for i in range(4)]
        given = torch.tensor(sorted(set(tokens)), device=self._paths.device)
        if len(given) < 2:
            return
        several = torch.zeros(len(given), dtype=torch.long, device=given.device)
        later = False
        for step in range(min(self._paths.shape[1], PLACES)):
            logits, after = model.step(model.select(state, several), given)
            if self._differ(logits):
                return
            if step + 1 < self._paths.shape[1]:
                following, _ = model.step(after, given[:1].expand(len(given)))
                later = later or self._differ(following)
            _, state = model.step(state, self._paths[:1, step])
        if later:
            self._verdicts.refuse_shifted()

    def _differ(self, logits: Tensor) -> bool:
        """Whether the rows are not all alike."""
        rows = comparable(logits)[:, None]
        return bool(Changes(rows[:1].expand_as(rows), self._eps).moved(rows).any())
