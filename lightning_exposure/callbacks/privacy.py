"""`DifferentialPrivacy`: a callback that makes a training differentially private."""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure.callbacks.refusals import accumulation, is_overridden, refuse_optimizers, refuse_trainer
from lightning_exposure.callbacks.replays import Replays
from lightning_exposure.callbacks.trees import say
from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.privacy.accounting import History, with_steps
from lightning_exposure.privacy.budget import Budget, check_number
from lightning_exposure.privacy.clipping import Clipping
from lightning_exposure.privacy.proof import Promise
from lightning_exposure.privacy.sampling import PoissonLoader, fresh_seed, generators
from lightning_exposure.privacy.support import refuse_unsupported
from lightning_exposure.privacy.training import PrivateSteps
from lightning_exposure.secrets.arguments import whole_number

_HISTORIES: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()
"""The private steps of every module that was trained in this process."""


class DifferentialPrivacy(Callback):
    """Trains with differential privacy (DP-SGD, by Opacus), whatever the module, the data and the optimizer.

    The gradient of every example is clipped, noise is added to their sum, and batches are drawn by Poisson sampling:
    the training loader of the data module or module is replaced by a `PoissonLoader` with the same settings. Loaders
    that are given to `Trainer.fit` cannot be replaced; wrap them: `trainer.fit(model, PoissonLoader(loader))`.
    Checkpoints are those of the module and its own optimizer, and load without this callback.

    Logged through the module, once an epoch, is `privacy/epsilon`, so that `EarlyStopping` and `ModelCheckpoint` can
    monitor it. It is an upper bound, for the addition or removal of one record. What occurs several times in the data,
    such as a canary that was inserted k times, is covered only as a group: by k times that epsilon, and a larger
    delta.

    The training is proven to be private while it runs: batches are drawn by Poisson sampling, examples are clipped and
    do not mix, noise of the right size is added, the weights move along that gradient and not otherwise, and the
    accountant is told. A training in which something is wrong is refused.

    Epsilon is about the weights. What else a training gives away, such as the training loss that is logged, or a
    learning rate that was chosen by trying, is not covered.

    Args:
        noise_multiplier: The standard deviation of the noise, in units of `max_grad_norm`. 0 clips only: then epsilon
            is infinite.
        target_epsilon: In the place of `noise_multiplier`: the noise is chosen so that epsilon is this much after the
            last step that the Trainer plans.
        max_grad_norm: What the gradient of each example is clipped to.
        delta: The probability with which epsilon need not hold; well below one over the number of records.
        accountant: "prv" (the tightest) or "rdp" (the moments accountant). Where the former cannot tell, because
            epsilon is in the hundreds, the latter does.
        max_epsilon: Stop after the last step with which epsilon is within this.
        loss_reduction: "mean" if the module's loss is the mean over the examples of a batch, "sum" if it is their sum.
            A mean over the tokens that are not padding is neither: it weighs every example by the lengths of the
            others, and is refused. Take the mean of each example first, as `privacy.per_example_loss` does.
        seed: Where batches and noise come from. None: from the operating system, as privacy asks for. With a seed a
            run can be repeated, bit for bit, also after it was resumed at the end of an epoch; but whoever knows the
            seed can take the noise away again, so it is for tests and comparisons. In either case the noise is that of
            PyTorch's generators, as with Opacus outside of its secure mode: they are not made for cryptography.
        verify_steps: How many steps are looked at closely at first; later ones are too, at random. 0: nothing is
            proven.
        verbose: Say at the beginning what noise there is, and what epsilon it will come to.

    Attributes:
        epsilon: What was spent so far.
        history: The private steps so far, as `(noise multiplier, sample rate, how many)`. A resumed run continues it;
            fitting the same module again does, too, also with another one of these callbacks.
        noise_multiplier_: The noise multiplier in use: given or found.
        delta: As given.

    Example:
        >>> privacy = DifferentialPrivacy(target_epsilon=8.0, max_grad_norm=1.0, delta=1e-6)
        >>> privacy.epsilon, privacy.history
        (0.0, [])
    """

    def __init__(
        self,
        *,
        max_grad_norm: float,
        delta: float,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        accountant: str = "prv",
        max_epsilon: float | None = None,
        loss_reduction: str = "mean",
        seed: int | None = None,
        verify_steps: int = 3,
        verbose: bool = True,
    ) -> None:
        self.budget = Budget(
            delta=delta,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
            max_epsilon=max_epsilon,
            accountant=accountant,
        )
        check_number("max_grad_norm", max_grad_norm, above=True)
        if loss_reduction not in ("mean", "sum"):
            raise ArgumentError(f"loss_reduction={loss_reduction!r}: expected 'mean' or 'sum'.")
        self.max_grad_norm = float(max_grad_norm)
        self.delta = float(delta)
        self.loss_reduction = loss_reduction
        self.seed = None if seed is None else whole_number(seed, "seed", minimum=0)
        self.verify_steps = whole_number(verify_steps, "verify_steps", minimum=0)
        self._verbose = verbose
        self.history: History = []
        self.noise_multiplier_: float | None = None
        self._module: weakref.ref[Any] | None = None  # whose history it is
        self._known = (0, 0.0)
        self._limit = math.inf
        self._entropy = 0
        self._rank = 0
        self._steps: PrivateSteps | None = None
        self._replays: Replays | None = None
        self._loader: PoissonLoader | None = None
        self._problem: DataError | None = None
        self._undo = contextlib.ExitStack()

    @property
    def steps(self) -> int:
        """How many private steps were made."""
        return sum(count for _, _, count in self.history)

    @property
    def epsilon(self) -> float:
        """What was spent so far, at `delta`; infinite without noise."""
        if self._known[0] != self.steps:
            self._known = (self.steps, self.budget.epsilon(self.history))
        return self._known[1]

    # ---- before training ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot be private, and see to it that Lightning reads a Poisson loader.

        Raises:
            FitError: A setting of the Trainer stands in the way.
            ModelError: Parts of the module cannot be trained privately.
        """
        if stage != "fit":
            return
        self._restore()
        refuse_trainer(trainer, pl_module, self, DifferentialPrivacy)
        if not is_overridden("configure_model", pl_module, "LightningModule"):
            refuse_unsupported(pl_module)
        # Whoever trained the module before: what was spent on its weights stays spent.
        if self._module is None or self._module() is not pl_module or self.history != _HISTORIES.get(pl_module, []):
            self.history, self._known = list(_HISTORIES.get(pl_module, [])), (0, 0.0)
        if self._module is None or self._module() is not pl_module:
            self.noise_multiplier_, self._module = None, weakref.ref(pl_module)
        self._entropy = fresh_seed() if self.seed is None else self.seed
        self._rank = trainer.global_rank
        datamodule = getattr(trainer, "datamodule", None)
        for source, kind in ((datamodule, "LightningDataModule"), (pl_module, "LightningModule")):
            if is_overridden("train_dataloader", source, kind):
                self._replace_loader(source)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what shows only when the model and the optimizers are made."""
        refuse_unsupported(pl_module)
        refuse_optimizers(trainer.optimizers, trainer.lr_scheduler_configs)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the optimizer private; by now it is restored, if a checkpoint was given.

        Raises:
            FitError: The training loader is one that cannot be replaced, or the plan does not allow for the privacy.
        """
        loader = self._loader = self._find_loader(trainer)
        loader.bind(self._next_generator)
        rate, planned = loader.sample_rate, trainer.estimated_stepping_batches - trainer.global_step
        # All processes must agree to the last bit, and stop at the same step.
        agreed = trainer.strategy.broadcast
        noise = agreed(self.budget.noise(self.history, rate, planned, self.noise_multiplier_))
        within = agreed(self.budget.limit(self.history, rate, noise, planned))
        self.noise_multiplier_, self._limit = noise, self.steps + within
        self._announce(trainer, loader, planned, within)
        clipping = Clipping(pl_module, max_grad_norm=self.max_grad_norm, loss_reduction=self.loss_reduction)
        (inner,) = trainer.optimizers
        self._steps = PrivateSteps(
            clipping,
            inner,
            noise_multiplier=noise,
            expected_batch_size=loader.batch_size,
            count=self._count,
            distributed=trainer.world_size > 1,
            verify=self.verify_steps,
            promise=Promise(
                noise,
                self.max_grad_norm,
                sample_rate=rate,
                records=loader.own_records,
                history=lambda: self.history,
                seed=(agreed(self._entropy), trainer.global_rank, self.steps),
            ),
        )
        self._replays = Replays(trainer, pl_module, self._steps, loader, self.verify_steps)
        self._undo.callback(self._release, trainer)
        trainer.optimizers = [self._steps.optimizer]
        model: Any = trainer.strategy.model
        if hasattr(model, "no_sync"):
            # Nothing is to be reduced but the private gradients, and the private optimizer does that.
            self._undo.enter_context(model.no_sync())
        if not within:
            trainer.should_stop = True

    # ---- training -----------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what other callbacks may have changed meanwhile."""
        if trainer.accumulate_grad_batches != 1:
            raise FitError(accumulation(trainer.accumulate_grad_batches))
        loader, before = self._find_loader(trainer), self._loader
        if before is not None and (loader.steps, loader.records) != (before.steps, before.records):
            raise FitError(
                f"The training loader changed while it trained, from {before!r} to {loader!r}; the epsilon would not "
                "hold. Leave reload_dataloaders_every_n_epochs out, or return data of the same size."
            )
        self._loader = loader

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Say how many examples there are."""
        if self._steps is None or self._loader is None or trainer.optimizers != [self._steps.optimizer]:
            raise FitError(
                "The Trainer's optimizers are not the private one any more. Something has set trainer.optimizers; the "
                "training was stopped, because it would not have been private."
            )
        if not self._loader.sizes:
            raise FitError(
                "A batch did not come out of the PoissonLoader, or was not yet fetched when the step began. Leave the "
                "fetching to the Trainer: use training_step(self, batch, batch_idx)."
            )
        size, draw = self._loader.sizes.popleft(), self._loader.draws.popleft()
        if self._replays is not None:
            self._replays.begin(batch, batch_idx, draw)
        self._steps.begin(size, draw)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prove the step, and stop when the budget is spent."""
        if self._steps is not None:
            self._steps.end()
        if self._replays is not None:
            self._replays.end(batch)
        if self.steps >= self._limit:
            trainer.should_stop = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log here too: callbacks that monitor look right after it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            pl_module.log("privacy/epsilon", self.epsilon, logger=False, sync_dist=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was spent."""
        pl_module.log("privacy/epsilon", self.epsilon, sync_dist=True)

    # ---- afterwards ---------------------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at all steps together, and leave everything as it was."""
        if self._steps is not None:
            self._steps.finish()
        if self._replays is not None:
            self._replays.finish()
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave everything as it was."""
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave everything as it was."""
        self._restore()

    def state_dict(self) -> dict[str, Any]:
        """The history and the noise, as plain values; no randomness."""
        return {"history": [list(entry) for entry in self.history], "noise_multiplier": self.noise_multiplier_}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history, with the same noise."""
        self.history = [(noise, rate, count) for noise, rate, count in state_dict["history"]]
        self.noise_multiplier_ = state_dict["noise_multiplier"]
        self._known = (0, 0.0)

    # ---- parts --------------------------------------------------------------------------------------------

    def _replace_loader(self, source: Any) -> None:
        """Let a data module or module give a Poisson loader in the place of its own."""
        original = source.train_dataloader
        had = "train_dataloader" in vars(source)

        # A plain function: whoever copies a module deeply, as callbacks that average weights do, shares it.
        def train_dataloader() -> Any:
            loader = original()
            try:
                made = loader if isinstance(loader, PoissonLoader) else PoissonLoader(loader)
            except DataError as problem:
                # Raised before the first step. If it were raised here, Lightning would leave torch's classes patched.
                self._problem = problem
                return loader
            made.bind(self._next_generator)
            return made

        def undo() -> None:
            vars(source).pop("train_dataloader", None)
            if had:
                vars(source)["train_dataloader"] = original

        vars(source)["train_dataloader"] = train_dataloader
        self._undo.callback(undo)

    def _find_loader(self, trainer: Trainer) -> PoissonLoader:
        if self._problem is not None:
            raise self._problem
        return _poisson_loader(trainer.train_dataloader)

    def _next_generator(self) -> torch.Generator:
        """For each pass over the data: where its batches come from; and its noise."""
        device = "cpu"
        if self._steps is not None:
            device = self._steps.optimizer.params[0].device
        made = generators(self._entropy, rank=self._rank, steps=self.steps, device=device)
        if self._steps is not None:
            self._steps.use_noise(made.noise)
        return made.sampling

    def _count(self) -> None:
        """Once for every private step, before the weights move."""
        assert self._loader is not None
        assert self.noise_multiplier_ is not None
        if self.steps >= self._limit:
            raise FitError(
                f"max_epsilon={self.budget.max_epsilon}: spent ({self.epsilon:.4g}), but the Trainer goes on. Leave "
                "out min_epochs and min_steps."
            )
        self.history = with_steps(self.history, self.noise_multiplier_, self._loader.sample_rate)
        module = None if self._module is None else self._module()
        if module is not None:
            _HISTORIES[module] = self.history

    def _announce(self, trainer: Trainer, loader: PoissonLoader, planned: float, within: float) -> None:
        if not (self._verbose and trainer.is_global_zero):
            return
        noise, rate = self.noise_multiplier_, loader.sample_rate
        assert noise is not None
        say(
            trainer,
            f"Private training: noise multiplier {noise:.4g}, clipping norm {self.max_grad_norm:g}, sample rate "
            f"{rate:.4g} (about {loader.records * rate:.4g} of {loader.records} records a step).",
        )
        unknown = trainer.global_step - self.steps
        if unknown > 0:
            say(trainer, f"{unknown} steps before these were made without privacy; epsilon does not cover them.")
        say(trainer, self.budget.outlook(self.history, rate, noise, planned, within))
        say(
            trainer, "Epsilon is per record; what occurs k times in the data is covered as a group only, by k times it."
        )

    def _release(self, trainer: Trainer) -> None:
        if self._steps is None:
            return
        steps, self._steps, self._replays = self._steps, None, None
        inner = steps.close()
        if trainer.optimizers == [steps.optimizer]:
            trainer.optimizers = [inner]

    def _restore(self) -> None:
        """Undo everything that was done to the module, the data and the Trainer; may be called at any time."""
        self._undo.close()
        self._loader, self._problem, self._limit = None, None, math.inf


def _poisson_loader(loader: object) -> PoissonLoader:
    if isinstance(loader, PoissonLoader):
        return loader
    if isinstance(loader, torch.utils.data.DataLoader):
        raise FitError(
            f"Trainer.fit was given the training loader itself ({type(loader).__name__}), which no callback can "
            "replace; private training needs batches by Poisson sampling. Wrap it: trainer.fit(model, "
            "PoissonLoader(loader)), with `from lightning_exposure.privacy import PoissonLoader`; or put it into a "
            "data module."
        )
    raise DataError(
        f"train_dataloader: {type(loader).__name__}; expected one PoissonLoader, because every record must be in a "
        "batch with the same probability. Join several datasets with torch.utils.data.ConcatDataset."
    )
