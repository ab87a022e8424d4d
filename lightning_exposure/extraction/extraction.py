"""`extract`: pull secrets out of a model. Four attacks on one tree, the best of them with a proof."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lightning_exposure.errors import ArgumentError, BudgetError, ManifestError
from lightning_exposure.tokenization.paths import PathFinder, path_keys, tokens_of
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import (
    DEFAULT_MEMORY,
    Progress,
    SearchResult,
    beam,
    best_first,
    enumerate_leaves,
    model_walks,
)
from lightning_exposure.walks.best import BestLeaves

_VERSION = 1
_WALKS_AT_ONCE = 16_384

CERTAIN = "the tree was counted: it holds every secret once"
"""What a proof rests on where it is known that no secret is missing."""


@dataclass(frozen=True)
class Candidate:
    """A secret that an attack came up with.

    Attributes:
        text: The whole text, prompt included.
        bits: Its log-perplexity.
        order: 1 for the most likely candidate, 2 for the next, ...
    """

    text: str
    bits: float
    order: int


@dataclass(frozen=True)
class Extraction:
    """What an attack found.

    Attributes:
        candidates: The secrets, most likely first.
        optimal: Whether it is proven that no other secret of the format is more likely than these.
        lower_bound: No secret that is not among the candidates costs less than this many bits; 0 says nothing.
        ended_by: What ended the attack: "proof", "expansions", "seconds", "memory", "paper", "width", "samples" or
            "interrupt".
        expansions: How many nodes the model read.
        seconds: How long it took.
        algorithm: Which attack.
        settings: What it was called with.
        walks_until_target: Sampling with a target only: which walk came to it first; None if none did.
        rests_on: What `optimal` rests on, in a sentence: a proof is about the secrets that are in the tree, so that it
            matters how it is known that all of them are. Empty if nothing is proven.
    """

    candidates: tuple[Candidate, ...]
    optimal: bool
    lower_bound: float
    ended_by: str
    expansions: int
    seconds: float
    algorithm: str
    settings: Mapping[str, Any]
    walks_until_target: int | None = None
    rests_on: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All attributes, for JSON."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            "version": _VERSION,
            **content,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "extraction") -> Extraction:
        """What `to_dict` gave.

        Raises:
            ManifestError: A field is missing or the version is unknown; names the source and the field.
        """
        if content.get("version") != _VERSION:
            raise ManifestError(f"{source}: version is {content.get('version')!r}; expected {_VERSION}.")
        content = {"rests_on": "", **content}  # older files do not have it
        missing = [name for name in cls.__dataclass_fields__ if name not in content]
        if missing:
            raise ManifestError(f"{source}: the field {missing[0]!r} is missing; write the file again with save().")
        fields = {name: content[name] for name in cls.__dataclass_fields__}
        try:
            fields["candidates"] = tuple(Candidate(**candidate) for candidate in content["candidates"])
        except TypeError as error:
            raise ManifestError(f"{source}: candidates is not a list of candidates ({error}).") from error
        return cls(**fields)

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Extraction:
        """Read a file that `save` wrote.

        Raises:
            ManifestError: It is not one; names the file and the field.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: not a JSON file ({error}); expected one that save() wrote.") from error
        if not isinstance(content, dict):
            raise ManifestError(f"{path}: holds {type(content).__name__}; expected an object that save() wrote.")
        return cls.from_dict(content, str(path))


def extract(
    tree: SecretTree,
    algorithm: str = "shortest_path",
    top_k: int = 1,
    *,
    known: str | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
    **settings: Any,
) -> Extraction:
    """Attack a model: find the secrets of a format that it holds most likely.

    Ctrl-C ends an attack and returns what was found so far, marked as not optimal.

    Args:
        tree: The model, the format and the tokenizer.
        algorithm: One of

            - "shortest_path": cheapest first, with a proof. Settings: `budget` (expansions, default 1,000,000),
              `seconds`, `largest_batch`, `stop` ("proof", or "paper" for the rule of the paper).
            - "brute_force": every secret there is. Settings: `budget` (expansions, default none).
            - "beam": level by level, keeping the best. Settings: `width` (default 100).
            - "sampling": let the model speak. Settings: `samples` (walks, default 10,000), `temperature` (default 1),
              `seed`, `target` (a secret: which walk comes to it first).
        top_k: How many candidates.
        known: The prompt and the first characters of the secret, if the attacker knows them.
        memory: The limit for model states and open nodes, in bytes.
        progress: Called with the expansions so far, the open nodes, and the bits of the best secret so far.
        **settings: Of the algorithm.

    Raises:
        ArgumentError: An unknown algorithm, a setting it does not have, or a value out of range.
        SecretError: `known` or `target` does not fit the format.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> found = extract(tree, top_k=3)
        >>> found.optimal, found.candidates == extract(tree, "brute_force", top_k=3).candidates
        (True, True)
    """
    if top_k < 1:
        raise ArgumentError(f"top_k is {top_k!r}; expected at least 1 candidate.")
    defaults = check_settings(algorithm, settings)
    if known is not None:
        tree = tree.starting_with(known)
    start = time.perf_counter()
    result, first_seen = ALGORITHMS[algorithm](tree, top_k, memory=memory, progress=progress, **settings)
    texts = [tree.text(tokens_of(path)) for path in result.paths]
    candidates = zip(texts, result.costs.tolist(), range(1, len(texts) + 1), strict=True)
    return Extraction(
        candidates=tuple(Candidate(*candidate) for candidate in candidates),
        optimal=result.ended_by == "proof",
        lower_bound=result.lower_bound,
        ended_by=result.ended_by,
        expansions=result.expansions,
        seconds=time.perf_counter() - start,
        algorithm=algorithm,
        settings={"top_k": top_k, "known": known, "memory": memory, **defaults, **settings},
        walks_until_target=first_seen,
        rests_on=(tree.rests_on or CERTAIN) if result.ended_by == "proof" else "",
    )


