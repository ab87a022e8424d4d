"""`DifferentialPrivacy`: a callback that makes a training run differentially private."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import choice, number, whole_number
from lightning_exposure._files import plain
from lightning_exposure.callbacks.private import _refusals as refusals
from lightning_exposure.callbacks.private._account import Account
from lightning_exposure.callbacks.private._announcing import announce
from lightning_exposure.callbacks.private._guarding import Guard
from lightning_exposure.callbacks.private._loaders import next_draw, poisson_loader, refuse_change, replace_loader
from lightning_exposure.callbacks.private._monitors import Monitors
from lightning_exposure.callbacks.private._probing import Probing
from lightning_exposure.callbacks.private._recording import privacy_facts
from lightning_exposure.callbacks.private._seams import check_names
from lightning_exposure.errors import DataError, FitError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.losses import REDUCTIONS, LossReduction
from lightning_exposure.privacy.clipping.support import refuse_unsupported
from lightning_exposure.privacy.steps.accounting import AccountantName, History
from lightning_exposure.privacy.steps.budget import Budget
from lightning_exposure.privacy.steps.origin import read_history
from lightning_exposure.privacy.steps.poisson import PoissonLoader, fresh_seed, generators
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.proof import Promise
from lightning_exposure.report.record import RunRecord


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
    accountant is told. Between the steps, from the first to the last, nothing else may move the weights, and nothing
    that is saved beside them may depend on the data. A training run in which something is wrong is refused.

    What was spent goes with the weights: with the module and its copies, and with every checkpoint.

    Epsilon is about the weights. What else a training run gives away, such as the training loss that is logged, or a
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
            proven, and what happens between the steps is not checked.
        history: A checkpoint of a private training run, whose weights the module has: the path, or what is in it. What
            was spent there counts. A module that was trained in this process, or is resumed with `ckpt_path`, needs
            none.
        post_processing: What may change the weights between two steps, because it looks at the weights alone: names of
            callbacks ("MaxNorm", or "MaxNorm.on_train_batch_end" for one hook), or of hooks of the module
            ("on_train_batch_end"). Also the names of saved state that is known not to depend on the training data.
            This is not checked. Lightning's own averages of weights need not be named.
        verbose: Print at the beginning how much noise is added, and which epsilon that leads to.

    Attributes:
        epsilon: What was spent so far.
        history: The private steps behind the weights, as `(noise multiplier, sample rate, how many)`. It goes on
            wherever the weights do: when a run is resumed, when a module, or a copy of it, is fitted again.
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
        accountant: AccountantName = "prv",
        max_epsilon: float | None = None,
        loss_reduction: LossReduction = "mean",
        seed: int | None = None,
        verify_steps: int = 3,
        history: str | PathLike[str] | Mapping[str, Any] | None = None,
        post_processing: Sequence[str] = (),
        verbose: bool = True,
    ) -> None:
        self.budget = Budget(
            delta=delta,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
            max_epsilon=max_epsilon,
            accountant=accountant,
        )
        self.max_grad_norm = number("max_grad_norm", max_grad_norm, above=0)
        self.delta = float(delta)
        self.loss_reduction = choice("loss_reduction", loss_reduction, REDUCTIONS)
        self.seed = None if seed is None else whole_number("seed", seed, at_least=0)
        self.verify_steps = whole_number("verify_steps", verify_steps, at_least=0)
        self.post_processing = check_names(post_processing)
        self._verbose = verbose
        self._account = Account(None if history is None else read_history(history), self.post_processing)
        self.noise_multiplier_: float | None = None
        self._module: weakref.ref[Any] | None = None  # whose history it is
        self._known: tuple[History, float] = ((), 0.0)
        self._guard: Guard | None = None
        self._limit = math.inf
        self._entropy = 0
        self._rank = 0
        self._steps: PrivateSteps | None = None
        self._probing: Probing | None = None
        self._loader: PoissonLoader | None = None
        self._problem: DataError | None = None
        self._monitors: Monitors | None = None
        self._undo = contextlib.ExitStack()
        self._finally = contextlib.ExitStack()  # what lasts until all callbacks have ended the training

    @property
    def history(self) -> History:
        """The private steps behind the weights, as `(noise multiplier, sample rate, how many)`."""
        return self._account.record.history

    @property
    def steps(self) -> int:
        """How many private steps were made."""
        return self._account.record.steps

    @property
    def epsilon(self) -> float:
        """What was spent so far, at `delta`; infinite without noise."""
        history = self.history
        if self._known[0] != history:
            self._known = (history, self.budget.epsilon(history))
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
        refusals.refuse_trainer(trainer, pl_module, self, DifferentialPrivacy)
        if not refusals.is_overridden("configure_model", pl_module, "LightningModule"):
            refuse_unsupported(pl_module)
        if self._module is None or self._module() is not pl_module:
            self.noise_multiplier_, self._module = None, weakref.ref(pl_module)
        self._account.prepare()
        self._entropy = fresh_seed() if self.seed is None else self.seed
        self._rank = trainer.global_rank
        datamodule = getattr(trainer, "datamodule", None)
        for source, kind in ((datamodule, "LightningDataModule"), (pl_module, "LightningModule")):
            if refusals.is_overridden("train_dataloader", source, kind):
                self._undo.callback(replace_loader(source, self._next_generator, partial(setattr, self, "_problem")))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what shows only when the model and the optimizers are made."""
        refuse_unsupported(pl_module)
        refusals.refuse_optimizers(trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the optimizer private; by now it is restored, if a checkpoint was given.

        Raises:
            FitError: The training loader is one that cannot be replaced, or the plan does not allow for the privacy.
        """
        loader = self._loader = self._find_loader(trainer)
        loader.bind(self._next_generator)
        self._account.open(trainer, pl_module, verbose=self._verbose)
        rate, planned = loader.sample_rate, trainer.estimated_stepping_batches - trainer.global_step
        # All processes must agree to the last bit, and stop at the same step.
        agreed = trainer.strategy.broadcast
        noise = agreed(self.budget.noise(self.history, rate, planned, self.noise_multiplier_))
        within = agreed(self.budget.limit(self.history, rate, noise, planned))
        self.noise_multiplier_, self._limit = noise, self.steps + within
        if self._verbose:
            after = self.budget.outlook(self.history, rate, noise, planned, within)
            announce(trainer, loader, noise, self.max_grad_norm, after, self.post_processing)
        if self.verify_steps:
            self._guard = Guard(trainer, pl_module, self, self.post_processing, self._entropy)
            self._finally.callback(self._guard.close)
        self._finally.callback(self._account.follow_checkpoints(pl_module, self._check_weights))
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
            watch=None if self._guard is None else self._guard.watch,
            promise=Promise(
                noise,
                self.max_grad_norm,
                sample_rate=rate,
                records=loader.own_records,
                history=lambda: self.history,
                seed=(agreed(self._entropy), trainer.global_rank, self.steps),
            ),
        )
        self._probing = Probing(trainer, pl_module, self._steps, loader, self.verify_steps)
        self._undo.callback(self._release, trainer)
        if self._guard is not None:
            self._guard.follow(self._steps)
        self._monitors = Monitors(trainer, pl_module, verbose=self._verbose)
        self._undo.callback(self._monitors.close)
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
            raise FitError(refusals.accumulation(trainer.accumulate_grad_batches))
        loader = self._find_loader(trainer)
        refuse_change(self._loader, loader)
        self._loader = loader

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Say how many examples there are."""
        refusals.refuse_exchanged(trainer.optimizers, None if self._steps is None else self._steps.optimizer)
        assert self._steps is not None
        assert self._loader is not None
        size, draw = next_draw(self._loader)
        if self._guard is not None:
            self._guard.begin(batch, batch_idx)
        if self._probing is not None:
            self._probing.begin(batch, batch_idx, draw)
        self._steps.begin(size, draw)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prove the step, and stop when the budget is spent."""
        if self._steps is not None:
            self._steps.end()
        if self._probing is not None:
            self._probing.end(batch)
        if self._monitors is not None:
            self._monitors.check()
        if self.steps >= self._limit:
            trainer.should_stop = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log here too: callbacks that monitor look right after it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._log(pl_module, logger=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was spent."""
        self._log(pl_module)

    # ---- afterwards ---------------------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at all steps together, and at the weights a last time but one; and take the privacy off again."""
        if self._steps is not None:
            self._steps.finish()
        if self._probing is not None:
            self._probing.finish()
        if self._guard is not None:
            self._guard.end()
        self._close_steps()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave everything as it was."""
        if self._account.is_open and (self._guard is None or self._guard.watch.is_settled()):
            self._account.settle(pl_module)
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """See to it that nothing moved the weights at the last moment, and leave everything as it was."""
        try:
            if self._account.is_open:
                self._check_weights()
                self._account.settle(pl_module)
        finally:
            self._restore()

    def add_to_record(self, record: RunRecord) -> None:
        """Put the promise, and how it was spent, into the record of the run."""
        record.privacy = plain(privacy_facts(self), "privacy")

    def state_dict(self) -> dict[str, Any]:
        """The history and the noise, as plain values; no randomness."""
        history = [list(entry) for entry in self.history]
        state: dict[str, Any] = {"history": history, "noise_multiplier": self.noise_multiplier_}
        if self._account.record.exemptions:
            state["post_processing"] = list(self._account.record.exemptions)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history, with the same noise."""
        self._account.load(state_dict["history"])
        self.noise_multiplier_ = state_dict["noise_multiplier"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take up what a checkpoint says of its weights."""
        self._account.read(checkpoint)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write down which private steps have made the weights."""
        self._account.write(pl_module, checkpoint)

    # ---- parts --------------------------------------------------------------------------------------------

    def _check_weights(self) -> None:
        if self._guard is not None:
            self._guard.watch.check()

    def _log(self, module: LightningModule, **options: Any) -> None:
        self._account.log(module, self.epsilon, **options)

    def _find_loader(self, trainer: Trainer) -> PoissonLoader:
        if self._problem is not None:
            raise self._problem
        return poisson_loader(trainer.train_dataloader)

    def _next_generator(self) -> torch.Generator:
        """For each pass over the data: where its batches come from; and its noise."""
        device = "cpu" if self._steps is None else self._steps.optimizer.params[0].device
        made = generators(self._entropy, rank=self._rank, steps=self.steps, device=device)
        if self._steps is not None:
            self._steps.use_noise(made.noise)
        return made.sampling

    def _count(self) -> None:
        """Once for every private step, before the weights move."""
        assert self._loader is not None
        assert self.noise_multiplier_ is not None
        if self.steps >= self._limit:
            raise FitError(refusals.overspent(self.budget.max_epsilon, self.epsilon))
        module = None if self._module is None else self._module()
        self._account.step(module, self.noise_multiplier_, self._loader.sample_rate)

    def _release(self, trainer: Trainer) -> None:
        if self._steps is None:
            return
        steps, self._steps, self._probing = self._steps, None, None
        inner = steps.close()
        if trainer.optimizers == [steps.optimizer]:
            trainer.optimizers = [inner]

    def _close_steps(self) -> None:
        self._undo.close()
        if self._guard is not None:
            self._guard.follow(None)
        self._loader, self._problem, self._monitors, self._limit = None, None, None, math.inf

    def _restore(self) -> None:
        """Undo everything that was done to the module, the data and the Trainer; may be called at any time."""
        self._close_steps()
        self._finally.close()
        self._account.close()
        self._guard = None
