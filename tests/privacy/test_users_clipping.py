"""Clipping by user, against the slow and obvious way: each gradient alone, by plain autograd, clipped, summed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.users.grouping import Grouped, spans_of
from tests.privacy.models import NETWORKS, ROWS, SIZE, TIME, Scale, Tied, made
from tests.privacy.per_example import Loss, Sums, mean_of_squares

GROUPS = (3, 1, 5, 1, 2, 4)
"""Users of one to five records in one batch."""
RECORDS = sum(GROUPS)


def vectors() -> Tensor:
    return torch.randn(RECORDS, TIME, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(0, ROWS, (RECORDS, TIME), generator=torch.Generator().manual_seed(1))


class Encoder(nn.Module):
    """PyTorch's own attention, with residual connections and norms."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.encoder(inputs)
        return outputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 2)  # time first

    def forward(self, inputs: Tensor) -> Tensor:
        steps = inputs.transpose(0, 1)
        outputs: Tensor = self.attention(steps, steps, steps)[0].transpose(0, 1)
        return outputs


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(SIZE, 7), vectors),
    "linear without time": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(SIZE * TIME, 3)), vectors),
    "embedding": (lambda: nn.Embedding(ROWS, SIZE), tokens),
    "layer norm": (lambda: nn.Sequential(nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)), vectors),
    "convolution": (lambda: nn.Conv1d(TIME, 3, 2), vectors),
    "lstm": (lambda: nn.LSTM(SIZE, 5, num_layers=2, batch_first=True), vectors),
    "lstm of two directions": (lambda: nn.LSTM(SIZE, 5, bidirectional=True, proj_size=2, batch_first=True), vectors),
    "gru": (lambda: nn.GRU(SIZE, 5, batch_first=True), vectors),
    "attention": (Attention, vectors),
    "encoder": (Encoder, vectors),
    "tied weights": (Tied, tokens),
    "a layer of the user's own": (Scale, vectors),
    **{f"{name} network": (make, tokens) for name, make in NETWORKS.items()},
}


def user_by_user(module: nn.Module, inputs: Tensor, norm: float, loss: Loss = mean_of_squares) -> tuple[Sums, Tensor]:
    """The clipped sum and the norms, from a backward pass for each record of each user."""
    sums = {p: torch.zeros_like(p) for p in module.parameters() if p.requires_grad}
    norms = []
    for span in spans_of(Grouped(GROUPS)):
        module.zero_grad()
        for record in span:
            loss(module, inputs[record : record + 1]).backward()  # autograd adds them up
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in sums]
        norms.append(torch.cat([gradient.flatten() for gradient in found]).norm())
        for total, gradient in zip(sums.values(), found, strict=True):
            total += gradient * (norm / (norms[-1] + 1e-6)).clamp(max=1)
    module.zero_grad()
    return sums, torch.stack(norms)


def in_one_pass(module: nn.Module, inputs: Tensor, norm: float, groups: tuple[int, ...] = GROUPS) -> Clipping:
    clipping = Clipping(module, max_grad_norm=norm)
    clipping.attach()
    clipping.begin(Grouped(groups))
    mean_of_squares(module, inputs).backward()
    return clipping


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_of_the_gradients_of_each_user_is_clipped(name: str) -> None:
    make, data = MODELS[name]
    module, inputs = made(make), data()
    norms = user_by_user(module, inputs, 1.0)[1]
    norm = float(norms.min() + norms.max()) / 2
    wanted, wanted_norms = user_by_user(module, inputs, norm)
    assert 0 < int((wanted_norms > norm).sum()) < len(GROUPS)
    clipping = in_one_pass(module, inputs, norm)
    found = clipping.clipped_sum()
    torch.testing.assert_close(clipping.norms, wanted_norms, rtol=1e-10, atol=1e-10)
    assert clipping.within.tolist() == (wanted_norms <= norm).double().tolist()
    for parameter, total in wanted.items():
        torch.testing.assert_close(found[parameter], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [(1,) * RECORDS, (4,) * 4, (RECORDS,), (15, 1)])