def check_settings(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The default settings of an algorithm.

    Raises:
        ArgumentError: There is no such algorithm, or it has no such setting.
    """
    if algorithm not in ALGORITHMS:
        raise ArgumentError(f"algorithm is {algorithm!r}; expected one of {', '.join(map(repr, ALGORITHMS))}.")
    parameters = inspect.signature(ALGORITHMS[algorithm]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    for name in settings:
        if name not in defaults:
            raise ArgumentError(f"{algorithm!r} has no setting {name!r}; it has {', '.join(defaults)}.")
    return defaults


_Found = tuple[SearchResult, int | None]


def _shortest_path(
    tree: SecretTree,
    top_k: int,
    *,
    budget: int | None = 1_000_000,
    seconds: float | None = None,
    largest_batch: int = 4096,
    stop: str = "proof",
    memory: int,
    progress: Progress | None,
) -> _Found:
    found = best_first(
        tree,
        top_k,
        budget=budget,
        seconds=seconds,
        memory=memory,
        largest_batch=largest_batch,
        stop=stop,
        progress=progress,
    )
    return found, None


def _beam(tree: SecretTree, top_k: int, *, width: int = 100, memory: int, progress: Progress | None) -> _Found:
    return beam(tree, top_k, width=width, memory=memory, progress=progress), None


def _brute_force(
    tree: SecretTree, top_k: int, *, budget: int | None = None, memory: int, progress: Progress | None
) -> _Found:
    """Every secret; what ended it early leaves no bound, for it goes depth-first."""
    best = BestLeaves(top_k)
    expansions, ended_by = 0, "proof"
    try:
        for leaves in enumerate_leaves(tree, budget=budget, memory=memory):
            expansions = leaves.expansions
            cheap = leaves.costs <= best.limit
            if cheap.any():
                best.add(leaves.paths[cheap], leaves.costs[cheap])
            if progress is not None:
                progress(expansions, 0, float(best.costs.min(initial=math.inf)))
    except BudgetError:
        ended_by = "expansions"
    except KeyboardInterrupt:
        ended_by = "interrupt"
    at_least = float(best.costs.max(initial=0.0)) if ended_by == "proof" else 0.0
    return SearchResult(best.paths, best.costs, expansions, ended_by, at_least), None


def _sampling(
    tree: SecretTree,
    top_k: int,
    *,
    samples: int = 10_000,
    temperature: float = 1.0,
    seed: int = 0,
    target: str | None = None,
    memory: int,
    progress: Progress | None,
) -> _Found:
    """The best of the different secrets that walks come to."""
    if samples < 1:
        raise ArgumentError(f"samples is {samples!r}; expected at least 1 walk.")
    generator = np.random.default_rng(seed)
    goal = None if target is None else PathFinder(tree.paths([target]))
    best, seen = BestLeaves(top_k), np.empty(0, dtype=np.uint64)
    expansions, first_seen, ended_by = 0, None, "samples"
    try:
        for done in range(0, samples, _WALKS_AT_ONCE):
            count = min(_WALKS_AT_ONCE, samples - done)
            walks = model_walks(tree, count, seed=generator, temperatures=(temperature,), memory=memory)
            expansions += walks.expansions
            if goal is not None and first_seen is None:
                hits = [row for _, row in goal.find(walks.paths) if walks.complete[row]]
                first_seen = done + 1 + min(hits) if hits else None
            keys = path_keys(walks.paths)
            _, new = np.unique(np.where(walks.complete, keys, np.uint64(0)), return_index=True)
            new = new[walks.complete[new] & ~np.isin(keys[new], seen)]
            seen = np.union1d(seen, keys[new])
            best.add(walks.paths[new], walks.costs[new])
            if progress is not None:
                progress(expansions, 0, float(best.costs.min(initial=math.inf)))
    except KeyboardInterrupt:
        ended_by = "interrupt"
    return SearchResult(best.paths, best.costs, expansions, ended_by, 0.0), first_seen


ALGORITHMS: Mapping[str, Callable[..., _Found]] = MappingProxyType(
    {"shortest_path": _shortest_path, "brute_force": _brute_force, "beam": _beam, "sampling": _sampling}
)
"""The attacks."""
