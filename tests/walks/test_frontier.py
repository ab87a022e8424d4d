"""The open nodes of a search, against a sorted list; and which model states are kept for them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from lightning_exposure.adapters import RecurrentAdapter
from lightning_exposure.walks._frontier import OPEN_NODE, Frontier, OpenNodes
from lightning_exposure.walks._state_pool import StatePool
from tests.toys import Recurrent


def open_nodes(costs: np.ndarray, first: int) -> OpenNodes:
    nodes = np.zeros(len(costs), dtype=OPEN_NODE)
    nodes["cost"], nodes["parent"] = costs, first + np.arange(len(costs))
    return nodes


@pytest.mark.parametrize("scale", [0.05, 3.0, 5000.0])  # within one bucket, over many, beyond 16 bits of them
def test_the_frontier_gives_what_a_sorted_list_gives(scale: float) -> None:
    generator = np.random.default_rng(0)
    frontier, expected, pushed = Frontier(), [], 0
    for _ in range(60):
        costs = generator.exponential(scale, size=generator.integers(0, 40))
        frontier.push(open_nodes(costs, pushed))
        expected = sorted([*expected, *costs.tolist()])
        pushed += len(costs)
        count = int(generator.integers(0, 30))
        popped = frontier.pop(count)
        assert sorted(popped["cost"].tolist()) == expected[:count]
        expected = expected[count:]
        assert len(frontier) == len(expected)
        assert frontier.cheapest() == (expected[0] if expected else math.inf)
        assert frontier.nbytes == OPEN_NODE.itemsize * len(expected)
    limit = expected[len(expected) // 2]
    dropped = frontier.drop_from(limit)
    assert sorted(dropped["cost"].tolist()) == [cost for cost in expected if cost >= limit]
    assert sorted(frontier.pop(len(expected))["cost"].tolist()) == [cost for cost in expected if cost < limit]


def test_nodes_keep_their_columns_together() -> None:
    nodes = np.zeros(50, dtype=OPEN_NODE)
    nodes["cost"] = np.random.default_rng(1).permutation(50) / 4
    for i, name in enumerate(("token", "place", "parent"), 1):
        nodes[name] = nodes["cost"] * 4 + i * 1000
    frontier = Frontier()
    frontier.push(nodes)
    for popped in (frontier.pop(13), frontier.pop(20), frontier.drop_from(10.0), frontier.pop(50)):
        for i, name in enumerate(("token", "place", "parent"), 1):
            np.testing.assert_array_equal(popped[name], popped["cost"] * 4 + i * 1000)


def test_a_state_is_there_until_the_last_child_has_asked_for_it() -> None:
    """Owner n has the state n, in batches of every size; children ask in random order, as often as they are many."""
    generator = np.random.default_rng(0)
    pool = StatePool(RecurrentAdapter(Recurrent(9)))
    waiting: Counter[int] = Counter()
    owners = 0
    for size in [1, 2, 40, 8, 300, 5, 5, 5, 120]:
        numbers = np.arange(owners, owners + size)
        owners += size
        children = generator.integers(0, 4, size)
        waiting.update(dict(zip(numbers.tolist(), children.tolist(), strict=True)))
        pool.add(state_of(numbers), numbers, children, room=2**30)
        everyone = np.array(sorted(waiting.elements()))
        asking = generator.permutation(everyone)[: len(everyone) // 2]
        state, rows = pool.gather(asking)
        assert sorted(rows.tolist()) == list(range(len(asking)))
        for tensor, expected in zip(state, state_of(asking[rows]), strict=True):
            torch.testing.assert_close(tensor, expected)
        pool.release(asking)
        waiting.subtract(asking.tolist())
    held = sum(tensor.numel() * tensor.element_size() for tensor in state_of(np.array(sorted(+waiting))))
    assert held <= pool.nbytes <= 2 * held + 2**12  # what nobody waits for is never much more than what is waited for
    pool.release(np.array(sorted(waiting.elements())))
    assert pool.nbytes == 0


def state_of(numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A state of the toy's shape that says whose it is."""
    like = RecurrentAdapter(Recurrent(9)).start([1])[1]
    value = torch.from_numpy(numbers).to(like[0].dtype)[None, :, None]
    return tuple(value.expand(len(part), -1, part.shape[2]).contiguous() for part in like)  # type: ignore[return-value]
