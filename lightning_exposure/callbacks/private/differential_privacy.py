"""`DifferentialPrivacy`: a callback that makes a training run differentially private."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import choice, flag, number, whole_number
from lightning_exposure._files import plain
from lightning_exposure.callbacks.private import _refusals as refusals
from lightning_exposure.callbacks.private._account import Account
from lightning_exposure.callbacks.private._beginning import begin_fit, planned
from lightning_exposure.callbacks.private._fit import PrivateFit
from lightning_exposure.callbacks.private._loaders import poisson_loader, replace_loader
from lightning_exposure.callbacks.private._metrics import COVERED, NormLog, log_all
from lightning_exposure.callbacks.private._norms import NormInForce
from lightning_exposure.callbacks.private._recording import privacy_facts, way_of
from lightning_exposure.callbacks.private._units import Protection, Unit
from lightning_exposure.callbacks.private.manual import choosing
from lightning_exposure.callbacks.private.watching.guarding import Guard
from lightning_exposure.callbacks.private.watching.seams import check_names
from lightning_exposure.errors import DataError, FitError
from lightning_exposure.privacy.clipping.losses import REDUCTIONS, LossReduction
from lightning_exposure.privacy.clipping.support import refuse_unsupported
from lightning_exposure.privacy.steps.accounting import AccountantName, History
from lightning_exposure.privacy.steps.adaptive import AdaptiveClipping, ClippingName, chosen_clipping
from lightning_exposure.privacy.steps.budget import Budget
from lightning_exposure.privacy.steps.origin import read_history
from lightning_exposure.privacy.steps.poisson import PoissonLoader, fresh_seed, generators
from lightning_exposure.privacy.steps.secure import AnyGenerator
from lightning_exposure.privacy.users.membership import UserOf
from lightning_exposure.report.record import RunRecord


class DifferentialPrivacy(Callback):
    """Trains with differential privacy (DP-SGD, by Opacus), whatever the module, the data and the optimizer.

    The gradient of every example is clipped, noise is added to their sum, and batches are drawn by Poisson sampling:
    the training loader of the data module or module is replaced by a `PoissonLoader` with the same settings. Loaders
    that are given to `Trainer.fit` cannot be replaced; wrap them: `trainer.fit(model, PoissonLoader(loader))`.
    Checkpoints are those of the module and its own optimizer, and load without this callback.

    Logged through the module, once an epoch, are `privacy/epsilon`, so that `EarlyStopping` and `ModelCheckpoint` can
    monitor it, and what it rests on: `privacy/delta`, `privacy/noise_multiplier`, `privacy/clipping_norm` and
    `privacy/sample_rate`; loggers get the accountant's name. Epsilon is an upper bound, for the addition or removal of
    one record, or of one user with all records that are his, if `unit` says so. What occurs in several of them, such as
    a canary that was inserted k times, is covered only as a group: by k times that epsilon, and a larger delta.

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
        clipping: "flat" clips the gradient of an example as a whole. "per_layer" clips it layer by layer, each to
            `max_grad_norm` divided by the root of the number of layers. "adaptive" lets the norm follow the median of
            the examples' norms, privately, beginning with `max_grad_norm`; `privacy.AdaptiveClipping` has its
            settings.
        delta: The probability with which epsilon need not hold; well below one over the number of records, or users.
        unit: Whom epsilon protects: one "record", or one "user" with all records that are his. Users are then drawn in
            the place of records, `batch_size` of the loader is how many users a batch has on average, and it is the sum
            of the gradients of a user's records that is clipped to `max_grad_norm`. A user is never split over batches,
            parts of them or processes.
        user: Names the user of a record, as the training dataset returns it: `lambda record: record["author"]`. Or the
            names, one for each record, so that none need be read. A canary of `CanaryDataModule` is a user of its own.
        max_records_per_user: How many records of a user may be in a batch; of those who have more, so many are drawn at
            random each time.
        accountant: "prv" (the tightest) or "rdp" (the moments accountant). Where the former cannot tell, because
            epsilon is in the hundreds, the latter does.
        max_epsilon: Stop after the last step with which epsilon is within this.
        loss_reduction: "mean" if the module's loss is the mean over the examples of a batch, "sum" if it is their sum.
            A mean over the tokens that are not padding is neither: it weighs every example by the lengths of the
            others, and is refused. Take the mean of each example first, as `privacy.per_example_loss` does.
        max_physical_batch_size: How many examples are trained on at a time, at most (in each process). A batch with
            more of them is trained on in parts, one after the other, in the memory of one part. It is still one step,
            with one noise and one entry of the accountant, and the weights are the same to rounding. None: batches
            are trained on as a whole.
        seed: Where batches and noise come from. None: from the operating system, as privacy asks for. With a seed a
            run can be repeated, bit for bit, also after it was resumed at the end of an epoch; but whoever knows the
            seed can take the noise away again, so it is for tests and comparisons. In either case the noise is that of
            PyTorch's generators, as with Opacus outside of its secure mode: they are not made for cryptography.
        secure: Draw batches and noise from the operating system's cryptographic generator, which nobody can foretell,
            and make the noise so that its digits do not tell what it was added to. Slower, and without a seed.
        verify_steps: How many steps are looked at closely at first; later ones are too, at random. 0: nothing is
            proven, and what happens between the steps is not checked.
        private: For a module that makes its steps itself (`automatic_optimization = False`), as a GAN does: the name
            of the part that sees the data ("discriminator"). The optimizer with its weights is the private one, and
            steps once a batch. The others must not depend on the data but through that part; this is proven, too.
        history: A checkpoint of a private training run, whose weights the module has: the path, or what is in it. What
            was spent there counts. A module that was trained in this process, or is resumed with `ckpt_path`, needs
            none.
        post_processing: What may change the weights between two steps, because it looks at the weights alone: names of
            callbacks ("MaxNorm", or "MaxNorm.on_train_batch_end" for one hook), or of hooks of the module
            ("on_train_batch_end"). Also the names of saved state that is known not to depend on the training data.
            This is not checked. Lightning's own averages of weights need not be named.
        log_norms: Log the share of examples that were clipped, and the median of their norms, as
            `privacy/clipped_share` and `privacy/median_norm`. They are computed from the training data without noise:
            epsilon does not cover them, as it does not cover the training loss.
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
        unit: Unit = "record",
        user: UserOf | None = None,
        max_records_per_user: int | None = None,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        clipping: ClippingName | AdaptiveClipping = "flat",
        accountant: AccountantName = "prv",
        max_epsilon: float | None = None,
        loss_reduction: LossReduction = "mean",
        max_physical_batch_size: int | None = None,
        seed: int | None = None,
        secure: bool = False,
        verify_steps: int = 3,
        private: str | None = None,
        history: str | PathLike[str] | Mapping[str, Any] | None = None,
        post_processing: Sequence[str] = (),
        log_norms: bool = True,
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
        self.clipping = chosen_clipping(clipping, self.max_grad_norm, self.budget.noise_multiplier)
        self.delta = self.budget.delta
        self.loss_reduction = choice("loss_reduction", loss_reduction, REDUCTIONS)
        self.protection = Protection(unit, user, max_records_per_user, max_physical_batch_size)
        self.unit, self.user, self.max_records_per_user = unit, user, self.protection.max_records_per_user
        self.max_physical_batch_size = self.protection.max_physical_batch_size
        self.seed = None if seed is None else whole_number("seed", seed, at_least=0)
        self.secure = flag("secure", secure)
        refusals.refuse_seeded(self.seed, secure=self.secure)
        self.verify_steps = whole_number("verify_steps", verify_steps, at_least=0)
        self.private = choosing.check_private(private)
        self.post_processing = check_names(post_processing)
        self.log_norms = flag("log_norms", log_norms)
        self.norms = NormLog()
        self._verbose = verbose
        self.norm_in_force = NormInForce(self.clipping, self.max_grad_norm)
        told = None if history is None else read_history(history)
        self._account = Account(told, self.post_processing, unit, way_of(self))
        self.noise_multiplier_: float | None = None
        self._module: weakref.ref[Any] | None = None  # whose history it is
        self._known: tuple[History, float] = ((), 0.0)
        self._guard: Guard | None = None
        self._fit: PrivateFit | None = None
        self._limit = math.inf
        self._entropy = 0
        self._rank = 0
        self._problem: DataError | None = None
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
            refuse_unsupported(choosing.private_part(pl_module, self.private))
        if self._module is None or self._module() is not pl_module:
            self.noise_multiplier_, self._module = None, weakref.ref(pl_module)
            self.norm_in_force = NormInForce(self.clipping, self.max_grad_norm)
        self._account.prepare()
        self._entropy = fresh_seed() if self.seed is None else self.seed
        self._rank = trainer.global_rank
        self.protection.protect_given(trainer)
        protect, failed = partial(self.protection.protect, trainer), partial(setattr, self, "_problem")
        datamodule = getattr(trainer, "datamodule", None)
        for source, kind in ((datamodule, "LightningDataModule"), (pl_module, "LightningModule")):
            if refusals.is_overridden("train_dataloader", source, kind):
                self._undo.callback(replace_loader(source, self._next_generator, protect, failed))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what shows only when the model and the optimizers are made."""
        refuse_unsupported(choosing.private_part(pl_module, self.private))
        choosing.private_place(trainer.optimizers, pl_module, self.private)
        choosing.refuse_schedules(trainer, pl_module, self.private, self.post_processing)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the optimizer private; by now it is restored, if a checkpoint was given.

        Raises:
            FitError: The training loader is one that cannot be replaced, or the plan does not allow for the privacy.
        """
        loader = self._find_loader(trainer)
        loader.bind(self._next_generator)
        self._account.open(trainer, pl_module, verbose=self._verbose)
        plan = planned(self, trainer, loader.sample_rate, verbose=self._verbose)
        self.noise_multiplier_, self._limit = plan.noise, self.steps + plan.within
        if self.verify_steps:
            place = choosing.private_place(trainer.optimizers, pl_module, self.private)
            self._guard = Guard(trainer, pl_module, self, self.post_processing, self._entropy, place)
            self._finally.callback(self._guard.close)
        self._finally.callback(self._account.follow_checkpoints(pl_module, self._check_weights))
        seed = (trainer.strategy.broadcast(self._entropy), trainer.global_rank, self.steps)
        self._fit = begin_fit(
            self, trainer, pl_module, loader, outlook=plan.outlook, count=self._count, guard=self._guard, seed=seed
        )
        if not plan.within:
            trainer.should_stop = True

    # ---- training -----------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what other callbacks may have changed meanwhile."""
        if trainer.accumulate_grad_batches != 1:
            raise FitError(refusals.accumulation(trainer.accumulate_grad_batches))
        assert self._fit is not None
        self._fit.read(self._find_loader(trainer))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Say how many examples there are."""
        assert self._fit is not None
        self._fit.begin(batch, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Prove the step, and stop when the budget is spent."""
        if self._fit is not None:
            self._fit.end(batch)
        if self.steps >= self._limit:
            trainer.should_stop = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log here too: callbacks that monitor look right after it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._log(pl_module, logger=False)  # not the norms: a schedule may not follow them

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was spent."""
        self._log(pl_module)
        self.norm_in_force.end_epoch(self.steps)
        if self.log_norms:
            log_all(pl_module, self.norms.end_epoch(trainer, self.steps))

    # ---- afterwards ---------------------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at all steps together, and at the weights a last time but one; and take the privacy off again."""
        if self._fit is not None:
            self._fit.finish()
        self._close_fit()

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
        record.privacy = plain(privacy_facts(self, self._account.record), "privacy")

    def state_dict(self) -> dict[str, Any]:
        """The history, the noise and a clipping norm that adapts, as plain values; no randomness."""
        history = [list(entry) for entry in self.history]
        state: dict[str, Any] = {"history": history, "noise_multiplier": self.noise_multiplier_}
        state.update(self.norm_in_force.state())
        if self._account.record.exemptions:
            state["post_processing"] = list(self._account.record.exemptions)
        return state if self.unit == "record" else {**state, "unit": self.unit}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history, with the same noise."""
        self._account.load(state_dict)
        self.noise_multiplier_ = state_dict["noise_multiplier"]
        self.norm_in_force.load(state_dict)

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
        assert self._fit is not None
        assert self.noise_multiplier_ is not None
        settings = (self.delta, self.noise_multiplier_, self.norm_in_force.norm, self._fit.sample_rate)
        log_all(module, dict(zip(COVERED[1:], settings, strict=True)), **options)

    def _find_loader(self, trainer: Trainer) -> PoissonLoader:
        if self._problem is not None:
            raise self._problem
        return self.protection.checked(poisson_loader(trainer.train_dataloader))

    def _next_generator(self) -> AnyGenerator:
        """For each pass over the data: where its batches come from; and its noise."""
        private = None if self._fit is None else self._fit.steps
        device = "cpu" if private is None else private.optimizer.params[0].device
        entropy = None if self.secure else self._entropy
        made = generators(entropy, rank=self._rank, steps=self.steps, device=device)
        if private is not None:
            private.use_noise(made.noise)
        return made.sampling

    def _count(self) -> None:
        """Once for every private step, before the weights move."""
        assert self._fit is not None
        assert self.noise_multiplier_ is not None
        if self.steps >= self._limit:
            raise FitError(refusals.overspent(self.budget.max_epsilon, self.epsilon))
        self._account.step(self._module and self._module(), self.noise_multiplier_, self._fit.sample_rate)

    def _close_fit(self) -> None:
        if self._fit is not None:
            self._fit.close()
        self._undo.close()
        self._fit, self._problem, self._limit = None, None, math.inf

    def _restore(self) -> None:
        """Undo everything that was done to the module, the data and the Trainer; may be called at any time."""
        self._close_fit()
        self._finally.close()
        self._account.close()
        self._guard = None
