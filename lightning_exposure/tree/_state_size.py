"""How much memory one row of a model's state comes to at the end of a secret."""

from __future__ import annotations

from torch import Tensor

from lightning_exposure.adapters.protocol import StepModel
from lightning_exposure.adapters.states import ModelState


def bytes_of_row(model: StepModel, state: ModelState, token: Tensor, depth: int) -> int:
    """The memory one row takes in a model at most, when it is `depth` tokens long.

    States may grow with what was read, and a step may need more than its state. A `StepModel` that knows says so with
    a method `row_bytes(state, depth)`; for others the growth is measured over two tokens.

    Args:
        model: The model.
        state: Of one row, where the tree begins.
        token: Any token `(1,)`, to see what reading it adds.
        depth: How many tokens the longest secret has.
    """
    by_model = getattr(model, "row_bytes", None)
    if by_model is not None:
        return int(by_model(state, depth))
    sizes = [model.bytes_of(state)]
    for _ in range(min(2, depth - 1)):
        _, state = model.step(state, token)
        sizes.append(model.bytes_of(state))
    growth = max(0, sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0
    return max(sizes) + growth * max(0, depth + 1 - len(sizes))
