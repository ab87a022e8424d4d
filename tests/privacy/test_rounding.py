"""Nobody adds more than max_grad_norm to a step, whatever the example, rounding included; and nobody much less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Rows, Whole, weighted_sum
from lightning_exposure.privacy.clipping.norms import measure, squares_of, squares_of_formed
from lightning_exposure.privacy.clipping.rounding import full_precision, lengths, outer_sum, pairs
from tests.privacy.models import Tied

NORM = 1.0
STATED = 1 + 1e-5
"""What rounding may add to max_grad_norm."""


def contribution(
    model: nn.Module, inputs: Tensor, loss: Callable[[Any, Tensor], Tensor], norm: float = NORM
) -> tuple[float, float]:
    """How long the clipped sum of one example is, and the norm that was measured."""
    with Clipping(model, max_grad_norm=norm) as clipping:
        clipping.begin(1)
        loss(model, inputs).backward()
        sums = clipping.clipped_sum()
    return length_of(sums.values()), float(clipping.norms)


def length_of(parts: Any) -> float:
    return float(torch.cat([part.double().flatten() for part in parts]).norm())


def difference_of_steps(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs = model(inputs)
    total: Tensor = (outputs[:, 0] - outputs[:, 1]).sum() / 8**0.5
    return total


# --- examples whose steps cancel ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("large", "small"), [(1e6, 150), (1e7, 2000), (1e6, 237), (1e8, 3e4), (1e13, 1e9), (1e19, 1e15)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_steps_that_cancel_hide_nothing(large: float, small: float, bias: bool) -> None:
    inputs = torch.zeros(1, 2, 8)
    inputs[..., 0] = large
    inputs[0, 1, 1] = small
    added, norm = contribution(nn.Linear(8, 8, bias=bias), inputs, difference_of_steps)
    # Neither is it clipped much too far.
    assert 0.99 * NORM < added <= STATED * NORM
    assert norm == pytest.approx(small, rel=0.01)


def test_the_sum_of_a_gradient_that_is_nothing_but_rounding_is_bounded_too() -> None:
    # The steps cancel to the last digit, if no digit is lost; a million times its products could be left of them.
    generator = torch.Generator().manual_seed(0)
    half = 1e9 * torch.rand(1, 64, 32, generator=generator)
    inputs = torch.cat([half, half.flip(1)], 1)
    signs = torch.cat([torch.ones(64), -torch.ones(64)])[None, :, None]
    added, _ = contribution(nn.Linear(32, 32, bias=False), inputs, lambda m, x: (m(x) * signs).sum())
    assert added <= STATED * NORM


def test_a_table_that_is_also_a_linear_map_may_cancel_itself() -> None:
    # The gradient of the lookups is the negative of that of the linear map, up to a little.
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            total: Tensor = (self.head(self.inputs) * self.left).sum() + (self.table(ids) * self.looked_up).sum()
            return total

    for size in (1e5, 1e7, 1e9):
        model: Any = Both()
        model.inputs, model.left = torch.full((1, 1, 4), size), torch.zeros(1, 1, 6)
        model.left[0, 0, 2] = 1.0
        model.looked_up = torch.full((1, 1, 4), -size)
        model.looked_up[0, 0, 1] += 1e-4 * size
        added, norm = contribution(model, torch.full((1, 1), 2), lambda m, ids: m(ids))
        assert 0.99 * NORM < added <= STATED * NORM
        assert norm == pytest.approx(1e-4 * size, rel=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv1d(3, 4, 2, bias=False)),
        lambda: nn.Sequential(nn.Conv1d(3, 4, 2, padding=1)),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 2)),
    ],
)
def test_windows_that_cancel(make: Callable[[], nn.Module]) -> None:
    model = make()
    shape = (1, 3, 6, 6) if isinstance(model[0], nn.Conv2d) else (1, 3, 6)  # type: ignore[index]
    inputs = torch.full(shape, 1e7)
    inputs.view(-1)[0] += 500
    signs = (-1.0) ** torch.arange(model(inputs).shape[-1])
    added, _ = contribution(model, inputs, lambda m, x: (m(x) * signs).sum())
    assert added <= STATED * NORM


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 2}], ids=["", "both", "projected"])
def test_the_steps_of_recurrent_layers_that_cancel(kind: type[Any], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    if "proj_size" in options and kind is not nn.LSTM:
        options = {"num_layers": 2}
    model = kind(4, 3, batch_first=True, **options)
    inputs = torch.full((1, 6, 4), 1e6)
    inputs[0, :, 1] = torch.linspace(0, 1e3, 6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1e-6
    signs = (-1.0) ** torch.arange(6)[None, :, None]
    added, _ = contribution(model, inputs, lambda m, x: (m(x)[0] * signs).sum())
    assert 0 < added <= STATED * NORM


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"kdim": 3, "vdim": 3}], ids=["one", "bias", "three"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_steps_of_attention_that_cancel(options: dict[str, Any], need_weights: bool) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(4, 2, batch_first=True, **options)
    inputs = torch.full((1, 6, 4), 1e6)
    inputs[0, :, 1] = torch.linspace(0, 1e3, 6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1e-6
    signs = (-1.0) ** torch.arange(6)[None, :, None]

    def loss(attention: Any, x: Tensor) -> Tensor:
        read = x[..., : attention.kdim]
        total: Tensor = (attention(x, read, read, need_weights=need_weights)[0] * signs).sum() * 1e12
        return total

    added, _ = contribution(model, inputs, loss)
    assert 0 < added <= STATED * NORM


# --- numbers at the ends of their range -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e19, 1e20, 1e30, 1e37])
@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e6])
def test_numbers_whose_squares_do_not_fit(size: float, norm: float) -> None:
    inputs = torch.full((1, 3, 4), size)
    added, measured = contribution(nn.Linear(4, 2), inputs, lambda m, x: m(x).sum(), norm)
    assert added <= STATED * norm
    assert added >= 0.99 * min(norm, 3 * (1 + 2 * size**2) ** 0.5)
    assert measured == pytest.approx(((3 * size) ** 2 * 8 + 18) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("left", [1e-30, 1e-25, 1e-23, 1e-20, 1e10])
@pytest.mark.parametrize("right", [1e10, 1e18, 1e19, 1e25, 1e30])
def test_a_tiny_factor_beside_a_huge_one(left: float, right: float) -> None:
    inputs = torch.full((1, 50, 16), right)
    added, _ = contribution(nn.Linear(16, 16, bias=False), inputs, lambda m, x: left * m(x).sum())
    assert added <= STATED * NORM
    assert added == pytest.approx(min(1.0, 50 * left * right * 16), rel=0.01)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_shortcuts_in_matrix_products_are_left_out(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        settings_before = _settings()
        with full_precision(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest" or set(_settings()) == {"ieee"}
        assert torch.get_float32_matmul_precision() == precision
        assert _settings() == settings_before
        inputs = torch.zeros(1, 2, 8)
        inputs[..., 0] = 1e6
        inputs[0, 1, 1] = 150
        assert contribution(nn.Linear(8, 8, bias=False), inputs, difference_of_steps)[0] <= STATED * NORM
    finally:
        torch.set_float32_matmul_precision(before)


def _settings() -> list[str]:
    backends: list[Any] = [getattr(torch.backends, name) for name in ("cuda", "mkldnn")]
    return [one.matmul.fp32_precision for one in backends if hasattr(getattr(one, "matmul", None), "fp32_precision")]


# torch.backends.mkldnn.flags, on machines without Intel's GPUs
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_a_sum_that_is_asked_for_under_autocast_is_not_cast() -> None:
    inputs = torch.zeros(1, 2, 8)
    inputs[..., 0] = 1e4
    inputs[0, 1, 1] = 150
    model = nn.Linear(8, 8, bias=False)
    with (
        torch.backends.mkldnn.flags(enabled=False),
        Clipping(model, max_grad_norm=NORM) as clipping,
        torch.autocast("cpu", torch.bfloat16),
    ):
        clipping.begin(1)
        difference_of_steps(model, inputs).backward()
        assert 0.98 * NORM < length_of(clipping.clipped_sum().values()) <= STATED * NORM


# --- long and healthy sequences are not clipped for the sake of a bound ---------------------------------------------


@pytest.mark.parametrize(
    ("steps", "rows", "columns"), [(20, 800, 200), (128, 768, 64), (300, 500, 900), (1024, 48, 48)]
)
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_healthy_norms_are_within_a_thousandth(steps: int, rows: int, columns: int, mean: float) -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(3, steps, rows, generator=generator)
    right = torch.randn(3, steps, columns, generator=generator) + mean
    part = Products(left, right)
    found = measure([[part]], 1.0)
    exact = torch.linalg.matrix_norm(Products(left.double(), right.double()).whole())
    assert bool((found.norms * STATED >= exact).all())
    torch.testing.assert_close(found.norms, exact, rtol=1.1e-3, atol=0.0)


def test_an_example_that_is_computed_again_leaves_the_others_as_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    inputs = torch.randn(4, 2, 8)
    with Clipping(model, max_grad_norm=NORM, loss_reduction="sum") as clipping:
        clipping.begin(4)
        difference_of_steps(model, inputs).backward()
        plain, norms = clipping.clipped_sum()[model.weight], clipping.norms
        inputs = torch.cat([inputs, torch.zeros(1, 2, 8)])
        inputs[4, :, 0], inputs[4, 1, 1] = 1e6, 150
        clipping.begin(5)
        difference_of_steps(model, inputs).backward()
        both = clipping.clipped_sum()[model.weight]
    torch.testing.assert_close(clipping.norms[:4], norms)
    assert float((both - plain).norm()) <= STATED * NORM


# --- a search for counterexamples -----------------------------------------------------------------------------------


def exact_square(parts: Sequence[Gradient]) -> Fraction:
    """The squared norm of the gradient of the first example, in exact arithmetic."""
    entries: dict[tuple[int, ...], Fraction] = {}
    for part in parts:
        if isinstance(part, Products):
            for one, other in zip(part.left[0].tolist(), part.right[0].tolist(), strict=True):
                for row, a in enumerate(one):
                    for column, b in enumerate(other):
                        key = (row, column)
                        entries[key] = entries.get(key, Fraction(0)) + Fraction(a) * Fraction(b)
        elif isinstance(part, Rows):
            for row, values in zip(part.indices[0].tolist(), part.values[0].tolist(), strict=True):
                for column, value in enumerate(values):
                    entries[row, column] = entries.get((row, column), Fraction(0)) + Fraction(value)
        else:
            for column, value in enumerate(part.values[0].flatten().tolist()):
                entries[0, column] = Fraction(value)
    return sum((value**2 for value in entries.values()), Fraction(0))


@st.composite
def factors(draw: st.DrawFn, columns: int, steps: int) -> Tensor:
    """Rows that often repeat, up to their last digits, at any scale."""
    scale = 2.0 ** draw(st.integers(-70, 60))
    base = draw(st.lists(st.integers(-9, 9), min_size=columns, max_size=columns))
    rows = []
    for _ in range(steps):
        sign, nudge = draw(st.sampled_from([1, 1, -1])), draw(st.sampled_from([0.0, 1e-7, 1e-4, 0.5]))
        own = draw(st.lists(st.integers(-9, 9), min_size=columns, max_size=columns))
        rows.append([scale * (sign * a + nudge * b) for a, b in zip(base, own, strict=True)])
    return torch.tensor([rows], dtype=torch.float32)


@st.composite
def gradients(draw: st.DrawFn) -> list[Gradient]:
    rows, columns, steps = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["products", "rows", "both", "whole"]))
    parts: list[Gradient] = []
    if kind in ("products", "both"):
        parts.append(Products(draw(factors(rows, steps)), draw(factors(columns, steps))))
    if kind in ("rows", "both"):
        indices = draw(st.lists(st.integers(0, rows - 1), min_size=steps, max_size=steps))
        parts.append(Rows(torch.tensor([indices]), draw(factors(columns, steps)), rows))
    if kind == "whole":
        parts.append(Whole(draw(factors(columns, 1))[0]))
    return parts


@settings(max_examples=300)
@given(gradients())
def test_no_error_exceeds_its_bound(parts: list[Gradient]) -> None:
    truth = exact_square(parts)
    wide = [part.of(torch.tensor([0])) for part in parts]
    for way, given_parts in ((squares_of, parts), (squares_of, wide), (squares_of_formed, wide)):
        values, errors, _, _ = way([given_parts])
        if bool((values + errors).isfinite()):
            assert abs(Fraction(float(values)) - truth) <= Fraction(float(errors)) * (1 + Fraction(1, 10**9))


@settings(max_examples=300)
@given(gradients(), st.sampled_from([1e-3, 1.0, 1e3]))
def test_no_contribution_exceeds_the_norm(parts: list[Gradient], norm: float) -> None:
    found = measure([parts], norm)
    weight = (norm / found.norms).clamp(max=1.0)
    total = weighted_sum(parts, weight, found.apart[0], torch.zeros_like(parts[0].whole()[0]))
    assert length_of([total]) <= STATED * norm
    # And what is clipped is clipped for its norm, not for a bound.
    truth = float(exact_square(parts)) ** 0.5
    reach = float(squares_of([[part.of(torch.tensor([0])) for part in parts]]).reach)
    assert float(found.norms) <= 1.01 * truth + 2e-3 * norm + 1e-12 * reach


@pytest.mark.parametrize("seed", range(4))
def test_gradient_ascent_finds_no_example_that_adds_more(seed: int) -> None:
    # Moves inputs to where the true norm is large beside what the products of pairs show of it.
    generator = torch.Generator().manual_seed(seed)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])[None, :, None] / 8**0.5
    left = signs.expand(1, 4, 8).contiguous()
    inputs = 10.0 ** (4 + seed) * torch.randn(1, 1, 8, generator=generator).expand(1, 4, 8)
    inputs = inputs + 100 * torch.randn(1, 4, 8, generator=generator)
    found = []
    for _ in range(25):
        inputs = inputs.detach().requires_grad_()
        true = Products(left.double(), inputs.double()).whole().norm()
        computed = (pairs(left, left) * pairs(inputs, inputs)).sum().clamp(min=0).sqrt()
        (uphill,) = torch.autograd.grad(true.log() - (computed + 1).log(), inputs)
        inputs = inputs.detach() + 0.05 * inputs.detach().abs().mean() * uphill / (uphill.norm() + 1e-30)
        found.append(contribution(nn.Linear(8, 8, bias=False), inputs, lambda m, x: (m(x) * signs).sum())[0])
    assert 0.9 * NORM < max(found) <= STATED * NORM


def test_a_whole_model_is_within_the_norm_at_any_scale_of_its_weights() -> None:
    for power in range(-6, 7, 2):
        torch.manual_seed(0)
        model = Tied()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 10.0**power
        ids = torch.randint(0, 9, (1, 30))
        added, _ = contribution(model, ids, lambda m, x: m(x).logsumexp(-1).sum() - m(x)[..., 0].sum())
        assert added <= STATED * NORM


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1500])
def test_products_in_blocks_are_products(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(2, 3, size, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(pairs(left, right), left @ right.mT)
    torch.testing.assert_close(outer_sum(left.mT, right.mT), left @ right.mT)
    torch.testing.assert_close(outer_sum(left[0].mT, right[0].mT), left[0] @ right[0].mT)


@pytest.mark.parametrize("shape", [(2, 3), (2, 1024), (2, 1025), (3, 50, 70), (2, 0)])
def test_lengths_are_norms(shape: tuple[int, ...]) -> None:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(lengths(values), values.double().flatten(1).norm(dim=1), rtol=1e-6, atol=0.0)
