"""A Hugging Face model read token by token gives the numbers of full passes, and is left exactly as it was."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from lightning_exposure.errors import ModelError
from lightning_exposure.walks import best_first, score
from tests import oracle
from tests.adapters.hf_models import CHARS, MODELS, Logits, build, full_pass, gpt2, llama, mamba, mistral, read

PIN = SecretFormat("my pin is #-#")


@contextmanager
def tokens_read(model: nn.Module) -> Iterator[list[int]]:
    """How many tokens each call of the model reads."""
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: calls.append(given[0].numel()))
    try:
        yield calls
    finally:
        hook.remove()


@pytest.mark.parametrize("name", MODELS)
def test_every_secret_costs_what_a_full_pass_gives(name: str) -> None:
    make, way = MODELS[name]
    model = make()
    tree = SecretTree(model, PIN, CHARS, batch_size=64)
    assert isinstance(tree.model, HuggingFaceAdapter)
    assert tree.model.way == way
    assert (tree.model.why is None) == (way == "attention")
    expected = oracle.costs(Logits(model), PIN, CHARS)
    given = score(tree, list(expected)).costs
    assert np.ptp(given) > 1.0  # secrets differ, or nothing would be shown
    np.testing.assert_allclose(given, list(expected.values()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("way", ["cache", "recompute"])
@pytest.mark.parametrize("make", [gpt2, llama, mistral])
def test_the_slower_ways_give_the_same_numbers(make: Any, way: str) -> None:
    model, secrets = make(), PIN.sample(20, seed=0)
    fast = score(SecretTree(model, PIN, CHARS), secrets).costs
    slow = score(SecretTree(HuggingFaceAdapter(model, way=way), PIN, CHARS), secrets).costs
    np.testing.assert_allclose(slow, fast, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "mistral", "gemma2", "gpt-neox", "bloom", "llama4", "mamba"])
def test_rows_of_different_depths_are_read_together_as_if_alone(name: str) -> None:
    model = MODELS[name][0]()
    adapter = HuggingFaceAdapter(model)
    prompt, suffixes = [3, 1, 4, 1, 5, 9, 2], [[7, 8, 9, 3, 1, 2], [5], [6, 4, 4]]
    with torch.no_grad():
        states = [read(adapter, prompt, suffix[:-1])[1] for suffix in suffixes]
        logits, after = adapter.step(adapter.concatenate(states), torch.tensor([suffix[-1] for suffix in suffixes]))
        for row, suffix in enumerate(suffixes):
            torch.testing.assert_close(logits[row], full_pass(model, prompt + suffix), rtol=0, atol=1e-4)
        # Picked out again, in another order and twice, each still stands at its own place.
        order = [2, 0, 2]
        logits, _ = adapter.step(adapter.select(after, torch.tensor(order)), torch.tensor([1, 2, 3]))
        for row, (which, token) in enumerate(zip(order, [1, 2, 3], strict=True)):
            right = full_pass(model, [*prompt, *suffixes[which], token])
            torch.testing.assert_close(logits[row], right, rtol=0, atol=1e-4)


class TestThePromptIsShared:
    def test_rows_keep_only_their_own_tokens(self) -> None:
        adapter = HuggingFaceAdapter(gpt2())
        sizes = []
        with torch.no_grad():
            for length in (5, 40):
                _, state = adapter.start(list(range(1, 36))[:length] + [2] * (length - 35))
                _, state = adapter.step(adapter.select(state, torch.zeros(10, dtype=torch.long)), torch.arange(10))
                sizes.append(adapter.bytes_of(state))
        layers, width, rows = 3, 16, 10
        assert sizes == [rows * (layers * 2 * width * 4 + 8)] * 2

    def test_one_prompt_serves_all_rows_and_a_prompt_read_again_is_not_kept_twice(self) -> None:
        adapter = HuggingFaceAdapter(gpt2())
        with torch.no_grad():
            _, first = adapter.start([1, 2, 3])
            _, again = adapter.start([1, 2, 3])
            _, after = adapter.step(adapter.concatenate([first, again]), torch.tensor([4, 5]))
            assert first.prompt is again.prompt is after.prompt
            adapter.module.transformer.wte.weight.mul_(1.5)  # more training: another prompt, though of the same tokens
            assert adapter.start([1, 2, 3])[1].prompt is not first.prompt

    def test_states_after_different_prompts_are_not_put_together(self) -> None:
        adapter = HuggingFaceAdapter(gpt2())
        with torch.no_grad(), pytest.raises(ModelError, match="different prompts"):
            adapter.concatenate([adapter.start([1, 2])[1], adapter.start([1, 3])[1]])

    def test_scoring_reads_the_prompt_once_and_every_shared_beginning_once(self) -> None:
        tree = SecretTree(gpt2(), PIN, CHARS)
        tree.root()  # a prompt of this length was never tried before
        prompt = len(CHARS.encode(PIN.prompt))
        with tokens_read(tree.model.module) as calls:
            found = score(tree, oracle.all_texts(PIN))
        assert found.expansions == 1 + 10 + 10
        assert sum(calls) == prompt + found.expansions - 1


class TestMemory:
    def test_a_row_takes_no_more_than_the_tree_says(self) -> None:
        tree = SecretTree(gpt2(), SecretFormat("pin ########"), CHARS)
        children, rows = tree.root(), 1
        while children.open.any():
            children = tree.expand(children.take(np.flatnonzero(children.open)[:50]))
            rows = len(children.parent_paths)
        assert tree.automaton.depth == 8
        assert tree.model.bytes_of(children.state) / rows < tree.row_bytes()

    @pytest.mark.parametrize("make", [gpt2, mistral, mamba])
    def test_states_past_the_limit_are_read_again_with_the_same_result(self, make: Any) -> None:
        tree = SecretTree(make(), SecretFormat("the pin is ###-#"), CHARS, batch_size=32)
        roomy = best_first(tree, top_k=20)
        prompt = len(CHARS.encode("the pin is "))
        with tokens_read(tree.model.module) as calls:
            tight = best_first(tree, top_k=20, memory=max(80_000, 20 * tree.row_bytes()), largest_batch=32)
        assert sum(call for call in calls if call != prompt) > 2 * tight.expansions  # states were really lost
        assert tight.ended_by == roomy.ended_by == "proof"
        np.testing.assert_allclose(tight.costs, roomy.costs, rtol=0, atol=1e-4)

    def test_nodes_read_again_share_their_beginnings(self) -> None:
        tree = SecretTree(gpt2(), SecretFormat("pin ###"), CHARS)
        first = tree.root()
        second = tree.expand(first.take(np.arange(10)))
        third = second.take(np.arange(100))
        deep, shallow = third.paths, first.take(np.arange(10)).paths
        paths = np.concatenate([np.pad(shallow, ((0, 0), (0, 1)), constant_values=-1), deep])
        places, costs = np.zeros(110, np.int64), np.zeros(110)
        with tokens_read(tree.model.module) as calls:
            nodes = tree.revive(paths, places, costs)
        assert calls == [len(CHARS.encode("pin ")), 10]  # a hundred nodes have ten parents
        assert nodes.state.lengths.tolist() == [0] * 10 + [1] * 100


class TestNothingIsLeftBehind:
    def test_config_modes_and_weights_are_as_before(self) -> None:
        model = gpt2(use_cache=False)
        model.gradient_checkpointing_enable()
        model.train()
        model.transformer.h[1].eval()
        weights = copy.deepcopy(model.state_dict())
        config, generation = copy.deepcopy(model.config), model.generation_config.to_dict()
        modes = [part.training for part in model.modules()]
        tree = SecretTree(model, PIN, CHARS)
        assert tree.model.way == "attention"  # type: ignore[attr-defined]
        costs = score(tree, ["my pin is 1-3"]).costs
        assert vars(model.config) == vars(config)
        assert model.generation_config.to_dict() == generation
        assert [part.training for part in model.modules()] == modes
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
        model.eval()
        assert costs == pytest.approx(oracle.costs(Logits(model), PIN, CHARS)["my pin is 1-3"], abs=1e-4)

    def test_the_attention_function_is_put_back_after_an_exception(self) -> None:
        model = gpt2()
        adapter = HuggingFaceAdapter(model)
        before = vars(copy.deepcopy(model.config))
        with torch.no_grad():
            _, state = adapter.start([1, 2, 3])

            def fail(*_: Any) -> None:
                assert model.config._attn_implementation != before["_attn_implementation_internal"]
                raise RuntimeError("in the middle of a step")

            model.transformer.h[1].register_forward_pre_hook(fail)
            with pytest.raises(RuntimeError, match="in the middle"):
                adapter.step(state, torch.tensor([4]))
        assert vars(model.config) == before

    def test_transformers_is_only_imported_by_those_who_use_it(self) -> None:
        code = "import sys, lightning_exposure.adapters.huggingface.adapter as _; print('transformers' in sys.modules)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "False"


class TestTheEndOfTheModel:
    @pytest.mark.parametrize("way", ["attention", "cache", "recompute"])
    def test_tokens_beyond_the_last_position_are_refused(self, way: str) -> None:
        model = llama(max_position_embeddings=12)
        tree = SecretTree(HuggingFaceAdapter(model, way=way), SecretFormat("pin is ######"), CHARS)
        assert score(tree, ["pin is 123456"]).costs[0] > 0  # the last digit is not read: 7 + 5 tokens
        longer = SecretTree(HuggingFaceAdapter(model, way=way), SecretFormat("pin is #######"), CHARS)
        with pytest.raises(ModelError, match=r"at least 13 tokens, and LlamaForCausalLM has positions for 12.*Shorten"):
            score(longer, ["pin is 1234567"])

    def test_a_prompt_that_is_too_long_is_refused(self) -> None:
        tree = SecretTree(gpt2(max_position_embeddings=8), SecretFormat("my long prompt #"), CHARS)
        with pytest.raises(ModelError, match="at least 15 tokens"):
            tree.root()

    def test_a_token_that_the_model_does_not_know_is_refused(self) -> None:
        tree = SecretTree(gpt2(vocab_size=20), SecretFormat("zebra #"), CHARS)
        with pytest.raises(ModelError, match=r"knows 20 tokens.*resize_token_embeddings"):
            tree.root()


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize("make", [gpt2, llama])
def test_weights_in_half_precision_are_read_in_it_and_scored_in_float32(make: Any) -> None:
    # Without oneDNN, whose half-precision kernels use instructions that not every processor has that claims to.
    with torch.backends.mkldnn.flags(enabled=False):
        model = make().bfloat16()
        tree = SecretTree(model, PIN, CHARS)
        assert tree.model.way == "attention"  # type: ignore[attr-defined]
        secrets = PIN.sample(20, seed=0)
        full = [oracle.cost(Logits(model), CHARS.encode(text), len(CHARS.encode(PIN.prompt))) for text in secrets]
        costs = score(tree, secrets).costs
    exact = score(SecretTree(model.float(), PIN, CHARS), secrets).costs
    np.testing.assert_allclose(costs, full, rtol=0, atol=0.2)  # eight bits of precision
    np.testing.assert_allclose(costs, exact, rtol=0, atol=0.2)
    assert len({round(cost * 2**20) for cost in costs}) == 20  # sums of half-precision numbers would collide


def test_a_model_loaded_from_a_directory_is_read_like_any_other(tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = gpt2()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    secrets = PIN.sample(5, seed=0)
    np.testing.assert_allclose(
        score(SecretTree(loaded, PIN, CHARS), secrets).costs, score(SecretTree(model, PIN, CHARS), secrets).costs
    )


def test_every_attention_implementation_of_the_model_itself_gives_the_same() -> None:
    secrets = PIN.sample(5, seed=0)
    costs = []
    for implementation in ("eager", "sdpa"):
        model = gpt2()
        model.set_attn_implementation(implementation)
        costs.append(score(SecretTree(HuggingFaceAdapter(model, way="cache"), PIN, CHARS), secrets).costs)
        costs.append(score(SecretTree(model, PIN, CHARS), secrets).costs)
        assert model.config._attn_implementation == implementation
    for other in costs[1:]:
        np.testing.assert_allclose(other, costs[0], rtol=0, atol=1e-4)


def test_no_global_random_state_is_touched() -> None:
    model = build(gpt2().config)
    before = torch.get_rng_state()
    score(SecretTree(model, PIN, CHARS), ["my pin is 1-3"])
    assert torch.equal(before, torch.get_rng_state())
