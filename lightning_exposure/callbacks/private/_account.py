"""`Account`: what was spent on the weights of a module, through fits, copies and checkpoints."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._lightning import MODEL_STATES
from lightning_exposure.callbacks.private._announcing import announce_origin
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.privacy.steps.origin import (
    KEY,
    Record,
    carriers,
    in_checkpoint,
    publish,
    record_of,
    refuse_other_units,
    remember,
    together,
    trace,
)


class Account:
    """Keeps the record of the module that a callback trains.

    Args:
        told: What the user says that was spent before.
        exempt: What the user vouches for.
        unit: Whom the steps to come are about, "record" or "user".
        way: How they are made private, as plain values.

    Attributes:
        record: The private fits behind the weights.

    Raises:
        FitError: What was spent before was about another unit.
    """

    def __init__(
        self,
        told: Record | None,
        exempt: tuple[str, ...],
        unit: str = "record",
        way: Mapping[str, Any] | None = None,
    ) -> None:
        self._told, self._exempt, self._unit, self._way = told, exempt, unit, way
        refuse_other_units(told or Record(), unit)
        self._loaded: Record | None = None  # from the checkpoint that a run is resumed from
        self._fit: str | None = None
        self._start = ""  # the fingerprint of the weights that the fit has begun with
        self.record = told or Record()

    @property
    def is_open(self) -> bool:
        """Whether a fit is going on."""
        return self._fit is not None

    def prepare(self) -> None:
        """Before a fit, and before a checkpoint is loaded."""
        self._loaded, self._fit = None, None

    def read(self, checkpoint: dict[str, Any]) -> None:
        """Take up what a checkpoint says of its weights."""
        self._loaded = in_checkpoint(checkpoint)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the history that a callback has saved; the checkpoint itself may have said more."""
        self._loaded = self._loaded or Record.of_history(state["history"], state.get("unit", "record"))
        self.record = self._loaded

    def open(self, trainer: Trainer, module: LightningModule, *, verbose: bool) -> None:
        """Find out what was spent on the weights before, say so, and begin a new fit.

        Raises:
            FitError: That was about another unit.
        """
        origin = trace(module, [record for record in (self._loaded, self._told) if record is not None])
        refuse_other_units(origin.record, self._unit)
        if not origin.known and origin.record.steps:
            origin = replace(origin, record=replace(origin.record, gaps=(*origin.record.gaps, origin.record.steps)))
        announce_origin(trainer, origin, verbose=verbose)
        self._start = origin.weights
        self.record = together([origin.record, Record(exemptions=self._exempt)])
        self._fit = trainer.strategy.broadcast(secrets.token_hex(8))

    def step(self, module: Any, noise_multiplier: float, sample_rate: float) -> None:
        """Count a step."""
        assert self._fit is not None
        self.record = self.record.stepped(self._fit, noise_multiplier, sample_rate, self._unit, self._way)
        if module is not None:
            remember(module, self.record)

    def settle(self, module: LightningModule) -> None:
        """The present weights are what the record has led to."""
        self.record = self.record.leading_to(*(part.state_dict() for part in carriers(module)))
        remember(module, self.record)
        publish(self.record, but=self._start)

    def log(self, module: LightningModule, epsilon: float, **options: Any) -> None:
        """Log what was spent, and how much of it rests on the user's word."""
        module.log("privacy/epsilon", epsilon, sync_dist=True, **options)
        if self.record.exemptions:
            module.log("privacy/exemptions", float(len(self.record.exemptions)), sync_dist=True, **options)

    def close(self) -> None:
        """The fit is over."""
        self._fit = None

    def write(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Say in a checkpoint which private steps have made its weights."""
        if self.is_open:
            states = [checkpoint[key] for key in MODEL_STATES if key in checkpoint]
            record: Record | None = self.record.leading_to(*states)
            publish(self.record.leading_to(*states), but=self._start)
        else:
            record = record_of(module)
        if record is not None:
            checkpoint[KEY] = record.state()

    def follow_checkpoints(self, module: Any, check: Callable[[], None]) -> Callable[[], None]:
        """Write into every checkpoint from now on, also of the weights alone, about which callbacks are not asked.

        Args:
            module: Asked about every checkpoint, as the last.
            check: Refuses weights that the record has not led to.

        Returns:
            What undoes it.
        """
        save = module.on_save_checkpoint

        def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
            check()
            save(checkpoint)
            self.write(module, checkpoint)

        return put(module, "on_save_checkpoint", on_save_checkpoint)
