"""Clipping layer by layer is clipping by hand, layer by layer; and nobody adds more than the norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.proof._clipping import check_blocks
from tests.privacy.models import NETWORKS, SIZE, Tied, made, tokens, vectors
from tests.privacy.per_example import Sums, mean_of_squares

MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(SIZE, 3), nn.Tanh(), nn.Linear(3, 2)), vectors()),
    "lstm": (NETWORKS["lstm"], tokens()),
    "transformer": (NETWORKS["transformer"], tokens()),
    "tied": (Tied, tokens()),
    "torch's transformer": (lambda: nn.TransformerEncoderLayer(SIZE, 2, 6, dropout=0.0, batch_first=True), vectors()),
}
LAYERS = {"linear": 2, "lstm": 3, "tied": 3, "torch's transformer": 5}
"""How many there are: attention is one, and the head of the tied model has a bias that is its own."""


def layers_by_hand(module: nn.Module) -> list[list[nn.Parameter]]:
    """The trainable parameters of every module that holds some; of those that are shared, the first has them."""
    seen: set[int] = set()
    found: list[list[nn.Parameter]] = []
    for part in module.modules():
        inside = [part.in_proj_weight, part.in_proj_bias, *part.out_proj.parameters()] if is_attention(part) else None
        own = [p for p in (inside or part.parameters(recurse=False)) if id(p) not in seen]
        seen |= {id(p) for p in own}
        found += [own] if own else []
    return found


def is_attention(part: nn.Module) -> bool:
    return isinstance(part, nn.MultiheadAttention)


def one_by_one(module: nn.Module, inputs: Tensor, norm: float) -> tuple[Sums, Tensor]:
    """A backward pass for each example, each layer of which is cut by hand. Also the norms, `(layers, examples)`."""
    sums = {p: torch.zeros_like(p) for p in module.parameters()}
    layers, norms = layers_by_hand(module), []
    for example in inputs:
        module.zero_grad()
        mean_of_squares(module, example[None]).backward()
        squares = [[float(p.grad.square().sum()) for p in layer if p.grad is not None] for layer in layers]
        norms.append([math.sqrt(sum(those)) for those in squares])
        for layer, length in zip(layers, norms[-1], strict=True):
            weight = min(1.0, norm / math.sqrt(len(layers)) / (length + 1e-6))
            for p in layer:
                sums[p] += weight * p.grad if p.grad is not None else 0.0
    module.zero_grad()
    return sums, torch.tensor(norms, dtype=torch.float64).T


def in_one_pass(module: nn.Module, inputs: Tensor, norm: float) -> tuple[Sums, Clipping]:
    clipping = Clipping(module, max_grad_norm=norm, per_layer=True)
    with clipping:
        clipping.begin(len(inputs))
        mean_of_squares(module, inputs).backward()
        return clipping.clipped_sum(), clipping


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_clipped_as_by_hand(name: str) -> None:
    make, inputs = MODELS[name]
    module = made(make)
    norms = one_by_one(module, inputs, 1.0)[1]
    norm = math.sqrt(len(norms)) * float(norms.median())
    wanted, norms = one_by_one(module, inputs, norm)
    found, clipping = in_one_pass(module, inputs, norm)
    limit = norm / math.sqrt(len(norms))
    assert 0 < int((norms > limit).sum()) < norms.numel()
    assert len(clipping.blocks) == len(norms) == LAYERS.get(name, len(norms))
    torch.testing.assert_close(clipping.block_norms.sort(0)[0], norms.sort(0)[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(clipping.norms, norms.norm(dim=0), rtol=1e-9, atol=1e-9)
    assert clipping.within.tolist() == (norms <= limit).all(0).double().tolist()
    for parameter, total in wanted.items():
        torch.testing.assert_close(found[parameter], total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("times", [1.0, 1e4])
def test_nobody_adds_more_than_the_norm_and_whoever_is_long_everywhere_adds_all_of_it(name: str, times: float) -> None:
    make, inputs = MODELS[name]
    module, norm = made(make), 0.3
    clipping = Clipping(module, max_grad_norm=norm, per_layer=True)
    with clipping:
        for example in inputs:
            clipping.begin(1)
            (times * mean_of_squares(module, example[None])).backward()
            sums = clipping.clipped_sum()
            length = float(torch.stack([part.norm() for part in sums.values()]).norm())
            assert length <= norm * (1 + 1e-4)
            if times > 1:
                assert length >= norm * (1 - 1e-3)


def test_rounding_cannot_hide_a_layer() -> None:
    """Steps that nearly cancel in one layer: its share of the norm is not exceeded in single precision either."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    inputs = torch.randn(4, 2, 8).mul(1e4)
    clipping = Clipping(module, max_grad_norm=1e-3, per_layer=True)
    with clipping:
        clipping.begin(4)
        outputs = module(inputs)
        # One up and one down: what is left of the two in the last layer is rounding, and a little more.
        ((outputs[:, 0] - outputs[:, 1] * (1 + 1e-7)).sum() * 1e4 / 4).backward()
        sums = clipping.clipped_sum()
    for layer in (module[0], module[2]):
        length = torch.stack([sums[p].double().norm() for p in layer.parameters()]).norm()
        assert float(length) <= 4 * 1e-3 / math.sqrt(2) * (1 + 1e-4)


def test_a_layer_that_rests_has_a_share_all_the_same() -> None:
    """How many layers a batch uses may depend on the data; the limit may not."""
    torch.manual_seed(0)
    module = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    clipping = Clipping(module, max_grad_norm=1.0, per_layer=True)
    inputs = 100 * torch.randn(2, 3)
    with clipping:
        clipping.begin(2)
        module["b"](module["a"](inputs)).square().mean().backward()
        clipping.clipped_sum()
        clipping.begin(1)
        module["a"](inputs[:1]).square().sum().backward()
        sums = clipping.clipped_sum()
    length = torch.stack([part.norm() for part in sums.values()]).norm()
    assert float(length) == pytest.approx(math.sqrt(0.5), rel=1e-4)
    assert clipping.block_norms[1].tolist() == [0.0]


def test_flat_clipping_is_one_block_of_all_parameters() -> None:
    module = made(Tied)
    clipping = Clipping(module, max_grad_norm=1.0)
    with clipping:
        assert [set(block) for block in clipping.blocks] == [set(module.parameters())]


def test_the_proof_wants_every_parameter_in_one_block() -> None:
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))
    check_blocks([[one], [other]], [one, other])
    for wrong in ([[one]], [[one, other], [other]], [[one], [other], [nn.Parameter(torch.zeros(1))]]):
        with pytest.raises(FitError, match="in no norm, or in two"):
            check_blocks(wrong, [one, other])
