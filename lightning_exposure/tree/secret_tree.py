"""`SecretTree`: all the secrets of a format as a tree whose edges a language model puts a price on.

The root is the text before the first blank, an edge adds one token at a cost of `-log2 P(token | everything before)`
bits, a leaf is a complete secret. Everything else in this library is a way to walk this tree: a walk asks to expand
a batch of nodes, and never talks to a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure._checks import instance, whole_number
from lightning_exposure.adapters.choosing import TriedModels
from lightning_exposure.adapters.protocol import StepModel, device_of, evaluating
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.tokenization.protocol import Tokenizer
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.tree._state_size import bytes_of_row
from lightning_exposure.tree.path_reader import PathReader
from lightning_exposure.tree.prices import price_children
from lightning_exposure.tree.prompt import Prompt


@dataclass(frozen=True)
class Nodes:
    """A batch of nodes to expand: each is a parent's state and one more token, which the model has not read yet.

    Attributes:
        state: The model's state before the token, one row per node.
        tokens: The token of each node `(nodes,)`.
        places: Where in the format each node stands.
        costs: The bits from the root to each node, in float64.
        paths: The tokens from the root to each node `(nodes, depth)`; shorter paths are filled up with -1.
    """

    state: ModelState
    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    costs: NDArray[np.float64]
    paths: NDArray[np.int32]

    def __len__(self) -> int:
        """How many nodes."""
        return len(self.tokens)


@dataclass(frozen=True)
class Children:
    """What expanding a batch of nodes gives: their children, flat, in the order of their parents and then of tokens.

    Attributes:
        state: The model's state after the parents, one row per parent: children share it.
        parents: The row of each child's parent.
        tokens: The token of each child.
        places: Where in the format each child stands.
        costs: The bits from the root to each child, in float64.
        leaf: Whether the child is a complete secret in its canonical tokenization.
        open: Whether the child can be expanded further.
        parent_costs: The bits from the root to each parent.
        parent_paths: The tokens from the root to each parent.
    """

    model: StepModel
    state: ModelState
    parents: NDArray[np.int64]
    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    costs: NDArray[np.float64]
    leaf: NDArray[np.bool_]
    open: NDArray[np.bool_]
    parent_costs: NDArray[np.float64]
    parent_paths: NDArray[np.int32]

    def __len__(self) -> int:
        """How many children."""
        return len(self.tokens)

    @property
    def edges(self) -> NDArray[np.float64]:
        """The bits of the last token of each child."""
        return self.costs - self.parent_costs[self.parents]

    def paths(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> NDArray[np.int32]:
        """The tokens from the root to some of the children `(children, depth)`."""
        return _append(self.parent_paths[self.parents[which]], self.tokens[which])

    def take(self, which: NDArray[np.intp]) -> Nodes:
        """Some of the children as nodes to expand."""
        rows = self.parents[which]
        state = self.state
        if len(rows) != len(self.parent_paths) or not np.array_equal(rows, np.arange(len(rows))):
            state = self.model.select(state, torch.from_numpy(rows).to(device_of(self.model.module)))
        return Nodes(state, self.tokens[which], self.places[which], self.costs[which], self.paths(which))


class SecretTree:
    """A model, a format and a tokenizer: the tree of all secrets of the format, priced by the model.

    The tree never changes the model. While it works the module is in eval mode and without gradients; afterwards
    every submodule is in the mode it was in. It keeps no results, so it can be walked again after more training;
    only while a walk or a measurement lasts, what the model said after the prompt (`prompt.kept()`).

    When it is made it tries the model on some of the secrets, and refuses one that is not what it seems: that sees
    tokens to come, shifts its input, takes time for the batch, is never the same twice, or returns probabilities.

    Args:
        model: A module that maps token ids `(batch, time)` to logits `(batch, time, vocabulary)`, with or without a
            recurrent state; or a `StepModel`, where no adapter fits by itself.
        format: What the secrets look like.
        tokenizer: How the model was trained to read text: an object with `encode`, `decode` and `vocab_size`, a
            tokenizer of `transformers` or `tokenizers`, or the `Spelling` of the format where it was made before.
        context: For a model without a state: how many of the last tokens it is given; None: all.
        batch_size: The largest number of nodes the model reads at once.
        tried: What is known of models from other trees; a module that is in it is not tried again.

    Raises:
        ModelError: No adapter fits, or the model is not what it seems.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> model = nn.Sequential(nn.Embedding(14, 8), nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> tree.size, tree.automaton.depth
        (10000, 4)
    """

    def __init__(
        self,
        model: nn.Module | StepModel,
        format: SecretFormat,
        tokenizer: Tokenizer | Spelling | Any,
        *,
        context: int | None = None,
        batch_size: int = 4096,
        tried: TriedModels | None = None,
    ) -> None:
        instance("format", format, SecretFormat, "a SecretFormat", "For example SecretFormat('my pin is ####').")
        whole_number("batch_size", batch_size, at_least=1)
        self.format = format
        self.spelling = tokenizer if isinstance(tokenizer, Spelling) else Spelling(format, tokenizer)
        if self.spelling.format is not format and self.spelling.format != format:
            raise ArgumentError(
                f"tokenizer is a Spelling of {self.spelling.format!r}; expected one of {format!r}. Give the tokenizer "
                "itself, or Spelling(format, tokenizer) of the same format."
            )
        self.tokenizer = self.spelling.tokenizer
        self.automaton = self.spelling.automaton
        tried = TriedModels() if tried is None else tried
        self.model = tried.step_model(model, context=context)
        self.prompt = Prompt(self.model, self.spelling.root)
        self.batch_size = batch_size
        self._trouble = tried.try_on(self.model, self.spelling)

    def __repr__(self) -> str:
        """Format, size and model."""
        return f"SecretTree({self.format!r}, {self.size:,} secrets, {type(self.model.module).__name__})"

    @property
    def size(self) -> int:
        """How many secrets there are: |R|."""
        return self.spelling.size

    @property
    def rests_on(self) -> str:
        """Empty if it is certain that every secret is in the tree once; otherwise a sentence: what speaks for it.

        It is certain if the paths were counted, or all secrets were spelled and looked up. A tree for which neither can
        be done was tried on some hundred secrets, and on some hundred with added tokens in them, where those may occur.
        """
        return self.spelling.rests_on

    @property
    def bits(self) -> float:
        """log2 |R|: the largest possible exposure."""
        return math.log2(self.size)

    def paths(self, secrets: Sequence[str]) -> NDArray[np.int32]:
        """The tokens from the root to each secret in its canonical tokenization, one row each, filled up with -1.

        Raises:
            SecretError: A text is not a secret of the format.
            TokenizerError: The tokenizer spells one in a way the tree does not hold.
        """
        return self.spelling.paths(secrets)

    def starting_with(self, known: str) -> SecretTree:
        """The part of the tree whose secrets begin with a known text: what an attacker sees who knows that much.

        What is known costs nothing, as the prompt does, up to the last token that is spelled in one way only.

        Args:
            known: The prompt and the first characters of the secret.

        Raises:
            SecretError: No secret of the format begins with this text; names the first character that does not fit.
        """
        part = copy(self)
        part.spelling = self.spelling.starting_with(known)
        part.automaton = part.spelling.automaton
        part.prompt = Prompt(part.model, part.spelling.root)
        return part

    def text(self, path: Sequence[int]) -> str:
        """The text of a path from the root, the prompt included."""
        return self.spelling.text(path)

    def root(self, bound: float = math.inf) -> Children:
        """Read the prompt and give the first tokens of all secrets; counts as one expansion."""
        logits, state = self.prompt.read()
        logits = self._checked(logits, 1)
        if self._trouble is not None:
            raise self._trouble
        start = np.full(1, self.automaton.start, dtype=np.int64)
        return self._children(state, logits, start, np.zeros(1), _no_path(1), bound)

    def expand(self, nodes: Nodes, bound: float = math.inf) -> Children:
        """Read the token of each node and give all their children.

        Args:
            nodes: At most `batch_size` of them, all open.
            bound: Children that cost more than this many bits are left out.
        """
        state, logits = self._read(nodes)
        paths = nodes.paths
        return self._children(state, logits, nodes.places, nodes.costs, paths, bound)

    @contextmanager
    def reader(self, root: Sequence[int] | None = None) -> Iterator[PathReader]:
        """What reads given paths and prices nothing else, for as long as the context lasts.

        Args:
            root: The tokens to read first; None: those that every secret begins with.
        """
        if self._trouble is not None:
            raise self._trouble
        with evaluating(self.model.module):
            prompt = self.prompt if root is None else Prompt(self.model, root)
            yield PathReader(self.model, prompt, self._checked)

    def revive(self, paths: NDArray[np.int32], places: NDArray[np.int64], costs: NDArray[np.float64]) -> Nodes:
        """Nodes whose states were dropped to save memory: their tokens are read again from the root.

        Args:
            paths: The tokens from the root to each node, shorter ones filled up with -1.
            places: Where in the format each node stands.
            costs: The bits from the root to each node, which are not computed again.
        """
        depths = (paths >= 0).sum(axis=1)
        device = device_of(self.model.module)
        with evaluating(self.model.module):
            _, state = self.prompt.read()
            states, rows = [], []
            node = np.zeros(len(paths), dtype=np.int64)  # in the state of a level: where each path has come to
            for level in range(int(depths.max())):
                arrived = np.flatnonzero(depths == level + 1)  # the last token is the node's own, which is not read yet
                if len(arrived):
                    states.append(self.model.select(state, torch.from_numpy(node[arrived]).to(device)))
                    rows.append(arrived)
                going = np.flatnonzero(depths > level + 1)
                if len(going):
                    state, node[going] = self._read_level(state, node[going], paths[going, level])
            state = self.model.concatenate(states)
            if len(states) > 1:
                state = self.model.select(state, torch.from_numpy(np.argsort(np.concatenate(rows))).to(device))
        tokens = paths[np.arange(len(paths)), depths - 1].astype(np.int64)
        return Nodes(state, tokens, places, costs, paths)

    def _read_level(
        self, state: ModelState, node: NDArray[np.int64], tokens: NDArray[np.int32]
    ) -> tuple[ModelState, NDArray[np.int64]]:
        """Read one more token of each path; what several paths have in common is read once.

        Returns:
            The state after it, and which of its rows each path has come to.
        """
        device = device_of(self.model.module)
        stride = int(tokens.max()) + 1
        distinct, after = np.unique(node * stride + tokens, return_inverse=True)
        before = self.model.select(state, torch.from_numpy(distinct // stride).to(device))
        _, state = self.model.step(before, torch.from_numpy(distinct % stride).to(device))
        return state, after.reshape(-1)

    def row_bytes(self) -> int:
        """The memory one node takes in the model at most: its state, and what there is while it is read."""
        tokens, _ = self.automaton.children(self.automaton.start)
        token = torch.from_numpy(tokens[:1]).to(device_of(self.model.module))
        with evaluating(self.model.module):
            logits, state = self.prompt.read()
            in_model = bytes_of_row(self.model, state, token, self.automaton.depth)
        return in_model + 3 * logits.numel() * max(4, logits.element_size())

    def _read(self, nodes: Nodes) -> tuple[ModelState, Tensor]:
        tokens = torch.from_numpy(nodes.tokens).to(device_of(self.model.module))
        with evaluating(self.model.module):
            logits, state = self.model.step(nodes.state, tokens)
        return state, self._checked(logits, len(nodes))

    def _checked(self, logits: Tensor, rows: int) -> Tensor:
        """Logits of the right shape, at least float32."""
        if logits.dim() != 2 or len(logits) != rows or logits.shape[1] < self.spelling.vocab_size:
            raise ModelError(
                f"the model gave logits of shape {tuple(logits.shape)} for {rows} rows; expected ({rows}, at least "
                f"{self.spelling.vocab_size}), the tokenizer's vocabulary. Model and tokenizer must belong together."
            )
        if logits.device.type == "mps":  # it has no float64, in which costs are added up
            logits = logits.cpu()
        logits = logits.detach()  # a forward that returns a parameter is not stopped by no_grad
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def _children(
        self,
        state: ModelState,
        logits: Tensor,
        places: NDArray[np.int64],
        costs: NDArray[np.float64],
        paths: NDArray[np.int32],
        bound: float,
    ) -> Children:
        parents, tokens, targets, total = price_children(self.automaton, logits, places, costs, bound)
        leaf = self.automaton.accepting(targets)
        is_open = self.automaton.open(targets)
        children = Children(self.model, state, parents, tokens, targets, total, leaf, is_open, costs, paths)
        return children if self.spelling.exact else self._canonical_only(children)

    def _canonical_only(self, children: Children) -> Children:
        """Leaves whose path is not how the tokenizer spells their text do not count."""
        leaf = children.leaf.copy()
        complete = np.flatnonzero(leaf)
        leaf[complete] = self.spelling.canonical(children.paths(complete))
        kept = np.flatnonzero(leaf | children.open)
        return replace(
            children,
            parents=children.parents[kept],
            tokens=children.tokens[kept],
            places=children.places[kept],
            costs=children.costs[kept],
            leaf=leaf[kept],
            open=children.open[kept],
        )


def check_tree(tree: object) -> None:
    """Refuse what is no tree, such as a model that was not put into one.

    >>> check_tree(nn.Linear(2, 2))
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: tree is Linear(...), of type Linear; expected a SecretTree. Make one with
    SecretTree(model, format, tokenizer).
    """
    instance("tree", tree, SecretTree, "a SecretTree", "Make one with SecretTree(model, format, tokenizer).")


def _no_path(rows: int) -> NDArray[np.int32]:
    return np.empty((rows, 0), dtype=np.int32)


def _append(paths: NDArray[np.int32], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
    """Paths with one more token each; the filling of shorter paths stays behind the token."""
    longer = np.concatenate([paths, np.full((len(paths), 1), -1, dtype=np.int32)], axis=1)
    if paths.size and (paths[:, -1] < 0).any():
        longer[np.arange(len(paths)), (paths >= 0).sum(axis=1)] = tokens
        if (longer[:, -1] < 0).all():  # else nodes of different depths would grow by a column at every step
            longer = longer[:, :-1]
    else:
        longer[:, -1] = tokens
    return longer
