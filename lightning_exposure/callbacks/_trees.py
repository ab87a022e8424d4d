"""What the callbacks share: the trees of a set of canaries, and the work on them shared out over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lightning_exposure.adapters import StepModel
from lightning_exposure.callbacks._planted import check_copies, check_tokens
from lightning_exposure.callbacks._progress import say as say
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.tree import SecretTree

ModelOf = Callable[[Any], nn.Module | StepModel]
"""Picks the next-token model out of a LightningModule."""

Result = TypeVar("Result")

_SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


class CanaryTrees:
    """The trees of the formats of some canaries, for the module that is being trained.

    Args:
        canaries: What to look for.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`, once it is set up.
        model: Picks the next-token model out of the LightningModule; None: the LightningModule itself.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | None,
        *,
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
    ) -> None:
        if not isinstance(canaries, CanarySet):
            raise ArgumentError(
                f"canaries is {type(canaries).__name__}; expected a CanarySet. Make one with CanarySet.draw(format, "
                "repetitions=[...])."
            )
        if len(canaries) == 0:
            raise ArgumentError("canaries is empty; there is nothing to measure. Draw at least one canary.")
        _refuse_equal_names(list(canaries.by_format()))
        self.canaries = canaries
        self._tokenizer = tokenizer
        self._model = model
        self._options = {"context": context, "batch_size": batch_size}
        self.trees: dict[SecretFormat, SecretTree] = {}

    @property
    def by_format(self) -> Mapping[SecretFormat, Sequence[Canary]]:
        """The canaries of each format."""
        return self.canaries.by_format()

    def check(self, trainer: Trainer) -> None:
        """Before anything is trained: can the tokenizer spell the formats, and is what is planted what is measured?

        Raises:
            TokenizerError: It cannot.
            ArgumentError: There is no tokenizer.
            DataError: The data module is one of ours, and plants other canaries, or these as other tokens.
        """
        data = getattr(trainer, "datamodule", None)
        check_copies(data, self.canaries)
        for format, canaries in self.by_format.items():
            check_tokens(data, Spelling(format, self._find_tokenizer(trainer)), canaries)

    def build(self, trainer: Trainer, module: LightningModule) -> None:
        """Make the trees, which tries the model's forward.

        Raises:
            ModelError: No adapter fits; the message says how to choose one.
        """
        model = module if self._model is None else self._model(module)
        tokenizer = self._find_tokenizer(trainer)
        self.trees = {
            format: SecretTree(model, format, tokenizer, **self._options)  # type: ignore[arg-type]
            for format in self.by_format
        }
        for tree in self.trees.values():
            tree.root()  # a model that does not belong to the tokenizer shows it here, and not after the training

    def map(
        self, trainer: Trainer, work: Callable[[SecretTree, Sequence[Canary]], Result]
    ) -> dict[SecretFormat, Result]:
        """Do the work on each tree, shared out over the processes, and give every process all results.

        A format is the unit: its canaries share their walks. Under a sharded strategy every process must take part
        in every forward, so all of them do all the work.
        """
        formats = list(self.by_format)
        world, rank = trainer.world_size, trainer.global_rank
        sharded = any(base.__name__ in _SHARDED for base in type(trainer.strategy).__mro__)
        if world == 1 or sharded:
            return {format: work(self.trees[format], self.by_format[format]) for format in formats}
        mine: dict[int, Result] | Exception = {}
        try:
            mine = {
                number: work(self.trees[format], self.by_format[format])
                for number, format in enumerate(formats)
                if number % world == rank
            }
        except Exception as error:  # the others wait for this process: they must hear of it
            mine = error
        everything: list[dict[int, Result] | Exception] = [{} for _ in range(world)]
        torch.distributed.all_gather_object(everything, mine)
        joined: dict[int, Result] = {}
        for part in everything:
            if isinstance(part, Exception):
                raise part
            joined.update(part)
        return {format: joined[number] for number, format in enumerate(formats)}

    def _find_tokenizer(self, trainer: Trainer) -> Tokenizer:
        if self._tokenizer is not None:
            return self._tokenizer
        tokenizer = getattr(getattr(trainer, "datamodule", None), "tokenizer", None)
        if tokenizer is None:
            raise ArgumentError(
                "tokenizer is None and the datamodule has no `tokenizer`; expected an object with encode, decode and "
                "vocab_size. Pass the one the training data was encoded with."
            )
        found: Tokenizer = tokenizer
        return found


def _refuse_equal_names(formats: Sequence[SecretFormat]) -> None:
    names = [format.name for format in formats]
    for name in names:
        if names.count(name) > 1:
            patterns = [format.pattern for format in formats if format.name == name]
            raise ArgumentError(
                f"canaries has {len(patterns)} formats with the name {name!r} ({', '.join(map(repr, patterns))}); "
                "their results could not be told apart. Give each a name: SecretFormat(pattern, name='...')."
            )


def only_one_with_this_name(trainer: Trainer, callback: Any) -> None:
    """Two callbacks of a kind that log under one name would overwrite each other: the later one gets a number."""
    others: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    before = [other.name for other in others[: others.index(callback)] if isinstance(other, type(callback))]
    original, number = callback.name, 2
    while callback.name in before:
        callback.name, number = f"{original}_{number}", number + 1
    if callback.name != original:
        kind = type(callback).__name__
        say(trainer, f"Two callbacks of the kind {kind} log as {original!r}: this one logs as {callback.name!r}.")


def loggers_named(trainer: Trainer, name: str) -> list[Any]:
    """The trainer's loggers of a class, from `lightning` or from `pytorch_lightning`."""
    return [logger for logger in trainer.loggers if any(base.__name__ == name for base in type(logger).__mro__)]
