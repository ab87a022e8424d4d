"""`StepProof`: all questions about the steps of one training run, asked in their turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure._opacus import noise_dtype
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.adaptive import Tracking
from lightning_exposure.privacy.steps.proof._accountant import Entries, check_accounting
from lightning_exposure.privacy.steps.proof._batches import BATCH_TESTS, BatchTests, check_draw
from lightning_exposure.privacy.steps.proof._bound import COUNT_TESTS, Bound
from lightning_exposure.privacy.steps.proof._clipping import check_blocks, check_clipping, parts_of
from lightning_exposure.privacy.steps.proof._error import STOPPED, ErrorBudget
from lightning_exposure.privacy.steps.proof._noise import NOISE_TESTS, NoiseTests, check_again, check_noise, drawn_again
from lightning_exposure.privacy.steps.proof._parts import PartSums
from lightning_exposure.privacy.steps.proof._secure import as_before, check_secure, check_secure_draw, listen_to
from lightning_exposure.privacy.steps.proof._sums import Gradients, SumOfExamples
from lightning_exposure.privacy.steps.proof._users import UsersOfProcess
from lightning_exposure.privacy.steps.proof._weights import Snapshot, weights_of
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates
from lightning_exposure.privacy.steps.secure import standard_normal
from lightning_exposure.privacy.users.grouping import groups_of, units_of

LATER = 1 / 16
"""How often, after the first steps, a step is looked at as closely as those."""
_NORMS = 8
"""How many norms are recomputed in those."""


@dataclass(frozen=True)
class Promise:
    """What the accountant is told, and what the training therefore has to do.

    Attributes:
        noise_multiplier: The standard deviation of the noise, in units of `max_grad_norm`.
        max_grad_norm: What each example is clipped to, or each user; at first, if the norm adapts.
        sample_rate: With which probability a record, or a user, is in a batch; None if nobody tells which are.
        records: How many records, or users, this process draws from.
        users: Who they are, if users are drawn; None: records are.
        history: Gives what the accountant was told so far; None: nobody does.
        seed: Of the proof's own randomness; None: from the operating system.
        tracking: How the norm adapts; None: it does not.
        secure: Whether batches and noise come from the operating system's generator.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float | None = None
    records: int = 0
    history: Callable[[], Entries] | None = None
    seed: Sequence[int] | None = None
    tracking: Tracking | None = None
    secure: bool = False
    users: UsersOfProcess | None = None
    begun: Entries = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "begun", tuple(self.history()) if self.history is not None else ())


