"""The tree agrees with one full forward pass per candidate, and leaves the model as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.errors import ArgumentError, ModelError, SecretError, TokenizerError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import enumerate_leaves, score
from tests import oracle
from tests.cases import CASES, CHARACTERS, Case
from tests.toys import Constant, MergingTokenizer, Recurrent, Stateless, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_secret_stands_once_in_the_tree_at_the_cost_the_oracle_gives(case: Case) -> None:
    tree = case.tree(batch_size=7)
    found: dict[str, float] = {}
    for leaves in enumerate_leaves(tree):
        for path, cost in zip(leaves.paths, leaves.costs, strict=True):
            text = tree.text(tokens_of(path))
            assert text not in found
            found[text] = cost
    assert found.keys() == case.costs.keys()
    assert max(abs(found[text] - case.costs[text]) for text in found) < 1e-9


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_float32_costs_agree_with_the_oracle_to_a_ten_thousandth_of_a_bit(cell: type[nn.RNNBase]) -> None:
    model = sharpened(Recurrent(CHARS.vocab_size, cell, width=48), seed=3, dtype=torch.float32)
    format = SecretFormat("my pin is ###")
    expected = oracle.costs(model, format, CHARS)
    given = score(SecretTree(model, format, CHARS), list(expected)).costs
    assert np.abs(given - np.array(list(expected.values()))).max() < 1e-4


def test_the_prompt_costs_nothing_and_the_text_after_the_first_blank_does() -> None:
    tree = SecretTree(Constant(CHARS.vocab_size), SecretFormat("a long prompt before #-#."), CHARS)
    assert score(tree, ["a long prompt before 1-2."]).costs[0] == pytest.approx(4 * math.log2(CHARS.vocab_size))


def test_the_tree_starts_at_the_last_token_boundary_that_all_secrets_share() -> None:
    # " 3" is one token, so the space of the prompt belongs to the tree: it is spelled with or without the digit.
    tree = SecretTree(Stateless(43), SecretFormat("pin is ##"), MergingTokenizer(CHARACTERS))
    assert tree.spelling.root_text == "pin is"
    assert [tokens_of(row) for row in tree.paths(["pin is 35", "pin is 53"])] == [
        MergingTokenizer(CHARACTERS).encode(" 35"),
        MergingTokenizer(CHARACTERS).encode(" 53"),
    ]


def test_a_leaf_in_another_tokenization_than_the_canonical_one_is_no_leaf() -> None:
    tokenizer = MergingTokenizer(CHARACTERS)
    tree = SecretTree(Stateless(43), SecretFormat("ab ##"), tokenizer)
    paths = [tokens_of(path) for leaves in enumerate_leaves(tree) for path in leaves.paths]
    assert len(paths) == 100
    assert tokenizer.encode("12") in [path[-1:] for path in paths]
    assert [tokenizer.encode(" ")[0], tokenizer.encode("1")[0], tokenizer.encode("2")[0]] not in paths


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[9], CASES[3]], ids=str)
def test_revived_nodes_expand_to_the_same_children(case: Case) -> None:
    tree = case.tree()
    first = tree.root()
    second = tree.expand(first.take(np.flatnonzero(first.open)))
    both = second.take(np.flatnonzero(second.open)[::3])
    again = tree.expand(tree.revive(both.paths, both.places, both.costs))
    direct = tree.expand(both)
    np.testing.assert_array_equal(again.tokens, direct.tokens)
    np.testing.assert_allclose(again.costs, direct.costs, atol=1e-9)


def test_nodes_of_different_depths_can_be_revived_together() -> None:
    tree = CASES[0].tree()
    first = tree.root()
    second = tree.expand(first.take(np.arange(4)))
    shallow, deep = first.take(np.array([5])), second.take(np.array([11]))
    paths = np.array([[*deep.paths[0]], [*shallow.paths[0], -1]], dtype=np.int32)
    places, costs = np.concatenate([deep.places, shallow.places]), np.concatenate([deep.costs, shallow.costs])
    children = tree.expand(tree.revive(paths, places, costs))
    for row, nodes in enumerate([deep, shallow]):
        np.testing.assert_allclose(children.costs[children.parents == row], tree.expand(nodes).costs, atol=1e-9)


def test_measuring_leaves_every_mode_the_gradients_and_autocast_as_they_were() -> None:
    model = Recurrent(CHARS.vocab_size)
    model.train()
    model.drop.eval()
    modes = [part.training for part in model.modules()]
    tree = SecretTree(model, SecretFormat("pin ##"), CHARS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        score(tree, ["pin 12"])
        assert torch.is_autocast_enabled("cpu")
    assert [part.training for part in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_dropout_is_off_while_measuring() -> None:
    model = Recurrent(CHARS.vocab_size).train()
    tree = SecretTree(model, SecretFormat("pin ##"), CHARS)
    assert score(tree, ["pin 12"]).costs == score(tree, ["pin 12"]).costs


def test_modes_are_given_back_after_an_exception_too() -> None:
    model = Recurrent(CHARS.vocab_size).train()
    tree = SecretTree(model, SecretFormat("pin ##"), CHARS)
    model.drop.eval()
    modes = [part.training for part in model.modules()]
    with torch.no_grad():
        model.out.bias.fill_(math.nan)
    with pytest.raises(ModelError, match="NaN or infinite logits in 1 of 1 rows"):
        score(tree, ["pin 12"])
    assert [part.training for part in model.modules()] == modes


def test_no_global_random_state_is_touched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    score(SecretTree(Recurrent(CHARS.vocab_size), SecretFormat("pin ##"), CHARS), ["pin 12"])
    # Making the toy model draws; measuring again must not.
    tree = SecretTree(Recurrent(CHARS.vocab_size), SecretFormat("pin ##"), CHARS)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    score(tree, ["pin 12"])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


class TestBadInput:
    def test_a_format_with_characters_that_the_tokenizer_lacks(self) -> None:
        with pytest.raises(TokenizerError, match=r"needs what the tokenizer cannot spell.*character '6'"):
            SecretTree(Constant(9), SecretFormat("pin ##"), CharTokenizer.from_text("pin 012345"))

    def test_a_tokenizer_that_spells_digits_as_unknown(self) -> None:
        tokenizer = CharTokenizer.from_text("pin 012345", unknown=True)
        with pytest.raises(TokenizerError, match="an <unk>"):
            SecretTree(Constant(tokenizer.vocab_size), SecretFormat("pin ##"), tokenizer)

    def test_a_format_without_a_prompt(self) -> None:
        with pytest.raises(TokenizerError, match="Begin the pattern with the text"):
            SecretTree(Constant(CHARS.vocab_size), SecretFormat("##"), CHARS)

    def test_a_model_whose_vocabulary_is_smaller_than_the_tokenizers(self) -> None:
        tree = SecretTree(Constant(5), SecretFormat("pin ##"), CHARS)
        with pytest.raises(ModelError, match=r"shape \(1, 5\).*at least 40"):
            score(tree, ["pin 12"])

    def test_a_text_that_is_no_secret_of_the_format(self) -> None:
        tree = SecretTree(Constant(CHARS.vocab_size), SecretFormat("pin ##"), CHARS)
        with pytest.raises(SecretError, match="x"):
            score(tree, ["pin 12", "pin 1x"])
        with pytest.raises(SecretError, match="position 4 is a character that is not ASCII"):
            score(tree, ["pin é2"])

    def test_a_batch_size_of_zero(self) -> None:
        with pytest.raises(ArgumentError, match="batch_size is 0"):
            SecretTree(Constant(CHARS.vocab_size), SecretFormat("pin ##"), CHARS, batch_size=0)


def test_a_spelling_of_another_format_is_refused() -> None:
    spelling = CASES[0].tree().spelling
    with pytest.raises(ArgumentError, match=r"tokenizer is a Spelling of .*; expected one of"):
        SecretTree(CASES[0].model, SecretFormat("another ###"), spelling)
    assert SecretTree(CASES[0].model, CASES[0].format, spelling).size == CASES[0].format.size
