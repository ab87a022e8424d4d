"""`StepProof`: all questions about the steps of one training run, asked in their turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure._opacus import noise_dtype
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._accountant import Entries, check_accounting
from lightning_exposure.privacy.steps.proof._batches import BATCH_TESTS, BatchTests, check_draw
from lightning_exposure.privacy.steps.proof._clipping import check_clipping
from lightning_exposure.privacy.steps.proof._error import STOPPED, ErrorBudget
from lightning_exposure.privacy.steps.proof._noise import NOISE_TESTS, NoiseTests, check_again, check_noise, drawn_again
from lightning_exposure.privacy.steps.proof._sums import Gradients, SumOfExamples
from lightning_exposure.privacy.steps.proof._weights import Snapshot, weights_of
from lightning_exposure.privacy.steps.proof.coordinates import Coordinates

LATER = 1 / 16
"""How often, after the first steps, a step is looked at as closely as those."""
_NORMS = 8
"""How many norms are recomputed in those."""


@dataclass(frozen=True)
class Promise:
    """What the accountant is told, and what the training therefore has to do.

    Attributes:
        noise_multiplier: The standard deviation of the noise, in units of `max_grad_norm`.
        max_grad_norm: What each example is clipped to.
        sample_rate: With which probability a record is in a batch; None if nobody tells which records are.
        records: How many records this process draws from.
        history: Gives what the accountant was told so far; None: nobody does.
        seed: Of the proof's own randomness; None: from the operating system.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float | None = None
    records: int = 0
    history: Callable[[], Entries] | None = None
    seed: Sequence[int] | None = None
    begun: Entries = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "begun", tuple(self.history()) if self.history is not None else ())


class StepProof:
    """Looks at every step of a training run, at the first ones and at random later ones more closely.

    Its methods are called in this order for each batch: `begin`, `clipped`, `noised`, `before_step`, `after_step`,
    `end`; and at the end of training `finish`.

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
        budget = ErrorBudget({**NOISE_TESTS, **BATCH_TESTS})
        slices = self.coordinates.slices(self._names.values())
        self._noise = NoiseTests(list(slices.values()), budget, self.luck)
        self._batches = BatchTests(promise.records, budget, self.luck)
        self._steps = self._examples = 0
        self._closely = False
        self._weights: dict[str, Tensor] = {}
        self._snapshot: Snapshot | None = None
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._recomputed: SumOfExamples | None = None
        self._sums = self._noisy = torch.zeros(0)
        self._missing = 0
        self._states: list[Tensor] = []

    @property
    def deviation(self) -> float:
        """The standard deviation that the noise has on the sum."""
        return self.promise.noise_multiplier * self.promise.max_grad_norm

    @property
    def closely(self) -> bool:
        """Whether the present step is looked at closely."""
        return self._closely

    def begin(self, examples: int, draw: tuple[Sequence[int], Tensor] | None = None) -> None:
        """A batch begins.

        Args:
            examples: How many it has.
            draw: Which records they are, and the state of the generator before they were drawn; None if nobody knows.
        """
        self._examples = examples
        self._snapshot, self._gradients, self._states = None, {}, []
        self._closely = self._on and (self._unproven > 0 or self.luck.random() < LATER)
        self._recomputed = None
        self._private.clipping.on_gradients = self._recompute if self._closely else None
        if not self._on:
            return
        rate, records = self.promise.sample_rate, self.promise.records
        if draw is not None and rate is not None:
            if len(draw[0]) != examples:
                raise FitError(f"A batch of {len(draw[0])} records was announced as {examples} examples. {STOPPED}")
            self._batches.add(draw[0], rate)
            if self._closely:
                check_draw(draw[0], draw[1], records=records, sample_rate=rate)
        if self._closely:
            self._weights = weights_of(self._module, self.coordinates)

    def clipped(self) -> None:
        """The clipped sums are there, without noise."""
        if not self._on:
            return
        sums = self._private.last_sums
        if self._closely:
            self._check_sums(sums)
        self._sums = self._numbers(sums)
        self._states = self._generators()

    def noised(self) -> None:
        """The noise was added, and nothing has moved yet."""
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
            self._draw_noise_again()
        elif self._closely:
            parts = self.coordinates.slices(self._names.values()).values()
            check_noise(
                [self._sums[part] for part in parts],
                [(self._noisy[part] / self._scale).float() for part in parts],
                scale=self._scale,
                deviation=0.0,
            )
        if self._snapshot is not None:
            self._snapshot.check(self._module, self._gradients, self._private.last_sums, scale=self._scale)
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

    def _numbers(self, values: Mapping[nn.Parameter, Tensor]) -> Tensor:
        return self.coordinates.of({self._names[value]: tensor for value, tensor in values.items()})

    def _recompute(self, gradients: Gradients, examples: int) -> None:
        """The gradients of the examples are there, and nothing is clipped yet."""
        scale = examples if self._private.loss_reduction == "mean" else 1
        most = None if self._unproven else _NORMS
        self._recomputed = SumOfExamples(gradients, examples, scale, self.luck, most=most)

    def _check_sums(self, sums: Mapping[nn.Parameter, Tensor]) -> None:
        norms, norm = self._private.clipping.norms, self.promise.max_grad_norm
        recomputed, self._recomputed = self._recomputed, None
        self._private.clipping.on_gradients = None
        check_clipping(sums.values(), norms, examples=self._examples, max_grad_norm=norm)
        if self._examples and recomputed is None:
            raise FitError(f"The step was not clipped: nobody has seen the gradients of its examples. {STOPPED}")
        if self._examples and recomputed is not None:
            recomputed.check(sums, norms, norm)

    def _generators(self) -> list[Tensor]:
        """The states of PyTorch's global generator and of the private one, of the device that has the weights."""
        device = next(iter(self._names)).device
        common = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        own = self._private.generator
        return [common, common if own is None else own.get_state()]

    def _draw_noise_again(self) -> None:
        if not (self._closely and self._adds_noise and self._states):
            return
        parameters = self._private.params
        generator = torch.Generator(parameters[0].device)
        generator.set_state(self._states[1])
        shapes = [(self._names[value], value.shape) for value in parameters]
        dtype = noise_dtype(parameters[0].dtype)
        noise = drawn_again(shapes, generator, deviation=self.deviation, dtype=dtype)
        places = self.coordinates.slices(self._names.values())
        for name, values in noise.items():
            part, drawn = places[name], self.coordinates.of_one(name, values).double().cpu()
            check_again(drawn, self._sums[part], self._noisy[part], deviation=self.deviation)

    def _reduced(self) -> int:
        """How many examples all processes have; their sums are added up, because the noise is on the sum of all."""
        if not self._distributed:
            return self._examples
        counted = torch.tensor([float(self._examples)], dtype=torch.float64)
        device = next(iter(self._names)).device
        together = torch.cat([self._sums, counted]).to(device)
        torch.distributed.all_reduce(together)
        self._sums = together[:-1].cpu()
        return int(together[-1])

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