class StepProof:
    """Looks at every step of a training run, at the first ones and at random later ones more closely.

    Its methods are called in this order for each batch: `begin`, `part` for each part of it, `clipped`, `noised`,
    `before_step`, `after_step`, `end`; and at the end of training `finish`.

    Args:
        module: What is trained.
        private: The private optimizer.
        inner: The user's own, inside of it.
        promise: What has to hold.
        verify: How many steps with examples are looked at closely at first; 0: nothing is looked at.
        distributed: Whether several processes train together.

    Attributes:
        promise: As given.
        coordinates: Which numbers of the parameters are looked at.
        luck: The proof's own randomness.
    """

    def __init__(
        self,
        module: nn.Module,
        private: Any,
        inner: Optimizer,
        promise: Promise,
        *,
        verify: int,
        distributed: bool = False,
    ) -> None:
        self._module, self._private, self._inner, self.promise = module, private, inner, promise
        self._distributed = distributed
        self._unproven, self._on = verify, verify > 0
        self.luck = np.random.default_rng(None if promise.seed is None else list(promise.seed))
        generator = torch.Generator().manual_seed(int(self.luck.integers(2**62)))
        parameters = dict(module.named_parameters())
        self.coordinates = Coordinates(parameters if self._on else {}, generator)
        self._names = {value: name for name, value in parameters.items() if value.requires_grad}
        more = {} if promise.tracking is None else COUNT_TESTS
        budget = ErrorBudget({**NOISE_TESTS, **BATCH_TESTS, **more})
        self.bound = Bound(promise.max_grad_norm, promise.noise_multiplier, promise.tracking, budget, self.luck)
        slices = self.coordinates.slices(self._names.values())
        self._noise = NoiseTests(list(slices.values()), budget, self.luck)
        self._batches = BatchTests(promise.records, budget, self.luck)
        self._steps = self._examples = 0
        self._groups: list[int] = []  # of the parts so far
        self._closely = False
        self._weights: dict[str, Tensor] = {}
        self._snapshot: Snapshot | None = None
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._recomputed: list[SumOfExamples] = []
        self._parts = PartSums()
        self._sums = self._noisy = torch.zeros(0)
        self._missing = 0
        self._states: list[Tensor] = []

    @property
    def deviation(self) -> float:
        """The standard deviation that the noise has on the sum."""
        return self.bound.deviation

    @property
    def limit(self) -> float:
        """What each example is clipped to in each block of parameters, so that it is within the norm in all of them."""
        return self.bound.norm / math.sqrt(len(self._private.clipping.blocks))

    @property
    def closely(self) -> bool:
        """Whether the present step is looked at closely."""
        return self._closely

    def begin(self, examples: int, draw: tuple[Any, ...] | None = None) -> None:
        """A batch begins.

        Args:
            examples: How many it has.
            draw: Which records they are, and the state of the generator before they were drawn; None if nobody knows.
                If users are drawn: which users, and behind the state the records of each.
        """
        self._examples, self._groups = examples, []
        self._snapshot, self._gradients, self._states = None, {}, []
        self._closely = self._on and (self._unproven > 0 or self.luck.random() < LATER)
        self._recomputed, self._parts = [], PartSums()
        self._private.clipping.on_gradients = self._recompute if self._closely else None
        if not self._on:
            return
        self.bound.begin(self._private)
        if draw is not None and self.promise.sample_rate is not None:
            self._check_batch(draw, examples, self.promise.sample_rate)
        if self._closely:
            self._weights = weights_of(self._module, self.coordinates)

    def part(self, sums: Mapping[nn.Parameter, Tensor], examples: int) -> None:
        """The clipped sums of a part of the batch are there, or of all of it.

        Args:
            sums: Of each parameter.
            examples: How many the part has.

        Raises:
            FitError: They are others than those of its examples.
        """
        if self._on:
            if self._closely:
                self._check_sums(sums, examples)
            self.bound.count(self._private.clipping.norms, self._private.clipping.within, units_of(examples))
            self._groups += groups_of(examples) or [1] * examples
            self._parts.add(self._numbers(sums), examples)

    def clipped(self) -> None:
        """The clipped sums of all parts are there, added up, without noise.

        Raises:
            FitError: Not of all, or of others.
        """
        if not self._on:
            return
        sums = self._private.last_sums
        self._private.clipping.on_gradients = None
        self._sums = self._numbers(sums)
        self._parts.check(self._sums, self._examples)
        if self.promise.users is not None and tuple(self._groups) != (groups_of(self._examples) or ()):
            raise FitError(f"The records of a user were not clipped together, but in parts of the batch. {STOPPED}")
        if self._closely:
            self._check_lengths(sums, self._examples)
        self._states = self._generators()
        if self._closely and self._adds_noise:
            listen_to(self._private.generator)

    def noised(self) -> None:
        """The noise was added, and nothing has moved yet."""
        if self._on and self.promise.secure:
            check_secure(self._private.generator)
        if not self._on or not self._states or not self.deviation or not self._adds_noise:
            return
        (common, own), (common_after, own_after) = self._states, self._generators()
        if torch.equal(own, own_after) or not torch.equal(common, common_after):
            raise FitError(
                "The noise does not come from the private generator, but from PyTorch's global one or from none: "
                "whoever knows the program's seed could take it away. Something has replaced the optimizer's "
                f"generator. {STOPPED}"
            )

    def before_step(self) -> None:
        """The user's optimizer is about to step."""
        if self._closely and self._snapshot is None:
            self._snapshot = Snapshot(self._module, self._inner, self._weights, self.coordinates)

    def after_step(self) -> None:
        """The user's optimizer has stepped."""
        if not self._on or self._gradients:
            return
        gradients = {value: value.grad for value in self._names if value.grad is not None}
        self._missing = len(self._names) - len(gradients)
        if self._missing:
            return
        self._noisy = self._numbers(gradients) * self._scale
        if self._snapshot is not None:
            self._gradients = self._snapshot.gradients(self._inner)

    def end(self) -> None:
        """The batch is over.

        Raises:
            FitError: The step was not private.
        """
        if not self._on:
            return
        self._steps += 1
        examples = self._reduced()
        if self._missing:
            raise FitError(
                f"{self._missing} parameters had no gradient when the optimizer stepped. Something took the private "
                f"gradients away. {STOPPED}"
            )
        if self.deviation:
            self._noise.add(self._sums, self._noisy, self.deviation)
        elif self._closely:
            parts = self.coordinates.slices(self._names.values()).values()
            check_noise(
                [self._sums[part] for part in parts],
                [(self._noisy[part] / self._scale).float() for part in parts],
                scale=self._scale,
                deviation=0.0,
            )
        count = self._draw_noise_again()
        if self._snapshot is not None:
            self._snapshot.check(self._module, self._gradients, self._private.last_sums, scale=self._scale)
        self.bound.end(self._private, count)
        self._check_accountant()
        self._unproven -= bool(examples and self._unproven)
        self._snapshot, self._gradients, self._weights = None, {}, {}

    def finish(self) -> None:
        """Look at all steps together, when the last one was made.

        Raises:
            FitError: They were not private.
        """
        if self._on:
            if self.deviation:
                self._noise.look(self.deviation)
            self.bound.look()
            self._batches.look()
            self._check_accountant()

    # ---- parts ------------------------------------------------------------------------------------------------

    @property
    def _scale(self) -> float:
        """What the noisy sum is divided by."""
        if self._private.loss_reduction != "mean":
            return 1.0
        processes = torch.distributed.get_world_size() if self._distributed else 1
        return float(self._private.expected_batch_size * processes)

    @property
    def _adds_noise(self) -> bool:
        return not self._distributed or torch.distributed.get_rank() == 0

    def _check_batch(self, draw: tuple[Any, ...], examples: int, rate: float) -> None:
        drawn, state, users = draw[0], draw[1], self.promise.users
        if users is not None:
            users.check_whole(drawn, draw[2], groups_of(examples))
        if len(drawn) != units_of(examples):
            raise FitError(f"A batch of {len(drawn)} records was announced as {examples} examples. {STOPPED}")
        self._batches.add(drawn, rate)
        if self.promise.secure:
            check_secure_draw(state)
        elif self._closely and users is not None:
            users.check_draw(draw[2], state, sample_rate=rate)
        elif self._closely:
            check_draw(drawn, state, records=self.promise.records, sample_rate=rate)

    def _numbers(self, values: Mapping[nn.Parameter, Tensor]) -> Tensor:
        return self.coordinates.of({self._names[value]: tensor for value, tensor in values.items()})

    def _recompute(self, gradients: Gradients, examples: int) -> None:
        """The gradients of the examples are there, and nothing is clipped yet."""
        scale = examples if self._private.loss_reduction == "mean" else 1
        most = None if self._unproven else _NORMS
        share = examples / max(1, self._examples)
        self._recomputed = [
            SumOfExamples(some, examples, scale, self.luck, most=most, share=share)
            for some in parts_of(gradients, self._private.clipping.blocks)
        ]

    def _check_lengths(self, sums: Mapping[nn.Parameter, Tensor], examples: int) -> None:
        blocks, norms = self._private.clipping.blocks, self._private.clipping.block_norms
        check_blocks(blocks, self._names)
        for some, lengths in zip(parts_of(sums, blocks), norms, strict=True):
            check_clipping(some.values(), lengths, examples=units_of(examples), max_grad_norm=self.limit)

    def _check_sums(self, sums: Mapping[nn.Parameter, Tensor], examples: int) -> None:
        recomputed, self._recomputed = self._recomputed, []
        self._check_lengths(sums, examples)
        if not examples:
            return
        blocks, norms = self._private.clipping.blocks, self._private.clipping.block_norms
        if len(recomputed) != len(blocks):
            raise FitError(f"The step was not clipped: nobody has seen the gradients of its examples. {STOPPED}")
        for wanted, some, lengths in zip(recomputed, parts_of(sums, blocks), norms, strict=True):
            wanted.check(some, lengths, self.limit)

    def _generators(self) -> list[Tensor]:
        """The states of PyTorch's global generator and of the private one, of the device that has the weights."""
        device = next(iter(self._names)).device
        common = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        own = self._private.generator
        return [common, common if own is None else own.get_state()]

    def _draw_noise_again(self) -> float | None:
        """Refuse other noise than that of the private generator. Returns that of the count, if one was released."""
        if not (self._closely and self._adds_noise and self._states):
            return None
        parameters = self._private.params
        generator = as_before(self._private.generator, self._states[1], parameters[0].device)
        count = None if self.promise.tracking is None else standard_normal(generator)
        if not self.deviation:
            return count
        shapes = [(self._names[value], value.shape) for value in parameters]
        dtype = noise_dtype(parameters[0].dtype)
        noise = drawn_again(shapes, generator, deviation=self.deviation, dtype=dtype)
        places = self.coordinates.slices(self._names.values())
        for name, values in noise.items():
            part, drawn = places[name], self.coordinates.of_one(name, values).double().cpu()
            check_again(drawn, self._sums[part], self._noisy[part], deviation=self.deviation)
        return count

    def _reduced(self) -> int:
        """How many examples all processes have; their sums are added up, because the noise is on the sum of all."""
        if not self._distributed:
            return self._examples
        counted = torch.tensor([float(self._examples), self.bound.exact], dtype=torch.float64)
        device = next(iter(self._names)).device
        together = torch.cat([self._sums, counted]).to(device)
        torch.distributed.all_reduce(together)
        self._sums, (examples, self.bound.exact) = together[:-2].cpu(), together[-2:].tolist()
        return int(examples)

    def _check_accountant(self) -> None:
        promise = self.promise
        if promise.history is not None and promise.sample_rate is not None:
            check_accounting(
                promise.begun,
                promise.history(),
                steps=self._steps,
                noise_multiplier=promise.noise_multiplier,
                sample_rate=promise.sample_rate,
            )
