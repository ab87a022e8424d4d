"""The trees of some canaries: built once per training run, and walked by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from torch import nn

from lightning_exposure._checks import instance, refusal, whole_number
from lightning_exposure.adapters import StepModel
from lightning_exposure.adapters.choosing import step_model
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring.surroundings import Surroundings
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.tree import SecretTree

ModelOf = Callable[[Any], nn.Module | StepModel]
"""Picks the next-token model out of the module that is being trained."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class SharedTrees:
    """Spellings, adapters and trees of one training run, each of them made once.

    A tree is expensive before anything is measured: the tokenizer spells hundreds of secrets, and the model is tried on
    some of them. What several measurements of one run have in common is found here by the second of them.
    """

    def __init__(self) -> None:
        self._spellings: dict[tuple[SecretFormat, int], Spelling] = {}
        self._chosen: dict[tuple[int, int], nn.Module | StepModel] = {}
        self._adapters: dict[tuple[int, int | None], StepModel] = {}
        self._trees: dict[tuple[SecretFormat, int, int], SecretTree] = {}
        self._kept: dict[int, Any] = {}
        self._members: WeakSet[Any] = WeakSet()

    @classmethod
    def join(cls, run: Any, member: Any) -> SharedTrees:
        """What the members of a run share, while one of them still holds it.

        A member that joins a second time begins a new run, for model and tokenizer may be others by then.

        Args:
            run: What all members have in common, such as their Trainer; it is not kept alive.
            member: Who joins; it is not kept alive.
        """
        known = _RUNS.get(run)
        shared = None if known is None else known()
        if shared is None or member in shared._members:
            shared = cls()
            _RUNS[run] = ref(shared)
        shared._members.add(member)
        return shared

    def spelling(self, format: SecretFormat, tokenizer: Tokenizer | Any) -> Spelling:
        """How a tokenizer spells a format.

        Raises:
            TokenizerError: It cannot.
        """
        key = format, self._number(tokenizer)
        if key not in self._spellings:
            self._spellings[key] = Spelling(format, tokenizer)
        return self._spellings[key]

    def tree(
        self,
        model: nn.Module,
        format: SecretFormat,
        tokenizer: Tokenizer | Any,
        *,
        pick: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
    ) -> SecretTree:
        """The tree of a format, tried and with its prompt read.

        Args:
            model: The module that is being trained.
            format: What the secrets look like.
            tokenizer: How the model reads text.
            pick: Picks the next-token model out of the module; None: the module itself.
            context: For a model without a state: how many of the last tokens it is given.
            batch_size: The largest number of nodes the model reads at once.

        Raises:
            ModelError: No adapter fits; the message says how to choose one.
        """
        adapter = self._adapter(model, pick, context)
        key = format, self._number(tokenizer), self._number(adapter)
        if key not in self._trees:
            tree = SecretTree(adapter, format, self.spelling(format, tokenizer), batch_size=batch_size)
            tree.root()  # a model that does not belong to the tokenizer shows it here, and not after training
            self._trees[key] = tree
        shared = self._trees[key]
        if shared.batch_size != batch_size:
            shared = copy(shared)
            shared.batch_size = batch_size
        return shared

    def _adapter(self, model: nn.Module, pick: ModelOf | None, context: int | None) -> StepModel:
        choice = self._number(model), self._number(pick)
        if choice not in self._chosen:
            self._chosen[choice] = model if pick is None else pick(model)
        chosen = self._chosen[choice]
        key = self._number(chosen), context
        if key not in self._adapters:
            self._adapters[key] = step_model(chosen, context=context)
        return self._adapters[key]

    def _number(self, thing: Any) -> int:
        """What a thing goes by; it is kept, so that no other gets its number."""
        self._kept[id(thing)] = thing
        return id(thing)


_RUNS: WeakKeyDictionary[Any, ReferenceType[SharedTrees]] = WeakKeyDictionary()
"""Only the members hold what they share: it goes with the last of them."""


