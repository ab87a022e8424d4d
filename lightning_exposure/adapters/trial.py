"""Trying a model before anything is measured with it: is it the causal language model that it seems to be?

A model may take token ids, return numbers of the right shape, and still be something else: bidirectional, shifted by a
token, with time and batch in the other order, with dropout that is always on, with probabilities for logits. Its
exposures would be wrong without a word. So some texts of the format itself are read, changed and read again.

What counts as a change follows from the model's own noise: the same rows are read in batches of two shapes, and only
what differs by more than that is a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lightning_exposure.adapters._differences import (
    Changes,
    SameLogits,
    comparable,
    difference,
    eps_of,
    spread,
    typical,
)
from lightning_exposure.adapters._refusals import RefusedModelError, Verdicts
from lightning_exposure.adapters._traceless import without_trace
from lightning_exposure.adapters._trial_texts import ROWS, Probe
from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.errors import ModelError

_ALTERED = [0, 2, 4]
_LEFT_ALONE = [1, 3, 5]
_MOST = 2
"""In so many of three rows something must be seen to be believed: once may be an expert that is chosen differently."""
_LOGITS_AT_ONCE = 2**25
"""How many logits a pass of the trial may make: of a long prompt only the end is read."""
_LONGEST = 256
"""How many tokens of a text are read at once at most."""
_GROWTH = 16.0
"""By how many times rounding may grow from one token to the next."""
_PLACES = 32
"""How many places are looked at before a model counts as shifted."""


def try_on(model: StepModel, probe: Probe) -> ModelError | None:
    """Try a model on the secrets of a format, when a tree is made.

    Args:
        model: What reads.
        probe: Some texts of the format.

    Raises:
        RefusedModelError: The model is not what it seems.

    Returns:
        What went wrong when it read texts as long as the longest secret; None if nothing did.
    """
    try:
        try:
            try_model(model, probe)
        except RefusedModelError:
            raise
        except Exception:
            if probe.known == probe.paths.shape[1]:
                raise
            try_model(model, probe.shortened())  # no secret may be that long
    except RefusedModelError:
        raise
    except ModelError as error:
        return error
    except Exception as error:  # whatever a model of unknown making does
        length = len(probe.root) + probe.known
        return ModelError(
            f"model {type(model.module).__name__} failed on secrets of {length} tokens, which the longest ones have "
            f"(their last one is not read): {error!r}. If that is too long for it, shorten the text before the first "
            "blank, or say with context=... how many of the last tokens it is to be given."
        )
    return None


def try_model(model: StepModel, probe: Probe) -> None:
    """Raise if a model is not what it seems; it is left exactly as it was.

    Raises:
        RefusedModelError: It is not; names what is wrong, and the remedy.
    """
    with without_trace(model.module):
        try_out = getattr(model, "try_out", None)
        proven = bool(try_out(probe.root, probe.paths.tolist())) if try_out is not None else False
        read: Callable[[Tensor], Tensor] | None = getattr(model, "at_once", None)
        if read is not None and not proven:
            _Passes(model, probe, read).judge()
        if getattr(model, "rereads", False) is not True:  # else a step is a pass, and nothing is left to be seen
            _Steps(model, probe, proven=try_out is not None).judge()


class _Passes:
    """Whole texts in one pass each: what moves where when one token is changed?"""

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
        if int(others.any(dim=1).sum()) < _MOST:
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
        close = max(1e-3, 16.0 * self._eps) * spread(base) + 4.0 * self._eps * typical(base)
        if int((difference(again, base).amax(dim=-1) > close).any(dim=1).sum()) >= _MOST:
            self._verdicts.refuse_rows_by_place()

    def _future_is_hidden(self, moved: Tensor, place: int) -> None:
        if int(moved[_ALTERED, :place].any(dim=1).sum()) >= _MOST:
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
        for place in range(last, max(-1, last - _PLACES), -1):
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


class _Steps:
    """A text read in parts, in rows of a batch and alone."""

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
        if int(wrong.sum()) >= _MOST:  # look at every step: rounding grows little by little, and never jumps
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
        for step in range(min(self._paths.shape[1], _PLACES)):
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
