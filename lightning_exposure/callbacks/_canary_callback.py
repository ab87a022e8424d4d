"""`CanaryCallback`: what the callbacks on canaries have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import flag
from lightning_exposure.callbacks._hyperparameters import hide_from_checkpoint, hide_from_loggers
from lightning_exposure.callbacks._planted import check_copies, check_tokens
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks._surroundings import callbacks_of, tokenizer_of
from lightning_exposure.measuring import CanaryTrees, Identity, ModelOf, SharedTrees, quiet
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import Tokenizer


class CanaryCallback(Callback):
    """Builds the trees of its canaries, once for all callbacks of a fit, and finds its own state after a resumption.

    Args:
        canaries: What to look for.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        name: The first part of the metrics' names.
        model: Picks the next-token model out of the LightningModule; None: the LightningModule itself.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        reveal: Whether loggers and checkpoints get texts in full, and the console those that are no canary.
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | None,
        *,
        name: str,
        model: ModelOf | None,
        context: int | None,
        batch_size: int,
        reveal: bool = False,
    ) -> None:
        self._trees = CanaryTrees(canaries, model=model, context=context, batch_size=batch_size)
        self.canaries = canaries
        self.tokenizer = tokenizer
        self.name = name
        self.model = model
        self.context = context
        self.batch_size = batch_size
        self.reveal = flag("reveal", reveal)
        self._identity = Identity.of(type(self).__name__, name, model, canaries)
        self._shared: SharedTrees | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """How it works, for reports."""
        raise NotImplementedError

    @property
    def state_key(self) -> str:
        """Different for callbacks with different names, models, canaries or settings."""
        return self._identity.key({**self.settings, "context": self.context})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for.

        Raises:
            TokenizerError: The tokenizer cannot spell the formats.
            ArgumentError: There is no tokenizer.
            DataError: The data module is one of ours, and plants other canaries, or these as other tokens.
        """
        if stage != "fit":
            return
        self._number_name(trainer)
        if not self.reveal:
            hide_from_loggers(trainer, pl_module, self.canaries)
        self._shared = SharedTrees.join(trainer, self)
        data, tokenizer = getattr(trainer, "datamodule", None), tokenizer_of(trainer, self.tokenizer)
        check_copies(data, self.canaries)
        for format, canaries in self._trees.by_format.items():
            check_tokens(data, self._shared.spelling(format, tokenizer), canaries)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward."""
        with quiet(pl_module):
            self._trees.build(self._shared or SharedTrees(), pl_module, tokenizer_of(trainer, self.tokenizer))
        self._shared = None  # the other callbacks hold it as long as they need it

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Checkpoints are passed on: keep the texts of canaries among the hyperparameters out of them."""
        if not self.reveal:
            hide_from_checkpoint(checkpoint, self.canaries)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A run that is resumed with other settings, such as a larger budget, goes on with the state that it left."""
        own = [key for key in self._unclaimed(trainer, checkpoint) if self._identity.owns(key)]
        if len(own) == 1:
            checkpoint["callbacks"].setdefault(self.state_key, checkpoint["callbacks"][own[0]])

    def _unclaimed(self, trainer: Trainer, checkpoint: Mapping[str, Any]) -> list[str]:
        """The states in a checkpoint that no callback of the trainer will find; none if ours is there."""
        states = checkpoint.get("callbacks") or {}
        taken = {callback.state_key for callback in callbacks_of(trainer)}
        return [] if self.state_key in states else [key for key in states if isinstance(key, str) and key not in taken]

    def _number_name(self, trainer: Trainer) -> None:
        """Two callbacks of a kind that log under one name would overwrite each other: the later one gets a number."""
        others = callbacks_of(trainer)
        before = [other.name for other in others[: others.index(self)] if isinstance(other, type(self))]
        original, number = self._identity.name, 2
        self.name = original
        while self.name in before:
            self.name, number = f"{original}_{number}", number + 1
        if self.name != original:
            kind = type(self).__name__
            say(trainer, f"Two callbacks of the kind {kind} log as {original!r}: this one logs as {self.name!r}.")