class CanaryTrees:
    """The trees of the formats of some canaries, for the model that is being trained.

    Args:
        canaries: What to look for.
        model: Picks the next-token model out of the module that is being trained; None: the module itself.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.

    Attributes:
        trees: The tree of each format, once they are built.
        context: As given.
    """

    def __init__(
        self,
        canaries: CanarySet,
        *,
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
    ) -> None:
        remedy = "Make one with CanarySet.draw(format, repetitions=[...])."
        if len(instance("canaries", canaries, CanarySet, "a CanarySet", remedy)) == 0:
            raise ArgumentError("canaries is empty; expected at least one canary to measure. Draw one.")
        _refuse_equal_names(list(canaries.by_format()))
        check_pick(model)
        if context is not None:
            whole_number("context", context, at_least=1, remedy="It counts tokens; None is all of them.")
        self.canaries = canaries
        self.model = model
        self.trees: dict[SecretFormat, SecretTree] = {}
        self.context = context
        self._module: nn.Module | None = None
        self._batch_size = whole_number("batch_size", batch_size, at_least=1)

    @property
    def by_format(self) -> Mapping[SecretFormat, Sequence[Canary]]:
        """The canaries of each format."""
        return self.canaries.by_format()

    @property
    def depths(self) -> list[int]:
        """How many tokens the longest secret of each format has."""
        return [self.trees[format].automaton.depth for format in self.by_format]

    @property
    def module(self) -> nn.Module:
        """The module that is being trained, once the trees are built."""
        assert self._module is not None, "the trees are not built yet"
        return self._module

    def pick(self, module: nn.Module) -> nn.Module | StepModel:
        """The next-token model in a module of the kind that is trained."""
        return module if self.model is None else self.model(module)

    def build(self, shared: SharedTrees, model: nn.Module, tokenizer: Tokenizer | Any) -> None:
        """Make the trees, which tries the model's forward, or find those that are made.

        Raises:
            ModelError: No adapter fits; the message says how to choose one.
        """
        self._module = model
        self.trees = {
            format: shared.tree(
                model, format, tokenizer, pick=self.model, context=self.context, batch_size=self._batch_size
            )
            for format in self.by_format
        }

    def map(
        self, around: Surroundings, work: Callable[[SecretTree, Sequence[Canary]], Result]
    ) -> dict[SecretFormat, Result]:
        """Do the work on each tree, shared out over the processes, and give every process all results.

        A format is the unit: its canaries share their walks.
        """
        by_format = self.by_format
        formats = list(by_format)
        found = share_out(around, formats, lambda format: work(self.trees[format], by_format[format]))
        return dict(zip(formats, found, strict=True))


def share_out(around: Surroundings, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Do some work on each item, each in one of the processes, and give every process all results, in order.

    Where a forward needs all processes, all of them do all the work. If one fails, all of them raise its error.
    """
    world, rank = around.world_size, around.rank
    if world == 1 or around.is_sharded:
        return [work(item) for item in items]
    mine: dict[int, Result] | Exception
    try:
        mine = {number: work(item) for number, item in enumerate(items) if number % world == rank}
    except Exception as error:  # the others wait for this process: they must hear of it
        mine = error
    joined: dict[int, Result] = {}
    for part in around.gather(mine):
        if isinstance(part, Exception):
            raise part
        joined.update(part)
    return [joined[number] for number in range(len(items))]


def check_pick(model: object) -> None:
    """Refuse what cannot pick a model: a model itself can be called, too, and is the usual mistake.

    >>> check_pick(nn.Linear(2, 2))
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: model is Linear(...), of type Linear; expected a function that picks the
    next-token model out of the module that is being trained. For example model=lambda module: module.network.
    """
    is_model = not isinstance(model, type) and isinstance(model, nn.Module | StepModel)
    if model is not None and (is_model or not callable(model)):
        expected = "a function that picks the next-token model out of the module that is being trained"
        raise refusal("model", model, expected, "For example model=lambda module: module.network.", with_type=True)


def _refuse_equal_names(formats: Sequence[SecretFormat]) -> None:
    names = [format.name for format in formats]
    for name in names:
        if names.count(name) > 1:
            patterns = [format.pattern for format in formats if format.name == name]
            raise ArgumentError(
                f"canaries has {len(patterns)} formats with the name {name!r} ({', '.join(map(repr, patterns))}); "
                "expected different ones, to tell their results apart. Give each a name: SecretFormat(pattern, "
                "name='...')."
            )
