"""`best_checkpoint`: the checkpoint with the lowest validation loss among those that are not too exposed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lightning_exposure._checks import number
from lightning_exposure.errors import ArgumentError, MissingFileError, NoCheckpointError
from lightning_exposure.report.record import Measurement, RunRecord
from lightning_exposure.secrets import CanarySet

_STEP_IN_NAME = re.compile(r"step[=_-](\d+)")


@dataclass(frozen=True)
class MeasuredCheckpoint:
    """A checkpoint, and what was measured of its weights.

    Attributes:
        path: The file of Lightning, or the directory of the Trainer of transformers.
        step: After how many optimizer steps.
        epoch: After how many epochs.
        val_loss: Of the validation data.
        low: The largest lower end of the exposures of the inserted canaries, in bits.
        high: The largest upper end.
        canary: The id of the canary that has it.
    """

    path: Path
    step: int
    epoch: int
    val_loss: float
    low: float
    high: float
    canary: str


def best_checkpoint(
    run: str | os.PathLike[str] | RunRecord,
    *,
    max_bits: float,
    checkpoints: str | os.PathLike[str] | None = None,
) -> MeasuredCheckpoint:
    """The checkpoint with the lowest validation loss of those whose exposures are all at most `max_bits`.

    The upper ends of the intervals decide, so that a wide interval does not pass for a low exposure. Canaries that were
    never inserted do not count. A checkpoint is matched with the measurement of the same optimizer step.

    Args:
        run: The directory of a run, or its record.
        max_bits: The largest exposure that is allowed, in bits.
        checkpoints: Where the checkpoints are, in any subdirectory; None: in the directory of the run.

    Raises:
        NoCheckpointError: None is within the limit, or none was measured; says which exposure is the smallest.
        ArgumentError: `run` is a record, and it is not said where the checkpoints are.

    Example:
        >>> best_checkpoint("runs/a", max_bits=10)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.MissingFileError: run is 'runs/a', which does not exist; expected the directory of a
        run, or its record. Check the path.
    """
    number("max_bits", max_bits, at_least=0, remedy="It is in bits.")
    found = measured_checkpoints(run, checkpoints)
    best = lowest_loss(found, max_bits)
    if best is None:
        least = min(found, key=lambda each: each.high)
        raise NoCheckpointError(
            f"max_bits is {max_bits:g}, and none of {len(found)} checkpoints is within it; expected at least "
            f"{math.ceil(100 * least.high) / 100:.2f}, which is the smallest upper end (of {least.canary!r} after "
            f"{least.step:,} steps). "
            "Raise the limit, measure more precisely, or train with fewer epochs or with differential privacy."
        )
    return best


def lowest_loss(checkpoints: Iterable[MeasuredCheckpoint], max_bits: float) -> MeasuredCheckpoint | None:
    """The one with the lowest loss of those within the limit, the earlier one of two; None: none is.

    >>> made = [MeasuredCheckpoint(Path("a"), s, s, loss, 1.0, high, "c") for s, loss, high in ((1, 3, 5), (2, 2, 11))]
    >>> lowest_loss(made, 10.0).step, lowest_loss(made, 11.0).step, lowest_loss(made, 4.0)
    (1, 2, None)
    """
    within = [each for each in checkpoints if each.high <= max_bits]
    return min(within, key=lambda each: (each.val_loss, each.step), default=None)


def measured_checkpoints(
    run: str | os.PathLike[str] | RunRecord, checkpoints: str | os.PathLike[str] | None = None
) -> list[MeasuredCheckpoint]:
    """All checkpoints of a run that were measured and validated, in the order of their steps.

    Args:
        run: The directory of a run, or its record.
        checkpoints: Where the checkpoints are, in any subdirectory; None: in the directory of the run.

    Raises:
        NoCheckpointError: There is none.
        ArgumentError: `run` is a record, and it is not said where the checkpoints are.
    """
    if isinstance(run, RunRecord):
        if checkpoints is None:
            raise ArgumentError(
                "checkpoints is None, and run is a record; expected the directory of the checkpoints. Name it: "
                "checkpoints='...'."
            )
        record, where = run, Path(checkpoints)
    else:
        given = Path(run)
        if not given.exists():
            raise MissingFileError(
                f"run is {str(run)!r}, which does not exist; expected the directory of a run, or its record. Check the "
                "path."
            )
        record = RunRecord.load(given)
        where = (given if given.is_dir() else given.parent) if checkpoints is None else Path(checkpoints)
    files = _by_step(where)
    parts = [part for part in (record, *record.others.values()) if any(canary.copies for canary in part.canaries)]
    by_part = [{each.step: each for each in part.history if _judged(each, part.canaries)} for part in parts]
    judged = {step: each for step, each in (by_part or [{}])[0].items() if all(step in other for other in by_part)}
    found = [
        _highest([_measured(files[step], by[step], part.canaries) for by, part in zip(by_part, parts, strict=True)])
        for step in sorted(files.keys() & judged.keys())
    ]
    if not found:
        raise NoCheckpointError(_why_none(where, files, record.history, judged))
    return found


def _judged(measurement: Measurement, canaries: CanarySet) -> bool:
    """Whether there is a loss, and an interval for every inserted canary that can be defended."""
    loss = measurement.val_loss
    inserted = [canary.id for canary in canaries if canary.copies]
    known = measurement.estimates
    return (
        loss is not None
        and math.isfinite(loss)
        and bool(inserted)
        and all(key in known and known[key].method != "skewnormal" for key in inserted)
    )


def _measured(path: Path, measurement: Measurement, canaries: CanarySet) -> MeasuredCheckpoint:
    inserted = [canary.id for canary in canaries if canary.copies]
    estimates = measurement.estimates
    highest = max(inserted, key=lambda key: estimates[key].high)
    assert measurement.val_loss is not None
    return MeasuredCheckpoint(
        path=path,
        step=measurement.step,
        epoch=measurement.epoch,
        val_loss=measurement.val_loss,
        low=max(estimates[key].low for key in inserted),
        high=estimates[highest].high,
        canary=highest,
    )


def _highest(measured: Sequence[MeasuredCheckpoint]) -> MeasuredCheckpoint:
    """What several callbacks measured of one checkpoint, together."""
    return replace(max(measured, key=lambda each: each.high), low=max(each.low for each in measured))


def _why_none(
    where: Path, files: dict[int, Path], history: Sequence[Measurement], judged: dict[int, Measurement]
) -> str:
    if not files:
        return (
            f"{where} holds no checkpoint; expected those of the run (*.ckpt, checkpoint-*). Keep them with "
            "ModelCheckpoint(save_top_k=-1), or name their directory: checkpoints='...'."
        )
    if not judged:
        what = "no measurement" if not history else "no measurement with a validation loss and an interval"
        return (
            f"run has {what}; expected at least one. Validate in every epoch, log `val_loss`, and measure with "
            "ExposureCallback."
        )
    steps = ", ".join(map(str, sorted(judged)[:5]))
    return (
        f"{where} holds checkpoints after other steps ({', '.join(map(str, sorted(files)[:5]))}) than were measured "
        f"({steps}); expected the same. Save and measure at the same time, such as at the end of every epoch."
    )


# ---- files ------------------------------------------------------------------------------------------------------


def _by_step(directory: Path) -> dict[int, Path]:
    """The checkpoints in a directory, by their steps; of several after one step, the first by name."""
    found: dict[int, Path] = {}
    for path in sorted([*directory.rglob("*.ckpt"), *directory.rglob("checkpoint-*/trainer_state.json")]):
        step = _step_of(path)
        if step is not None:
            found.setdefault(step, path.parent if path.name == "trainer_state.json" else path)
    return found


def _step_of(path: Path) -> int | None:
    """After how many steps a checkpoint was saved, by its own word, or else by its name; None: it does not tell."""
    try:
        if path.suffix == ".json":
            state = json.loads(path.read_text(encoding="utf-8"))
        else:  # the weights stay on the disk
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return int(state["global_step"])
    except Exception:  # pickled by someone else's classes, in an older format, or broken
        named = _STEP_IN_NAME.search(path.name)
        return None if named is None else int(named[1])
