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
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters import StatelessAdapter
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.walks import best_first, score
from tests import oracle
from tests.adapters.hf_models import CHARS, MODELS, Logits, build, gpt2, llama, mamba, mistral, phi3

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


def read(adapter: HuggingFaceAdapter, prompt: list[int], suffix: list[int]) -> tuple[Tensor, Any]:
    logits, state = adapter.start(prompt)
    for token in suffix:
        logits, state = adapter.step(state, torch.tensor([token]))
    return logits, state


def full_pass(model: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits


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
        assert sum(calls) == 2 * prompt + found.expansions - 1  # once more to know how large a state is


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


class HiddenWindow(nn.Module):
    """An attention layer that sees only its last ten tokens, which no config says."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, *arguments: Any, attention_mask: Any = None, **options: Any) -> Any:
        time = hidden_states.shape[1]
        if time > 10:
            back = torch.arange(time)[:, None] - torch.arange(time)
            mask = torch.where((back < 0) | (back >= 10), float("-inf"), 0.0)[None, None]
            return self.attention(hidden_states, *arguments, attention_mask=mask, **options)
        return self.attention(hidden_states, *arguments, attention_mask=attention_mask, **options)


class TestWhatCannotBeReadInParts:
    def test_a_model_that_reads_a_long_prompt_differently_is_noticed_when_one_comes(self) -> None:
        model = gpt2()
        for block in model.transformer.h:
            block.attn = HiddenWindow(block.attn)
        adapter = HuggingFaceAdapter(model)
        assert adapter.way == "attention"  # five tokens show nothing of it
        prompt = [i % 7 for i in range(14)]
        with torch.no_grad():
            logits, state = read(adapter, prompt, [3, 4])
            right = full_pass(model, [*prompt, 3, 4])
        assert adapter.way == "recompute"
        assert adapter.why is not None
        assert "14 + 3 tokens read in parts give other logits" in adapter.why
        torch.testing.assert_close(logits[0], right, rtol=0, atol=1e-5)
        assert state.ids.tolist() == [[*prompt, 3, 4]]

    def test_a_way_that_does_not_work_is_refused_if_asked_for(self) -> None:
        with pytest.raises(ModelError, match=r"cannot be read.*takes no past_key_values.*Leave way out"):
            HuggingFaceAdapter(mamba(), way="attention")
        with pytest.raises(ArgumentError, match="way is 'fast'; expected one of 'attention', 'cache'"):
            HuggingFaceAdapter(gpt2(), way="fast")

    def test_a_model_that_cannot_read_at_all_is_refused_before_anything_is_walked(self) -> None:
        model = gpt2()
        model.transformer.h[0].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ModelError, match="failed on one token alone: ZeroDivisionError"):
            HuggingFaceAdapter(model)

    def test_other_modules_are_refused(self) -> None:
        with pytest.raises(ModelError, match="model is Linear; expected a Hugging Face model"):
            HuggingFaceAdapter(nn.Linear(2, 2))


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


class TestFindingTheModel:
    """A module around a language model, as people write them."""

    def holder(self, forward: Any, **parts: nn.Module) -> nn.Module:
        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for name, part in parts.items():
                    self.add_module(name, part)

        if forward is not None:
            Holder.forward = forward  # type: ignore[method-assign]
        return Holder()

    @pytest.mark.parametrize(
        "forward",
        [
            None,
            lambda self, batch: self.lm(**batch).loss,
            lambda self, input_ids, labels: self.lm(input_ids, labels=labels).loss,
            lambda self, tokens: self.lm(tokens, labels=tokens).loss,
            lambda self, tokens: self.lm(tokens),
            lambda self, tokens: self.lm(tokens).logits,
        ],
        ids=["no forward", "a batch", "labels", "loss", "output", "logits"],
    )
    def test_it_is_found_in_an_attribute_whatever_forward_does(self, forward: Any) -> None:
        lm = gpt2()
        tree = SecretTree(self.holder(forward, lm=lm, other=nn.Linear(2, 2)), PIN, CHARS)
        assert isinstance(tree.model, HuggingFaceAdapter)
        assert tree.model.module is lm

    def test_a_forward_that_gives_other_logits_is_what_counts(self) -> None:
        module = self.holder(lambda self, tokens: self.lm(tokens).logits / 2.0, lm=gpt2())
        tree = SecretTree(module, PIN, CHARS)
        assert isinstance(tree.model, StatelessAdapter)
        assert tree.model.module is module

    def test_a_headless_model_with_a_head_of_ones_own_is_a_module_like_any_other(self) -> None:
        def forward(self: Any, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.body(tokens).last_hidden_state)
            return logits

        module = self.holder(forward, body=gpt2().transformer, head=nn.Linear(16, CHARS.vocab_size))
        assert isinstance(SecretTree(module, PIN, CHARS).model, StatelessAdapter)

    def test_a_headless_model_beside_it_is_no_candidate(self) -> None:
        lm = gpt2()
        assert SecretTree(self.holder(None, embedder=llama().model, lm=lm), PIN, CHARS).model.module is lm

    def test_several_models_are_named_with_the_remedy(self) -> None:
        module = self.holder(None, student=gpt2(), teacher=llama())
        with pytest.raises(
            ModelError,
            match=r"2 language models, student \(GPT2LMHeadModel\), teacher.*model=lambda module: module.student",
        ):
            SecretTree(module, PIN, CHARS)

    def test_of_several_models_the_one_that_forward_uses_is_taken(self) -> None:
        module = self.holder(lambda self, tokens: self.student(tokens).logits, teacher=gpt2(1), student=gpt2(2))
        adapter = SecretTree(module, PIN, CHARS).model
        assert isinstance(adapter, HuggingFaceAdapter)
        assert adapter.module is module.student

    def test_a_context_is_for_the_model_that_is_found(self) -> None:
        lm = gpt2()
        adapter = SecretTree(self.holder(None, lm=lm), PIN, CHARS, context=4).model
        assert isinstance(adapter, StatelessAdapter)
        assert adapter.module is lm

    @pytest.mark.parametrize("held", [False, True])
    def test_an_encoder_decoder_needs_a_source(self, held: bool) -> None:
        from transformers import T5Config, T5ForConditionalGeneration

        t5 = T5ForConditionalGeneration(
            T5Config(vocab_size=CHARS.vocab_size, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        )
        with pytest.raises(ModelError, match=r"encoder-decoder.*Seq2SeqAdapter\(model, source\)"):
            SecretTree(self.holder(None, t5=t5) if held else t5, PIN, CHARS)


class TestPeft:
    @pytest.fixture
    def models(self) -> tuple[Any, Any]:
        """A base model, and the same with an adapter that has an effect."""
        from peft import LoraConfig, get_peft_model

        base = gpt2()
        adapted = get_peft_model(gpt2(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(torch.linspace(-0.5, 0.8, parameter.numel()).view(parameter.shape))
        return base, adapted

    def test_adapters_are_on(self, models: tuple[Any, Any]) -> None:
        base, adapted = models
        expected = oracle.costs(Logits(adapted.eval()), PIN, CHARS)
        tree = SecretTree(adapted.train(), PIN, CHARS)
        assert tree.model.way == "attention"  # type: ignore[attr-defined]
        given = score(tree, list(expected)).costs
        np.testing.assert_allclose(given, list(expected.values()), rtol=0, atol=1e-4)
        assert np.abs(given - score(SecretTree(base, PIN, CHARS), list(expected)).costs).max() > 0.1

    def test_switched_off_it_is_the_base_model_and_nothing_is_left_behind(self, models: tuple[Any, Any]) -> None:
        base, adapted = models
        frozen = next(p for name, p in adapted.named_parameters() if "lora_A" in name)
        frozen.requires_grad_(False)
        asked = [p.requires_grad for p in adapted.parameters()]
        secrets = PIN.sample(20, seed=0)
        off = score(SecretTree(HuggingFaceAdapter(adapted, adapters=False), PIN, CHARS), secrets).costs
        np.testing.assert_allclose(off, score(SecretTree(base, PIN, CHARS), secrets).costs, rtol=0, atol=1e-5)
        assert [p.requires_grad for p in adapted.parameters()] == asked
        on = score(SecretTree(adapted, PIN, CHARS), secrets).costs
        assert np.abs(on - off).max() > 0.1

    def test_adapters_that_are_tokens_before_the_text_are_read_again_each_time(self) -> None:
        from peft import PromptTuningConfig, get_peft_model

        adapted = get_peft_model(gpt2(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
        tree = SecretTree(adapted, PIN, CHARS)
        assert tree.model.way == "recompute"  # type: ignore[attr-defined]

        class WithoutVirtualTokens(Logits):
            def forward(self, tokens: Tensor) -> Tensor:
                return super().forward(tokens)[:, 3:]

        expected = oracle.costs(WithoutVirtualTokens(adapted), PIN, CHARS)
        np.testing.assert_allclose(score(tree, list(expected)).costs, list(expected.values()), rtol=0, atol=1e-4)
        attributes = set(vars(adapted))
        off = score(SecretTree(HuggingFaceAdapter(adapted, adapters=False), PIN, CHARS), list(expected)).costs
        np.testing.assert_allclose(off, score(SecretTree(gpt2(), PIN, CHARS), list(expected)).costs, atol=1e-5)
        assert set(vars(adapted)) == attributes

    def test_it_is_found_in_an_attribute_also_beside_its_own_base(self, models: tuple[Any, Any]) -> None:
        _, adapted = models

        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.base = adapted.get_base_model()
                self.lm = adapted

        assert SecretTree(Holder(), PIN, CHARS).model.module is adapted

    def test_what_cannot_be_switched_off_is_refused(self, models: tuple[Any, Any]) -> None:
        base, adapted = models
        with pytest.raises(ArgumentError, match="adapters is False, and GPT2LMHeadModel is no PEFT model"):
            HuggingFaceAdapter(base, adapters=False)
        adapted.merge_adapter()
        with pytest.raises(ModelError, match="merged into its weights"):
            HuggingFaceAdapter(adapted, adapters=False)


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


class TestTheTrialReachesTheLongestSecret:
    """What a model does may change with the length of a text, beyond what the prompt and a few more tokens show."""

    LONG = SecretFormat("my pin is ####-####")  # 10 tokens and 9 more

    def test_longrope_across_its_limit_is_read_as_its_own_generation_does(self) -> None:
        model = phi3(original=16)
        tree = SecretTree(model, self.LONG, CHARS)
        assert tree.model.way == "recompute"  # type: ignore[attr-defined]
        assert "10 + 8 tokens read in parts give other logits" in str(tree.model.why)  # type: ignore[attr-defined]
        secrets = self.LONG.sample(5, seed=0)
        right = [oracle.cost(Logits(model), CHARS.encode(text), 10, context=1000) for text in secrets]
        np.testing.assert_allclose(score(tree, secrets).costs, right, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("original", [9, 32])
    def test_longrope_that_is_not_crossed_within_a_secret_is_read_fast(self, original: int) -> None:
        model = phi3(original=original)
        tree = SecretTree(model, self.LONG, CHARS)
        assert tree.model.way == "attention"  # type: ignore[attr-defined]
        secrets = self.LONG.sample(5, seed=0)
        right = [oracle.cost(Logits(model), CHARS.encode(text), 10) for text in secrets]
        np.testing.assert_allclose(score(tree, secrets).costs, right, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("way", ["attention", "cache"])
    def test_a_way_that_was_asked_for_and_is_wrong_there_is_refused(self, way: str) -> None:
        tree = SecretTree(HuggingFaceAdapter(phi3(original=16), way=way), self.LONG, CHARS)
        with pytest.raises(ModelError, match=rf"way that was asked for: {way}: 10 \+ 8 tokens.*Leave way out"):
            score(tree, ["my pin is 1234-5678"])

    def test_a_window_that_no_config_names_is_noticed_behind_a_short_prompt(self) -> None:
        model = gpt2()
        for block in model.transformer.h:
            block.attn = HiddenWindow(block.attn)
        format = SecretFormat("pin ####-####")  # the window of ten tokens is left near the end
        tree = SecretTree(model, format, CHARS)
        assert tree.model.way == "recompute"  # type: ignore[attr-defined]
        assert SecretTree(model, SecretFormat("pin ###"), CHARS).model.way == "attention"  # type: ignore[attr-defined]
        secrets = format.sample(5, seed=0)
        right = [oracle.cost(Logits(model), CHARS.encode(text), 4) for text in secrets]
        np.testing.assert_allclose(score(tree, secrets).costs, right, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("make", [gpt2, llama])
    def test_secrets_up_to_the_last_position_are_tried_and_read(self, make: Any) -> None:
        model = make(max_position_embeddings=18)
        tree = SecretTree(model, self.LONG, CHARS)  # 19 tokens, of which the last is not read
        assert tree.model.way == "attention"  # type: ignore[attr-defined]
        assert score(tree, ["my pin is 1234-5678"]).costs[0] > 0
