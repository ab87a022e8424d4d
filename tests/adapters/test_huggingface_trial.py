"""Ways of reading a Hugging Face model that give other numbers than reading at once are given up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters import HuggingFaceAdapter
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.walks import score
from tests import oracle
from tests.adapters.hf_models import CHARS, Logits, full_pass, gpt2, llama, mamba, phi3, read

PIN = SecretFormat("my pin is #-#")


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
