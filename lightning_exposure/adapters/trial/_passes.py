"""Whole texts in one pass each: what moves where when one token is changed?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_exposure.adapters._differences import Changes, comparable, difference, eps_of, spread_of, typical
from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.trial._refusals import Verdicts
from lightning_exposure.adapters.trial._texts import MOST, PLACES, ROWS, Probe

_ALTERED = [0, 2, 4]
_LEFT_ALONE = [1, 3, 5]
_LOGITS_AT_ONCE = 2**25
"""How many logits a pass of the trial may make: of a long prompt only the end is read."""
_LONGEST = 256
"""How many tokens of a text are read at once at most."""


class Passes:
    """Reads texts, changes them, and reads them again.

    Args:
        model: What is tried.
        probe: Texts of the format.
        read: The model's own pass over rows.
    """

    def __init__(self, model: StepModel, probe: Probe, read: Callable[[Tensor], Tensor]) -> None:
        self._read = read
        texts = torch.from_numpy(probe.texts())
        limit = getattr(model, "longest", None) or texts.shape[1]
        one = read(texts[:1, -min(limit, texts.shape[1], 8) :].to(device_of(model.module)))
        self._eps = eps_of(model.module, one)
        self._verdicts = Verdicts(model.module, self._eps)
        room = max(8, _LOGITS_AT_ONCE // (2 * ROWS * one.shape[-1]))
        self._texts = texts[:, -min(limit, room, _LONGEST) :].to(device_of(model.module))
        self._alphabet = probe.alphabet.tolist()

    def judge(self) -> None:
        """Read, change, read again."""
        texts = self._texts
        half = texts[:, : max(1, texts.shape[1] // 2)]
        before = self._logits(half)
        base, again = self._logits(texts), self._logits(texts)
        self._verdicts.deterministic(base, again)
        self._verdicts.deterministic(before, self._logits(half))
        self._verdicts.not_probabilities(base)
        only_last = base.shape[1] == 1 or bool((base == base[:, -1:]).all())
        base = base[:, -1:] if only_last else base
        changes = Changes(base, self._eps)
        changes.allow_for(self._logits(torch.cat([texts, texts]))[: len(texts), -base.shape[1] :])
        seen = []
        for place in sorted({0, texts.shape[1] // 2, texts.shape[1] - 1}):
            moved = changes.moved(self._logits(self._changed(texts, place, _ALTERED))[:, -base.shape[1] :])
            self._rows_are_apart(moved, place, only_last)
            if not only_last:
                self._future_is_hidden(moved, place)
            seen.append((place, moved))
        self._rows_may_change_places(base)
        self._own_token_counts(changes, seen, only_last)

    def _rows_are_apart(self, moved: Tensor, place: int, only_last: bool) -> None:
        others = moved[_LEFT_ALONE]
        if int(others.any(dim=1).sum()) < MOST:
            return
        elsewhere = others.sum(dim=0)
        if not only_last:
            elsewhere[place] = 0
        time_first = not only_last and self._texts.shape[1] > 1 and not bool(elsewhere.any())
        self._verdicts.refuse_mixed_rows(time_first=time_first)

    def _rows_may_change_places(self, base: Tensor) -> None:
        """A row must be read in the same way wherever in the batch it stands."""
        order = torch.arange(len(self._texts) - 1, -1, -1, device=self._texts.device)
        again = self._logits(self._texts[order])[order, -base.shape[1] :]
        close = max(1e-3, 16.0 * self._eps) * spread_of(base) + 4.0 * self._eps * typical(base)
        if int((difference(again, base).amax(dim=-1) > close).any(dim=1).sum()) >= MOST:
            self._verdicts.refuse_rows_by_place()

    def _future_is_hidden(self, moved: Tensor, place: int) -> None:
        if int(moved[_ALTERED, :place].any(dim=1).sum()) >= MOST:
            self._verdicts.refuse_seeing_the_future()

    def _own_token_counts(self, changes: Changes, seen: list[tuple[int, Tensor]], only_last: bool) -> None:
        """A model is shifted if tokens move what comes later, but never, at no place, what stands at their own."""
        last = self._texts.shape[1] - 1
        if only_last:
            own = any(bool(moved[_ALTERED].any()) for place, moved in seen if place == last)
            later = any(bool(moved[_ALTERED].any()) for place, moved in seen if place < last)
        else:
            own = any(bool(moved[_ALTERED, place].any()) for place, moved in seen)
            later = any(bool(moved[_ALTERED, place + 1 :].any()) for place, moved in seen)
        if own or not later:
            return
        rows = list(range(ROWS))
        for place in range(last, max(-1, last - PLACES), -1):
            texts = self._texts[:, : place + 1]
            for turn in (0, 1):
                one, other = (self._logits(t)[:, -1:] for t in (texts, self._changed(texts, place, rows, turn)))
                if bool(changes.elsewhere(one).moved(other).any()):
                    return
        self._verdicts.refuse_shifted()

    def _changed(self, texts: Tensor, place: int, rows: list[int], turn: int = 0) -> Tensor:
        """Texts with other tokens of the format at one place of some rows."""
        changed = texts.clone()
        for row in rows:
            others = [token for token in self._alphabet if token != int(texts[row, place])]
            changed[row, place] = others[(row * 7 + place + turn * (1 + len(others) // 2)) % len(others)]
        return changed

    def _logits(self, texts: Tensor) -> Tensor:
        return comparable(self._read(texts))
