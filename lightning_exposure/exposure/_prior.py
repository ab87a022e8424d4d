"""A prior on the secrets of a format: how likely each was before anything was learned about it.

It comes from a reference model that reads in step with the model, or from an object that knows the probabilities of
texts. No prior at all is the uniform one, which is a case of its own: see `Case`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_exposure.errors import ArgumentError
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import DistinctWalks, Leaves, WeighedTree, prior_walks, score
from lightning_exposure.walks.score import follow
from lightning_exposure.walks.weighed_tree import WeighedChildren

Floats = NDArray[np.float64]

_TRIED = 16
"""So many secrets are spelled with the tokenizers of both trees."""

_ROUNDING = 1e-6
"""By how many bits a probability may be above 1."""

_LARGEST_SUM = 1.001
"""Probabilities that were rounded may add up to a little more than 1."""


@runtime_checkable
class PriorProbabilities(Protocol):
    """What a prior can be that is not a model: anything that knows the probabilities of texts."""

    def log2_probabilities(self, texts: Sequence[str], /) -> ArrayLike:
        """log2 of the probability of each complete text; minus infinity for what cannot be.

        The probabilities of all secrets of the tree that is measured add up to 1.
        """
        ...


@dataclass(frozen=True)
class Draws:
    """Secrets drawn from a prior, with replacement.

    Attributes:
        paths: Their tokens, one row each.
        costs: Their log-perplexities, in bits.
        prior: log2 of their prior probabilities.
        drawn: How many were drawn: with dead ends in the tree, more than there are secrets.
        expansions: How many nodes the model read.
    """

    paths: NDArray[np.int32]
    costs: Floats
    prior: Floats
    drawn: int
    expansions: int


class Prior(ABC):
    """A prior for the secrets of one tree.

    Attributes:
        walked: The tree that walks go over.
        words: What the prior is, for people.
        proposes: Whether walks over that tree follow the prior, too.
    """

    walked: SecretTree
    words: str
    proposes: bool

    @abstractmethod
    def of_paths(self, paths: NDArray[np.int32], memory: int) -> Floats:
        """log2 of the prior probabilities of secrets, one row of tokens each."""

    @abstractmethod
    def of_found(self, found: Leaves | DistinctWalks) -> Floats:
        """log2 of the prior probabilities of secrets that a walk over `walked` came to."""

    @abstractmethod
    def draw(self, samples: int, generator: np.random.Generator, memory: int) -> Draws:
        """Draw secrets, with replacement, and price them."""

    @property
    def can_be_drawn_from(self) -> bool:
        """Whether there is a way to draw from it."""
        return True


class ReferencePrior(Prior):
    """What a reference model expects.

    Args:
        tree: The model's tree.
        reference: The reference's.
    """

    proposes = True

    def __init__(self, tree: SecretTree, reference: SecretTree) -> None:
        self.walked: WeighedTree = WeighedTree(tree, reference)
        self.words = "the prior of a reference model"
        if self.walked.has_dead_ends:
            self.words += ", of which a part may have gone to spellings that the tokenizer does not use"

    def of_paths(self, paths: NDArray[np.int32], memory: int) -> Floats:
        """log2 of the prior probabilities of secrets, one row of tokens each."""
        prior = np.zeros(len(paths))
        for step in follow(self.walked, paths, memory=memory):
            children = step.children
            assert isinstance(children, WeighedChildren)
            ends = step.is_last(paths)
            prior[step.rows[ends]] = (children.reaching + children.ending)[step.child[ends]]
        return prior

    def of_found(self, found: Leaves | DistinctWalks) -> Floats:
        """log2 of the prior probabilities of secrets that a walk over `walked` came to."""
        assert found.prior is not None
        return found.prior

    def draw(self, samples: int, generator: np.random.Generator, memory: int) -> Draws:
        """Draw secrets, with replacement, and price them."""
        walks = prior_walks(self.walked, samples, seed=generator, memory=memory)
        kept = walks.complete
        return Draws(walks.paths[kept], walks.costs[kept], walks.prior[kept], samples, walks.expansions)


class GivenPrior(Prior):
    """What an object says about texts.

    Args:
        tree: The model's tree.
        given: The object.
        most: So many secrets are listed at most to draw from them.
    """

    proposes = False

    def __init__(self, tree: SecretTree, given: PriorProbabilities, most: int) -> None:
        self.walked = tree
        self.words = f"the prior of {type(given).__name__}"
        self._given = given
        self._most = most

    @property
    def can_be_drawn_from(self) -> bool:
        """Whether all secrets can be listed."""
        return self.walked.size == self.walked.format.size <= self._most

    def of_paths(self, paths: NDArray[np.int32], memory: int) -> Floats:
        """log2 of the prior probabilities of secrets, one row of tokens each."""
        return self._of_texts([self.walked.text(tokens_of(path)) for path in paths])

    def of_found(self, found: Leaves | DistinctWalks) -> Floats:
        """log2 of the prior probabilities of secrets that a walk over `walked` came to."""
        return self.of_paths(found.paths, 0)

    def draw(self, samples: int, generator: np.random.Generator, memory: int) -> Draws:
        """Draw secrets, with replacement, and price them."""
        tree = self.walked
        if not self.can_be_drawn_from:
            raise ArgumentError(
                f"prior is {type(self._given).__name__}, from which secrets can be drawn only by listing all of them; "
                f"there are {tree.size:,}, and budget is {self._most:,}. Raise the budget, use method='exact' or "
                "'importance', or give a SecretTree of a reference model as prior."
            )
        texts = [tree.format.render(number) for number in range(tree.size)]
        prior = self._of_texts(texts)
        chances = np.exp2(prior)
        whole = float(chances.sum())
        if not 0.0 < whole <= _LARGEST_SUM:
            raise ArgumentError(
                f"prior gave probabilities that add up to {whole:.4g} over all {tree.size:,} secrets; expected 1. Take "
                "logarithms to the base 2 of probabilities, and renormalise them among the secrets."
            )
        # What it gives to no secret is drawn, too, and counts for none: so does an exact count.
        shares = np.append(chances, max(0.0, 1.0 - whole))
        numbers = generator.choice(len(shares), size=samples, p=shares / shares.sum())
        numbers = numbers[numbers < len(texts)]
        distinct, which = np.unique(numbers, return_inverse=True)
        chosen = [texts[number] for number in distinct.tolist()]
        scored = score(tree, chosen, memory=memory)
        return Draws(tree.paths(chosen)[which], scored.costs[which], prior[numbers], samples, scored.expansions)

    def _of_texts(self, texts: list[str]) -> Floats:
        if not texts:
            return np.zeros(0)
        given = self._given.log2_probabilities(texts)
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"prior gave {type(given).__name__}, of which no array of numbers can be made ({error}); expected one "
                "number for each text. See log2_probabilities of PriorProbabilities."
            ) from error
        if values.shape != (len(texts),):
            raise ArgumentError(
                f"prior gave an array of shape {values.shape} for {len(texts)} texts; expected one number for each. "
                "See log2_probabilities of PriorProbabilities."
            )
        bad = np.flatnonzero(np.isnan(values) | (values > _ROUNDING))
        if len(bad):
            raise ArgumentError(
                f"prior gave {values[bad[0]]} for one of the texts; expected log2 of a probability, which is 0 or "
                "below. Take logarithms to the base 2 of probabilities."
            )
        return np.minimum(values, 0.0)


def make_prior(tree: SecretTree, prior: Any, budget: int) -> Prior:
    """What was given as a prior, for the secrets of a tree.

    Args:
        tree: The model's tree.
        prior: A tree of a reference, or an object with `log2_probabilities`.
        budget: So many secrets may be listed to draw from them.

    Raises:
        ArgumentError: It is neither, or the trees do not have the same format and tokenizer.
    """
    if isinstance(prior, SecretTree):
        _check_alike(tree, prior)
        return ReferencePrior(tree, prior)
    if isinstance(prior, PriorProbabilities):
        return GivenPrior(tree, prior, budget)
    raise ArgumentError(
        f"prior is {type(prior).__name__}; expected a SecretTree of a reference model, or an object with "
        "log2_probabilities(texts). Make a tree of a model with prior_from_model(model, tree)."
    )


def _check_alike(tree: SecretTree, reference: SecretTree) -> None:
    """Refuse a reference that reads other secrets, or spells them differently."""
    if reference.format != tree.format:
        raise ArgumentError(
            f"prior is a tree of {reference.format!r}; expected one of {tree.format!r}, the format that is measured. "
            "Make it with prior_from_model(model, tree)."
        )
    known = (tree.spelling.known, reference.spelling.known)
    if reference.size != reference.format.size and known[0] != known[1]:
        raise ArgumentError(
            f"prior begins with {known[1]!r}, and the tree with {known[0]!r}; expected the same beginning, or a prior "
            "for the whole format, which is cut to the tree's beginning by itself."
        )
    if known[0] != known[1]:
        reference = reference.starting_with(known[0])
    texts = tree.format.sample(min(_TRIED, tree.size), 0) if tree.size == tree.format.size else []
    if (
        tree.spelling.vocab_size != reference.spelling.vocab_size
        or list(tree.spelling.root) != list(reference.spelling.root)
        or not np.array_equal(tree.paths(texts), reference.paths(texts))
    ):
        raise ArgumentError(
            "prior spells the secrets as other tokens than the tree does; expected a reference with the same "
            "tokenizer. For a reference with another one, give an object with log2_probabilities(texts)."
        )
