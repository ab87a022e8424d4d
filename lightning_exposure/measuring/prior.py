"""`CanaryPrior`: what the exposures of a training run are measured against, and where it is kept meanwhile."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from lightning_exposure.adapters import StepModel
from lightning_exposure.adapters.choosing import TriedModels
from lightning_exposure.adapters.protocol import device_of
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.exposure import (
    PriorProbabilities,
    weights_of_checkpoint,
    weights_on_cpu,
    with_weights,
    without_adapters,
)
from lightning_exposure.measuring._quiet import quiet
from lightning_exposure.measuring.surroundings import Surroundings
from lightning_exposure.measuring.trees import CanaryTrees, share_out
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import WeighedTree, prior_walks, uniform_walks

WITHOUT_ADAPTERS, BEFORE_TRAINING = "without_adapters", "before_training"

PriorSource = nn.Module | StepModel | PriorProbabilities | str | os.PathLike[str]
"""A reference model, something that knows the probabilities of texts, a checkpoint, or one of the two words above."""

_EXPECTED = (
    f"a module that has not seen the secrets, the path of a checkpoint, {WITHOUT_ADAPTERS!r} or {BEFORE_TRAINING!r}"
)
_DRAWN = 64
"""So many secrets tell whether a reference knows anything about a format, and whether two references are the same."""

_LEAST_CHANCE = 1.0
"""In bits: a format that any text has with a larger probability tells nothing about a model."""

_ALIKE = 1e-2
"""References of several processes may differ by this, in bits per token: not all processors add up alike."""


class UntrainedPriorWarning(UserWarning):
    """The weights before training know nothing of the secrets, and so does the prior that is made of them."""


class CanaryPrior:
    """The prior of a training run: one reference for the trees of all formats.

    Args:
        given: Where it comes from; None: there is none, and all secrets are equally likely.

    Raises:
        ArgumentError: It is nothing that a prior can be made of.
    """

    def __init__(self, given: PriorSource | None) -> None:
        self._given = _checked(given)
        self._priors: dict[SecretFormat, SecretTree | PriorProbabilities] = {}
        self._copy: nn.Module | None = None
        self._moving: nn.Module | None = None
        self._saved: Mapping[str, Tensor] | None = None

    @property
    def source(self) -> str | None:
        """Where it comes from, in a word, for settings and records; None: there is none."""
        if self._given is None or isinstance(self._given, str):
            return self._given
        return str(self._given) if isinstance(self._given, Path) else type(self._given).__name__

    def build(self, trees: CanaryTrees, around: Surroundings, *, resumed: bool = False) -> None:
        """Make the reference, and try it; before the first step, so that what is wrong with it costs nothing.

        Args:
            trees: Of the model that is about to be trained.
            around: Where it runs.
            resumed: Whether the weights are those of a run that goes on, and not those of before it.

        Raises:
            ArgumentError: The reference cannot be had; the message says why.
        """
        self._priors, self._copy, self._moving = {}, None, None
        saved, self._saved = self._saved, None
        if self._given is None:
            return
        if resumed and saved is None and self._given == BEFORE_TRAINING:
            raise ArgumentError(
                f"prior is {BEFORE_TRAINING!r}, and the run that goes on has not kept the weights of before it; "
                "expected a checkpoint of a run with the same prior. Give the model that was fine-tuned, or its "
                "checkpoint, as prior."
            )
        # Every process makes its own; if one of them cannot, all of them hear of it.
        processes = range(1 if around.is_sharded else around.world_size)
        with quiet(trees.module):
            found = share_out(around, processes, lambda _: self._build(trees, around, saved))
        self._check_agreement(found)
        if self._given == BEFORE_TRAINING and around.rank == 0:
            self._warn_if_untrained(trees)

    def of(self, format: SecretFormat) -> SecretTree | PriorProbabilities | None:
        """The prior of a format; None: all its secrets are equally likely."""
        return self._priors.get(format)

    @contextmanager
    def at_hand(self, trees: CanaryTrees) -> Iterator[None]:
        """While something is measured, a reference that is kept on the CPU is where the model is."""
        here, there = self._moving, device_of(trees.module)
        if here is None or device_of(here) == there or device_of(here).type != "cpu":
            yield
            return
        here.to(there)
        try:
            yield
        finally:
            here.to("cpu")

    def state_dict(self) -> dict[str, Tensor] | None:
        """The weights of before training, which nothing but a checkpoint could bring back; None if none are needed."""
        if self._given != BEFORE_TRAINING:
            return None
        return dict(self._copy.state_dict()) if self._copy is not None else None

    def load_state_dict(self, weights: Mapping[str, Tensor] | None) -> None:
        """What `state_dict` gave, for the run that begins next."""
        self._saved = weights

    def _build(self, trees: CanaryTrees, around: Surroundings, saved: Mapping[str, Tensor] | None) -> dict[str, float]:
        """Make all priors.

        Returns:
            What a token costs the reference, by the name of the format.
        """
        if isinstance(self._given, PriorProbabilities):
            self._priors = dict.fromkeys(trees.trees, self._given)
            return {}
        reference, tried = self._reference(trees, around, saved), TriedModels()
        module = reference if isinstance(reference, nn.Module) else reference.module
        if not share_weights(module, trees.module, trained_only=False):
            self._moving = module
        costs = {}
        try:
            with self.at_hand(trees):
                for format, tree in trees.trees.items():
                    size = tree.batch_size
                    prior = SecretTree(
                        reference, format, tree.spelling, context=trees.context, batch_size=size, tried=tried
                    )
                    self._priors[format] = prior
                    costs[format.name] = bits_per_token(prior)
        except ModelError as error:
            raise ModelError(f"prior is {self.source!r}: {error}") from error
        return costs

    def _reference(
        self, trees: CanaryTrees, around: Surroundings, saved: Mapping[str, Tensor] | None
    ) -> nn.Module | StepModel:
        given, model = self._given, trees.module
        if given == WITHOUT_ADAPTERS:
            return _without_adapters(trees)
        if given == BEFORE_TRAINING or isinstance(given, Path):
            if around.is_sharded:
                raise ArgumentError(
                    f"prior is {self.source!r}, and each process holds only a part of the model, which cannot be "
                    "copied. Give a module as prior, or train with a strategy that does not cut the model up."
                )
            weights = weights_of_checkpoint(given) if isinstance(given, Path) else saved
            return self._copied(trees, weights)
        assert isinstance(given, nn.Module | StepModel)
        if isinstance(given, StepModel):
            return given
        if share_weights(given, model, trained_only=True):
            raise ArgumentError(
                f"prior is {type(given).__name__}, which shares weights with the model that is trained; expected a "
                f"reference that is not. Use {BEFORE_TRAINING!r}, or {WITHOUT_ADAPTERS!r} for a model of PEFT."
            )
        # A reference of the same kind is read in the same way.
        return trees.pick(given) if isinstance(given, type(model)) else given

    def _copied(self, trees: CanaryTrees, weights: Mapping[str, Tensor] | None) -> nn.Module | StepModel:
        """The model with other weights, or with those that it has now; the copy is kept on the CPU."""
        chosen = trees.pick(trees.module)
        # What is not part of the next-token model, such as a critic beside it, need not be kept.
        origin = chosen if isinstance(chosen, nn.Module) else trees.module
        if weights is None:
            weights = weights_on_cpu(origin)
        elif isinstance(self._given, Path):
            weights = _part(weights, trees.module, origin)
        try:
            self._copy = with_weights(origin, weights).to("cpu")
        except ArgumentError as error:
            raise ArgumentError(f"prior is {self.source!r}: {error}") from error
        except (TypeError, RuntimeError, NotImplementedError) as error:  # what modules hold may not be made for copies
            raise ArgumentError(
                f"prior is {self.source!r}, and {type(origin).__name__} cannot be copied ({error}); expected a module "
                "that copy.deepcopy takes. Make the reference yourself, and give it as prior."
            ) from error
        return self._copy if origin is chosen else trees.pick(self._copy)

    def _check_agreement(self, found: Sequence[Mapping[str, float]]) -> None:
        """The formats are shared out over the processes: each of them must have the same reference."""
        for rank, costs in enumerate(found):
            for name, cost in costs.items():
                if not math.isclose(cost, found[0][name], rel_tol=_ALIKE):
                    raise ArgumentError(
                        f"prior is another one in process {rank} than in process 0 ({cost:.3f} and "
                        f"{found[0][name]:.3f} bits per token of {name}); expected the same reference in all of them. "
                        "Load it from one file, or seed what makes it."
                    )

    def _warn_if_untrained(self, trees: CanaryTrees) -> None:
        for format, prior in self._priors.items():
            assert isinstance(prior, SecretTree)
            with quiet(trees.module), self.at_hand(trees):
                found, by_chance = bits_of_format(prior), _bits_by_chance(prior)
            # Random weights come out near the whole of it, and whatever was trained on such a language near nothing.
            if by_chance > _LEAST_CHANCE and found > by_chance / 2:
                warnings.warn(
                    f"prior is {BEFORE_TRAINING!r}, and before training the model does not know what a secret of "
                    f"{format.name!r} looks like: after its prompt it writes one with a probability of 2^-{found:.1f}, "
                    f"and with random weights that would be 2^-{by_chance:.1f}. Such a prior does not know either "
                    "which secrets are common, so that all of those will look like leaks. Use it for a model that is "
                    "fine-tuned; else give a module that was trained on other data.",
                    UntrainedPriorWarning,
                    stacklevel=2,
                )
                return


def bits_per_token(tree: SecretTree) -> float:
    """What a token of a secret costs on average, if secrets are drawn uniformly."""
    drawn = uniform_walks(tree, min(_DRAWN, tree.size), seed=0)
    lengths = (tree.paths(drawn.secrets) >= 0).sum(axis=1)
    possible = np.isfinite(drawn.costs)
    return float(drawn.costs[possible].sum() / max(1, lengths[possible].sum()))


def bits_of_format(tree: SecretTree) -> float:
    """-log2 of the probability that the model, given the prompt, writes any secret of the format.

    Along a walk that follows the model among the tokens that the format allows, what the others got is lost. The mean
    of what is left is that probability, without bias; a model with a few favourites is not mistaken for one that knows
    nothing, as it would be by what secrets drawn uniformly cost.
    """
    walks = prior_walks(WeighedTree(tree, tree), _DRAWN, seed=0)
    kept = np.exp2(-(walks.costs + walks.prior)[walks.complete])
    return -math.log2(max(kept.sum() / _DRAWN, 2.0**-1000))


def _bits_by_chance(tree: SecretTree) -> float:
    """The same, if all tokens of the vocabulary were equally likely."""
    drawn = tree.format.sample(min(_DRAWN, tree.size), 0)
    length = float((tree.paths(drawn) >= 0).sum(axis=1).mean())
    return length * math.log2(tree.spelling.vocab_size) - tree.bits


def _checked(given: Any) -> nn.Module | StepModel | PriorProbabilities | str | Path | None:
    if given is None or isinstance(given, nn.Module | StepModel | PriorProbabilities):
        return given
    if isinstance(given, str | os.PathLike):
        if given in (WITHOUT_ADAPTERS, BEFORE_TRAINING):
            return str(given)
        path = Path(given)
        if path.is_file():
            return path
        what = "which is a directory" if path.is_dir() else "and there is no such file"
        raise ArgumentError(
            f"prior is {str(given)!r}, {what}; expected {_EXPECTED}. What is saved in another way can be loaded, and "
            "given as a module."
        )
    raise ArgumentError(
        f"prior is {type(given).__name__}; expected {_EXPECTED}. Leave it out if all secrets are equally likely."
    )


def _without_adapters(trees: CanaryTrees) -> StepModel:
    chosen = trees.pick(trees.module)
    if not isinstance(chosen, nn.Module):
        raise ArgumentError(
            f"prior is {WITHOUT_ADAPTERS!r}, and model picks a {type(chosen).__name__}; expected a module, whose "
            "adapters can be switched off. Let model return the module, or give a reference as prior."
        )
    try:
        return without_adapters(chosen, context=trees.context)
    except ArgumentError as error:
        raise ArgumentError(f"prior is {WITHOUT_ADAPTERS!r}: {error}") from error


def _part(weights: Mapping[str, Tensor], whole: nn.Module, part: nn.Module) -> Mapping[str, Tensor]:
    """The weights of a part of a module; those that were given, if they are not of the whole."""
    name = next((name for name, module in whole.named_modules() if module is part), "")
    own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
    return own if name and own else weights


def share_weights(one: nn.Module, other: nn.Module, *, trained_only: bool) -> bool:
    """Whether two modules have weights in common."""
    weights = {id(it) for it in other.parameters() if it.requires_grad or not trained_only}
    return any(id(it) in weights for it in one.parameters())
