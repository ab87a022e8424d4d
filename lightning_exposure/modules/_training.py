"""What the reference modules share: a loss for each stage, and the optimizer that they were made with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_exposure.modules._optimizers import make_optimizer, make_scheduler

# For type checkers the behaviour is a LightningModule; in truth it is put on the base class of either package.
if TYPE_CHECKING:
    import lightning.pytorch as pl

    _Base = pl.LightningModule
else:
    _Base = object


class TrainsWithLoss(_Base):
    """The steps of the three stages, and the optimizer; what comes after it says in `_loss` what is minimized."""

    def _loss(self, batch: Any, stage: str) -> Tensor:
        """The loss of a batch, which is also logged under the name of the stage."""
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch in nats per token."""
        return self._loss(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of a batch."""
        self._loss(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of a batch."""
        self._loss(batch, "test")

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule of its learning rate if there is one."""
        settings = self.hparams
        names = ("lr", "weight_decay", "momentum")
        optimizer = make_optimizer(settings["optimizer"], self.parameters(), **{name: settings[name] for name in names})
        if settings["scheduler"] is None:
            return optimizer
        total_steps = int(self.trainer.estimated_stepping_batches) if settings["scheduler"] == "cosine" else 0
        schedule = make_scheduler(
            settings["scheduler"],
            optimizer,
            warmup_steps=settings["warmup_steps"],
            step_size=settings["step_size"],
            gamma=settings["gamma"],
            total_steps=total_steps,
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}