def test_users_with_one_record_all_equal_or_only_one_of_them(groups: tuple[int, ...]) -> None:
    module, inputs = made(lambda: RecurrentModel()), tokens()
    raw = {}
    for span, size in zip(spans_of(Grouped(groups)), groups, strict=True):
        module.zero_grad()
        (mean_of_squares(module, inputs[span.start : span.stop]) * size).backward()
        raw[span.start] = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    clipping = in_one_pass(module, inputs, 0.3, groups)
    found = torch.cat([total.flatten() for total in clipping.clipped_sum().values()])
    wanted = sum(g * (0.3 / (g.norm() + 1e-6)).clamp(max=1) for g in raw.values())
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


class RecurrentModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = NETWORKS["lstm"]()

    def forward(self, ids: Tensor) -> Tensor:
        outputs: Tensor = self.net(ids)
        return outputs


def test_a_batch_without_users_counts_as_nothing() -> None:
    module = made(lambda: nn.Linear(SIZE, 2))
    clipping = Clipping(module, max_grad_norm=1.0)
    with clipping:
        clipping.begin(Grouped([]))
        module(vectors()[:1]).sum().backward()
        assert not any(bool(total.any()) for total in clipping.clipped_sum().values())
        assert len(clipping.norms) == 0


def test_the_gradients_of_single_users_can_be_had() -> None:
    module, inputs = made(lambda: nn.GRU(SIZE, 5, batch_first=True)), vectors()
    clipping = in_one_pass(module, inputs, 1.0)
    found = dict(clipping.gradients_of([2, 0]))
    spans = spans_of(Grouped(GROUPS))
    for place, user in enumerate([2, 0]):
        clipping.detach()
        module.zero_grad()
        (mean_of_squares(module, inputs[spans[user].start : spans[user].stop]) * GROUPS[user]).backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name][place], parameter.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [nn.Linear, nn.Embedding])
def test_records_of_a_user_that_cancel_are_not_measured_as_nothing(kind: type[nn.Module]) -> None:
    """In single precision: what a user adds to the sum is within the norm, whatever rounding makes of his records."""
    torch.manual_seed(0)
    module: nn.Module = nn.Linear(40, 30) if kind is nn.Linear else nn.Embedding(30, 40)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    inputs = torch.randn(1, 5, 40) if kind is nn.Linear else torch.randint(30, (1, 5))
    pull = 1e4 * torch.randn(1, 5, module.weight.shape[0 if kind is nn.Linear else 1])

    def loss(model: nn.Module, dtype: torch.dtype) -> Tensor:
        rows = inputs.expand(4, *inputs.shape[1:])
        outputs = model(rows.to(dtype) if kind is nn.Linear else rows)
        # The fourth record undoes the third but for a little.
        weights = signs.to(dtype) * torch.tensor([1, 1, 1, 1 - 1e-4], dtype=torch.float64).to(dtype)
        return (outputs * pull.to(dtype) * weights[:, None, None]).sum() / 4

    clipping = Clipping(module, max_grad_norm=1.0)
    with clipping:
        clipping.begin(Grouped([4]))
        loss(module, torch.float32).backward()
        found = clipping.clipped_sum()
    length = float(torch.cat([total.double().flatten() for total in found.values()]).norm())
    assert length <= 1 + 1e-4
    exact = copy.deepcopy(module).double()
    (loss(exact, torch.float64) * 4).backward()
    wanted = torch.cat([p.grad.flatten() for p in exact.parameters() if p.grad is not None])
    assert float(clipping.norms) == pytest.approx(float(wanted.norm()), rel=2e-2)
    assert length > 0.9


def test_gradients_that_are_no_numbers_are_those_of_users() -> None:
    module = made(lambda: nn.Linear(SIZE, 2))
    inputs = vectors()
    inputs[4] = torch.inf
    clipping = in_one_pass(module, inputs, 1.0)
    with pytest.raises(ModelError, match=f"gradients of 1 of {len(GROUPS)} users are infinite"):
        clipping.clipped_sum()


def test_copies_of_a_number_of_examples_know_their_users() -> None:
    assert copy.deepcopy(Grouped([2, 3])).groups == (2, 3)
