"""`ExtractionCallback`: the attack on a model, run when its training ends."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._checks import flag
from lightning_exposure.callbacks._canary_callback import CanaryCallback
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    callbacks_of,
    console_redaction,
    final_moment,
    loggers_named,
    moment,
    show_at_the_end,
    show_to_monitors,
)
from lightning_exposure.callbacks.exposure import ExposureCallback
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import AttackName, Extraction
from lightning_exposure.measuring import CanaryAttack, ModelOf, Schedule
from lightning_exposure.report import wandb as to_wandb
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.tables import extraction_rows, extraction_table, verdict_rows, verdict_table
from lightning_exposure.report.verdicts import Verdict
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.tokenization import Tokenizer


class ExtractionCallback(CanaryCallback):
    """Attacks the model at the end of training: one attack per format of the canaries.

    Logs a table of what was found, its bits, whether it is a canary, whether it is proven to be the best there is, and
    the number of expansions; a table of how many guesses find each canary; and the numbers `extraction/extracted`
    (canaries among the candidates) and `extraction/expansions`.

    A canary that is not among the candidates may still be found with more guesses. How many follows from its rank,
    which is known if an `ExposureCallback` of the same Trainer has measured the very weights that are attacked.

    Args:
        canaries: What was inserted in the training data.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        algorithm: As for `extract`.
        top_k: How many candidates per format; None: as many as the format has canaries.
        every_n_epochs: Attack after every n-th epoch, and when training ends; 0: only when training ends.
        name: The first part of the metrics' names. Of two callbacks with one name, the second logs under `name_2`; two
            with equal arguments need different names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        verbose: Print the table when the fit ends.
        reveal: Whether everything that was found is shown in full. Otherwise loggers and checkpoints get masked texts
            (every blank is hidden, and equal texts have equal names), and the table that is printed masks candidates
            that are no canary, or all of them if a logger such as W&B records the console.
        **settings: Settings of the algorithm, as for `extract`; a `budget` counts expansions.

    Attributes:
        extractions: The newest attack, by format name.
        estimates: The exposures of the model that was attacked, by canary id, where another callback measured them.

    Example:
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4], seed=0)
        >>> ExtractionCallback(canaries, algorithm="beam", width=50).extractions
        {}
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | None = None,
        algorithm: AttackName = "shortest_path",
        *,
        top_k: int | None = None,
        every_n_epochs: int = 0,
        name: str = "extraction",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
        verbose: bool = True,
        reveal: bool = False,
        **settings: Any,
    ) -> None:
        schedule = Schedule(every_n_epochs)
        super().__init__(
            canaries, tokenizer, name=name, model=model, context=context, batch_size=batch_size, reveal=reveal
        )
        self.algorithm = algorithm
        self.top_k = top_k
        self.every_n_epochs = every_n_epochs
        self.verbose = flag("verbose", verbose)
        self._attack = CanaryAttack(
            self._trees, schedule, algorithm, top_k=top_k, settings=settings, name=name, reveal=reveal
        )

    @property
    def settings(self) -> dict[str, Any]:
        """How it attacks, for reports; what it was told of a secret is masked."""
        return {"algorithm": self.algorithm, "top_k": self.top_k, **self._attack.settings}

    @property
    def extractions(self) -> dict[str, Extraction]:
        """The newest attack, by format name."""
        return self._attack.extractions

    @property
    def estimates(self) -> dict[str, ExposureEstimate]:
        """The exposures of the model that was attacked, by canary id, where another callback measured them."""
        return self._attack.estimates

    @property
    def extracted(self) -> list[str]:
        """The ids of the canaries among the candidates of the newest attack; of the others, `verdicts` tells more."""
        return self._attack.extracted

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        return self._attack.verdicts

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for."""
        super().setup(trainer, pl_module, stage)
        self._attack.name = self.name

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward, and the attack."""
        super().on_fit_start(trainer, pl_module)
        self._attack.begin(pl_module, quick=bool(getattr(trainer, "fast_dev_run", False)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attack every few epochs."""
        now, around = moment(trainer, epoch_ended=True), TrainerSurroundings(trainer)
        metrics = self._attack.after_epoch(pl_module, around, now, _measured_now(trainer))
        if metrics is not None:
            show_to_monitors(pl_module, metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attack, while the model is still on its device."""
        now, around = final_moment(trainer), TrainerSurroundings(trainer)
        show_at_the_end(trainer, self._attack.finish(pl_module, around, now, _measured_now(trainer)))
        if trainer.is_global_zero:
            self._send_tables(trainer)
            if self.verbose:
                say(trainer, self._in_words(console_redaction(trainer, self.canaries, reveal=self.reveal)))

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest attack into the record of the run."""
        self._attack.add_to_record(record)

    def state_dict(self) -> dict[str, Any]:
        """The newest attack, as plain values."""
        return self._attack.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        self._attack.load_state_dict(state_dict)

    def _in_words(self, redaction: Redaction) -> str:
        return f"{extraction_table(self.extractions, self.canaries, redaction)}\n\n{verdict_table(self.verdicts)}"

    def _send_tables(self, trainer: Trainer) -> None:
        outside = Redaction(self.canaries, shared=True, reveal=self.reveal)
        for logger in loggers_named(trainer, "WandbLogger"):
            rows = extraction_rows(self.extractions, self.canaries, outside)
            to_wandb.log_extractions(logger.experiment, rows, self.name)
            to_wandb.log_verdicts(logger.experiment, verdict_rows(self.verdicts), self.name)
        text = self._in_words(outside)
        for logger in loggers_named(trainer, "MLFlowLogger"):
            logger.experiment.log_text(logger.run_id, text, f"{self.name}/table.txt")
        for logger in loggers_named(trainer, "TensorBoardLogger"):
            logger.experiment.add_text(f"{self.name}/table", f"<pre>{text}</pre>", trainer.global_step)


def _measured_now(trainer: Trainer) -> dict[str, ExposureEstimate]:
    """Exposures by text in the weights as they are: a measurement of an earlier step says nothing here."""
    others = [callback for callback in callbacks_of(trainer) if isinstance(callback, ExposureCallback)]
    newest = [other.history[-1] for other in others if other.history and other.history[-1].step == trainer.global_step]
    newest.sort(key=lambda found: found.prior is None)  # of two, the one whose interval is one of ranks, too
    return {estimate.secret: estimate for found in newest for estimate in found.estimates.values()}
