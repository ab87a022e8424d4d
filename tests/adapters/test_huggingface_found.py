"""Hugging Face models inside of other modules, and inside of PEFT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters import HuggingFaceAdapter, StatelessAdapter
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.walks import score
from tests import oracle
from tests.adapters.hf_models import CHARS, Logits, gpt2, llama

PIN = SecretFormat("my pin is #-#")


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
