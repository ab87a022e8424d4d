"""How many nodes a walk may hold at once, so that memory is bounded by a parameter and never by |R|."""

from __future__ import annotations

import sys

from lightning_exposure._checks import whole_number
from lightning_exposure.tree.secret_tree import SecretTree

DEFAULT_MEMORY = 2**30
"""The default limit for model states, in bytes: 1 GiB."""


POSSIBLE = sys.float_info.max
"""The bound, in bits, that leaves out only what is impossible: see `IMPOSSIBLE_BITS`."""


def rows_within(tree: SecretTree, memory: int, blocks: int) -> int:
    """How many nodes a block may have when `blocks` blocks of states are alive at the same time.

    Args:
        tree: The tree that is walked.
        memory: The limit for all states together, in bytes.
        blocks: How many blocks the walk keeps.

    Returns:
        At least 1 and at most the tree's batch size.

    Raises:
        ArgumentError: The limit is not positive.
    """
    whole_number("memory", memory, at_least=1, remedy="It counts bytes, for example 2**30.")
    return max(1, min(tree.batch_size, memory // (tree.row_bytes() * blocks)))
