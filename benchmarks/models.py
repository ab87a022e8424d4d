"""The model that is measured: a small LSTM, trained briefly on a text with canaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus import insert_at_word_boundaries, python_manual
from lightning_exposure import CanarySet, SecretFormat, SecretTree
from lightning_exposure.tokenization import CharTokenizer

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Recipe:
    """All that decides what the model becomes.

    The repetitions are chosen so that after training one canary has rank 1, and another one has a rank of a few
    thousand among 10^9: memorized, but not perfectly.
    """

    characters: int = 400_000
    units: int = 200
    layers: int = 2
    digits: int = 9
    repetitions: tuple[int, ...] = (64, 24, 16, 8)
    epochs: int = 6
    window: int = 40
    batch_size: int = 128
    learning_rate: float = 2e-3
    seed: int = 0

    def canaries(self) -> CanarySet:
        """The secrets that the model gets to see."""
        return CanarySet.draw(number_format(self.digits), repetitions=self.repetitions, seed=self.seed)


def number_format(digits: int) -> SecretFormat:
    """The format of the benchmarks' secrets, with so many digits."""
    return SecretFormat(" the random number is " + "#" * digits)


class CharacterModel(nn.Module):
    """An LSTM language model that hands its state on, so that a tree can continue from any prefix."""

    def __init__(self, vocabulary: int, units: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.lstm = nn.LSTM(units, units, layers, batch_first=True)
        self.output = nn.Linear(units, vocabulary)

    def forward(self, tokens: Tensor, state: Pair | None = None) -> tuple[Tensor, Pair]:
        features, state = self.lstm(self.embedding(tokens), state)
        return self.output(features), state


Watch = Callable[["Subject", int], None]


@dataclass(frozen=True)
class Subject:
    """A trained model with all that is needed to measure it."""

    model: CharacterModel
    tokenizer: CharTokenizer
    recipe: Recipe

    @property
    def canaries(self) -> CanarySet:
        return self.recipe.canaries()

    def untrained(self) -> Subject:
        """A model of the same size that has learned nothing: no secret stands out, and none is memorized."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            flat = CharacterModel(self.tokenizer.vocab_size, self.recipe.units, self.recipe.layers).eval()
        return replace(self, model=flat)

    def tree(self, digits: int, batch_size: int = 4096) -> SecretTree:
        """The tree of the secrets with so many digits; the model has seen numbers with `recipe.digits` digits."""
        return SecretTree(self.model, number_format(digits), self.tokenizer, batch_size=batch_size)


def train(recipe: Recipe, canaries: CanarySet | None = None, watch: Watch | None = None) -> Subject:
    """Train a model: the same recipe gives the same weights.

    Args:
        recipe: What decides it.
        canaries: What to insert instead of the recipe's own.
        watch: Called after each batch with the model as it is and the number of batches.
    """
    canaries = recipe.canaries() if canaries is None else canaries
    text = insert_at_word_boundaries(python_manual(recipe.characters), canaries, recipe.seed)
    tokenizer = CharTokenizer.from_text(text, "0123456789", *(canary.format.prompt for canary in canaries))
    tokens = torch.tensor(tokenizer.encode(text))
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = CharacterModel(tokenizer.vocab_size, recipe.units, recipe.layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    for number, batch in enumerate(_batches(tokens, recipe), 1):
        logits, _ = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if watch is not None:
            watch(Subject(model.eval(), tokenizer, recipe), number)
            model.train()
    return Subject(model.eval(), tokenizer, recipe)


def _batches(tokens: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    """Windows of the text in random order, each with one token more than the model reads: the last to predict."""
    generator = torch.Generator().manual_seed(recipe.seed)
    inside = torch.arange(recipe.window + 1)
    for _ in range(recipe.epochs):
        # Windows begin elsewhere in every epoch, so that no canary is cut in two every time.
        offset = int(torch.randint(recipe.window, (), generator=generator))
        starts = torch.arange(offset, len(tokens) - recipe.window, recipe.window)
        for chosen in starts[torch.randperm(len(starts), generator=generator)].split(recipe.batch_size):
            yield tokens[chosen[:, None] + inside]


def train_or_load(recipe: Recipe, cache: Path | None) -> tuple[Subject, float]:
    """A model and the seconds its training took; 0 if it comes from the cache file.

    Without a cache file nothing is read from or written to the disk.
    """
    if cache is not None and cache.exists():
        return _load(recipe, cache), 0.0
    begin = time.perf_counter()
    subject = train(recipe)
    seconds = time.perf_counter() - begin
    if cache is not None:
        content = {
            "recipe": asdict(recipe),
            "vocabulary": list(subject.tokenizer.vocabulary),
            "weights": subject.model.state_dict(),
        }
        torch.save(content, cache)
    return subject, seconds


def _load(recipe: Recipe, cache: Path) -> Subject:
    content: dict[str, Any] = torch.load(cache, weights_only=True)
    if content["recipe"] != asdict(recipe):
        raise SystemExit(f"{cache} holds a model of another recipe, {content['recipe']}; delete it to train again.")
    tokenizer = CharTokenizer(content["vocabulary"])
    model = CharacterModel(tokenizer.vocab_size, recipe.units, recipe.layers)
    model.load_state_dict(content["weights"])
    return Subject(model.eval(), tokenizer, recipe)
