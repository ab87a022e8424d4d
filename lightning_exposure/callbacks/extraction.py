"""`ExtractionCallback`: the attack on a model, run when its training ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure.callbacks._progress import Update, status
from lightning_exposure.callbacks._trees import CanaryTrees, ModelOf, loggers_named, only_one_with_this_name, say
from lightning_exposure.callbacks.exposure import ExposureCallback
from lightning_exposure.callbacks.quiet import quiet
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.extraction import Extraction, check_settings, extract
from lightning_exposure.report import wandb as to_wandb
from lightning_exposure.report.tables import extraction_rows, extraction_table, verdict_rows, verdict_table
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tree import SecretTree

_LEAST: dict[str, dict[str, int]] = {
    "shortest_path": {"budget": 100},
    "brute_force": {"budget": 100},
    "beam": {"width": 2},
    "sampling": {"samples": 20},
}
"""What makes each attack as short as can be."""


class ExtractionCallback(Callback):
    """Attacks the model at the end of the training: one attack per format of the canaries.

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
        every_n_epochs: Attack at the end of every so many epochs too; None: only when the fit ends.
        name: The first part of the metrics' names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        verbose: Print the table when the fit ends.
        **settings: Of the algorithm, as for `extract`.

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
        algorithm: str = "shortest_path",
        *,
        top_k: int | None = None,
        every_n_epochs: int | None = None,
        name: str = "extraction",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
        verbose: bool = True,
        **settings: Any,
    ) -> None:
        check_settings(algorithm, {key: value for key, value in settings.items() if key not in ("known", "memory")})
        if every_n_epochs is not None and every_n_epochs < 1:
            raise ArgumentError(f"every_n_epochs is {every_n_epochs!r}; expected at least 1, or None.")
        self.canaries = canaries
        self.algorithm = algorithm
        self.every_n_epochs = every_n_epochs
        self.name = name
        self.extractions: dict[str, Extraction] = {}
        self.estimates: dict[str, ExposureEstimate] = {}
        self._top_k = top_k
        self._verbose = verbose
        self._settings = settings
        self._now = settings  # for the fit under way
        self._attacked_at = -1
        self._trees = CanaryTrees(canaries, tokenizer, model=model, context=context, batch_size=batch_size)

    @property
    def state_key(self) -> str:
        """Different for callbacks with different canaries or attacks."""
        how = f"{self.algorithm}, {self._top_k}, {self._settings}"
        return f"{type(self).__name__}[{', '.join(canary.id for canary in self.canaries)}; {how}]"

    @property
    def extracted(self) -> list[str]:
        """The ids of the canaries among the candidates of the newest attack; of the others, `verdicts` tells more."""
        return [key for key, verdict in self.verdicts.items() if verdict.order is not None]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        return {
            canary.id: verdict_of(
                canary.text,
                canary.format.size,
                self.estimates.get(canary.id),
                self.extractions.get(canary.format.name),
            )
            for canary in self.canaries
        }

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for."""
        if stage != "fit":
            return
        only_one_with_this_name(trainer, self)
        self._trees.check(trainer)
        quick = getattr(trainer, "fast_dev_run", False)
        self._now = {**self._settings, **(_LEAST[self.algorithm] if quick else {})}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward."""
        self._attacked_at = -1
        with quiet(pl_module):
            self._trees.build(trainer, pl_module)
            # A setting out of range shows in the smallest attack, and not after the training.
            for name, least in _LEAST[self.algorithm].items():
                if self._settings.get(name) is None or self._settings[name] > least:
                    rehearsal = {**self._settings, name: least}
                    break
            else:
                rehearsal = self._settings
            for tree in self._trees.trees.values():
                extract(tree, self.algorithm, 1 if self._top_k is None else self._top_k, **rehearsal)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attack every few epochs."""
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._attack(trainer, pl_module)
            pl_module.log_dict(self._metrics())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attack, while the model is still on its device; here nothing can be logged through the module any more."""
        self._attack(trainer, pl_module)
        for logger in trainer.loggers:
            logger.log_metrics(self._metrics(), step=trainer.global_step)
        if trainer.is_global_zero:
            self._send_tables(trainer)
            if self._verbose:
                say(trainer, self._in_words())

    def state_dict(self) -> dict[str, Any]:
        """The newest attack, as plain values."""
        return {
            "extractions": {name: attack.to_dict() for name, attack in self.extractions.items()},
            "estimates": {key: estimate.to_dict() for key, estimate in self.estimates.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        self.extractions = {name: Extraction.from_dict(fields) for name, fields in state_dict["extractions"].items()}
        self.estimates = {key: ExposureEstimate(**fields) for key, fields in state_dict.get("estimates", {}).items()}

    def _attack(self, trainer: Trainer, module: LightningModule) -> None:
        if self._attacked_at == trainer.global_step:
            return  # nothing has changed since
        self._attacked_at = trainer.global_step
        with quiet(module), status(trainer, f"extraction: {self.algorithm}") as update:
            found = self._trees.map(trainer, lambda tree, canaries: self._attack_format(tree, canaries, update))
        self.extractions = {format.name: attack for format, attack in found.items()}
        self.estimates = self._measured_now(trainer)

    def _measured_now(self, trainer: Trainer) -> dict[str, ExposureEstimate]:
        """Exposures of our canaries in the weights as they are: a measurement of an earlier step says nothing here."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [callback for callback in callbacks if isinstance(callback, ExposureCallback) and callback.history]
        newest = [other.history[-1] for other in others if other.history[-1].step == trainer.global_step]
        by_text = {estimate.secret: estimate for found in newest for estimate in found.estimates.values()}
        return {canary.id: by_text[canary.text] for canary in self.canaries if canary.text in by_text}

    def _attack_format(self, tree: SecretTree, canaries: Sequence[Canary], update: Update) -> Extraction:
        def progress(expansions: int, open_nodes: int, best: float) -> None:
            found = "nothing yet" if best == math.inf else f"best {best:.1f} bits"
            update(f"{expansions:,} expansions, {open_nodes:,} open, {found}")

        return extract(
            tree,
            self.algorithm,
            len(canaries) if self._top_k is None else self._top_k,
            progress=progress,
            **self._now,
        )

    def _metrics(self) -> dict[str, float]:
        return {
            f"{self.name}/extracted": float(len(self.extracted)),
            f"{self.name}/expansions": float(sum(attack.expansions for attack in self.extractions.values())),
        }

    def _in_words(self) -> str:
        return f"{extraction_table(self.extractions, self.canaries)}\n\n{verdict_table(self.verdicts)}"

    def _send_tables(self, trainer: Trainer) -> None:
        for logger in loggers_named(trainer, "WandbLogger"):
            to_wandb.log_extractions(logger.experiment, extraction_rows(self.extractions, self.canaries), self.name)
            to_wandb.log_verdicts(logger.experiment, verdict_rows(self.verdicts), self.name)
        for logger in loggers_named(trainer, "TensorBoardLogger"):
            text = self._in_words()
            logger.experiment.add_text(f"{self.name}/table", f"<pre>{text}</pre>", trainer.global_step)
