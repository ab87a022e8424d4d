"""`RowRandomness`: what is drawn for the first rows of a batch is the same, however many there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.privacy.steps.proof.reruns.randomness import RowRandomness

FIXED = 7
"""So many of something are drawn in every batch, whatever its size."""


def draws(rows: int) -> list[Tensor]:
    """One of each kind, of so many rows; and some of a fixed number."""
    zeros = torch.zeros(rows, 2)
    return [
        torch.randn(rows, 2),
        torch.rand(rows, 2),
        torch.randint(10, (rows,)),
        torch.randn_like(zeros),
        zeros.clone().normal_(),
        torch.bernoulli(zeros + 0.5),
        torch.normal(zeros, 1.0),
        nn.Dropout(0.5)(zeros + 1),
        nn.functional.gumbel_softmax(zeros),
        torch.distributions.Normal(0.0, 1.0).sample((rows,)),
        torch.distributions.Categorical(torch.ones(rows, 4)).sample(),
        torch.randn(rows, 2, generator=torch.Generator()),
        torch.randn(FIXED, 3),
        torch.randn(40, 3),
        torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), rows, replacement=True),
        torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), FIXED, replacement=True),
        torch.multinomial(torch.ones(30), rows),
        torch.multinomial(torch.ones(rows, 9), 3),
        torch.multinomial(torch.ones(rows, 9), 1, replacement=True),
        torch.distributions.Categorical(torch.ones(5)).sample((rows,)),
        torch.distributions.Dirichlet(torch.ones(4)).sample((rows,)),
        torch.distributions.Dirichlet(torch.ones(4)).sample(),
        torch.normal(torch.zeros(2), torch.ones(rows, 2)),
        zeros.clone().bernoulli_(torch.tensor([0.3, 0.6])),
        torch.randn(rows, 2, out=torch.empty(rows, 2)),
        nn.functional.rrelu(zeros - 1, training=True),
    ]


@pytest.mark.parametrize("few", [1, 3, 17])
def test_rows_have_the_same_random_numbers_in_every_batch(few: int) -> None:
    before = torch.get_rng_state()
    with RowRandomness(20):
        many = draws(20)
    with RowRandomness(20):
        some = draws(few)
    assert torch.equal(torch.get_rng_state(), before)
    for whole, part in zip(many, some, strict=True):
        assert torch.equal(whole[: len(part)], part)
    assert len({float(values.double().sum()) for values in many[:14]}) > 14 - 3, "draws differ"
    assert float(many[0].std()) > 0.5


def test_what_belongs_to_classes_is_no_row() -> None:
    """Weights of three classes are not weights of three examples."""
    weights = torch.tensor([0.5, 0.0, 0.5])
    with RowRandomness(20):
        some = torch.multinomial(weights, 8, replacement=True)
        one = torch.multinomial(weights, 1, replacement=True)
        different = torch.multinomial(torch.ones(3), 3)
        many = torch.multinomial(weights, 4000, replacement=True)
        shares = torch.distributions.Dirichlet(torch.ones(3)).sample()
        into = torch.empty(8, dtype=torch.long)
        torch.multinomial(weights, 8, replacement=True, out=into)
    assert [some.shape, one.shape, into.shape] == [(8,), (1,), (8,)]
    assert set(some.tolist()) | set(one.tolist()) | set(into.tolist()) <= {0, 2}
    assert sorted(different.tolist()) == [0, 1, 2]
    assert 1800 < int((many == 0).sum()) < 2200
    assert float(shares.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [2, 3])
def test_what_belongs_to_columns_is_no_row(rows: int) -> None:
    """Also where there are as many rows as columns."""
    with RowRandomness(20):
        never, always = torch.zeros(rows, 3).bernoulli_(torch.tensor([0.0, 1.0, 1.0])).split([1, 2], dim=1)
        near = torch.normal(torch.tensor([0.0, 100.0, 200.0]), torch.full((rows, 3), 0.1))
    assert never.sum() == 0
    assert always.sum() == 2 * rows
    assert near.shape == (rows, 3)
    assert near.round(decimals=-2)[0].tolist() == [0.0, 100.0, 200.0]


def test_what_is_written_besides_the_answer_is_written() -> None:
    """A leaky unit with random slopes: what it has drawn stands where its gradient finds it, and its input is kept."""
    inputs = (-torch.ones(3, 4)).requires_grad_()
    with RowRandomness(20):
        answers = nn.functional.rrelu(inputs, training=True)
    answers.sum().backward()
    assert torch.equal(inputs.detach(), -torch.ones(3, 4))
    assert torch.equal(inputs.grad, -answers.detach()), "the slope is the negative answer to -1"


def test_attention_with_masks_is_what_it_is_without() -> None:
    queries, mask = torch.randn(3, 2, 5, 4), torch.ones(3, 1, 5, 5).tril().bool()
    square = torch.randn(5, 2, 5, 4)
    plain = [
        nn.functional.scaled_dot_product_attention(queries, queries, queries, attn_mask=mask),
        nn.functional.scaled_dot_product_attention(square, square, square, attn_mask=mask[0, 0]),
    ]
    with RowRandomness(20):
        again = [
            nn.functional.scaled_dot_product_attention(queries, queries, queries, attn_mask=mask),
            nn.functional.scaled_dot_product_attention(square, square, square, attn_mask=mask[0, 0]),
        ]
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
