"""Tiny Hugging Face models with random weights, large enough that secrets differ in cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from lightning_exposure.tokenization import CharTokenizer
from tests.toys import sharpened

CHARS = CharTokenizer.from_text("abcdefghijklmnopqrstuvwxyz 0123456789-:.")

_SIZES: dict[str, Any] = {
    "vocab_size": CHARS.vocab_size,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GROUPS: dict[str, Any] = {"num_key_value_heads": 2}


def build(config: Any, seed: int = 0) -> Any:
    """A model of this config, with random weights, in float32 and in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = hf.AutoModelForCausalLM.from_config(config)
        matrices = nn.ModuleList([part for part in model.modules() if isinstance(part, (nn.Linear, nn.Embedding))])
    sharpened(matrices, seed, scale=1.0, dtype=torch.float32)
    return model.eval()


def gpt2(seed: int = 0, **options: Any) -> Any:
    return build(hf.GPT2Config(**(_SIZES | options)), seed)


def llama(seed: int = 0, **options: Any) -> Any:
    return build(hf.LlamaConfig(**(_SIZES | _GROUPS | options)), seed)


def mistral(**options: Any) -> Any:
    return build(hf.MistralConfig(**(_SIZES | _GROUPS | {"sliding_window": 9} | options)))


def gpt_neox() -> Any:
    return build(hf.GPTNeoXConfig(**_SIZES))


def gemma2() -> Any:
    """Windows in every other layer, and capped scores."""
    return build(hf.Gemma2Config(**_SIZES, **_GROUPS, head_dim=4, sliding_window=9, attn_logit_softcapping=2.0))


def gpt_oss() -> Any:
    """Attention sinks, windows in every other layer, and experts."""
    model = build(
        hf.GptOssConfig(**_SIZES, **_GROUPS, head_dim=4, sliding_window=9, num_local_experts=2, num_experts_per_tok=1)
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.copy_(torch.linspace(-1.0, 2.0, 4))
            for parameter in layer.mlp.parameters():
                parameter.copy_(torch.linspace(-0.3, 0.3, parameter.numel()).view(parameter.shape))
    return model


def bloom() -> Any:
    """Positions by ALiBi, in an attention of its own making."""
    return build(hf.BloomConfig(**_SIZES, n_layer=2, n_head=4))


def gpt_neo() -> Any:
    """A window in every other layer, in an attention of its own making."""
    return build(
        hf.GPTNeoConfig(
            **(_SIZES | {"num_hidden_layers": 2}), attention_types=[[["global", "local"], 1]], window_size=9
        )
    )


def llama4() -> Any:
    """Chunks: every few tokens most layers forget all before."""
    return build(
        hf.Llama4TextConfig(
            **_SIZES, **_GROUPS, head_dim=4, attention_chunk_size=9, num_local_experts=2, intermediate_size_mlp=32
        )
    )


def mamba() -> Any:
    return build(hf.MambaConfig(**_SIZES, state_size=4))


def rwkv() -> Any:
    return build(hf.RwkvConfig(**_SIZES, attention_hidden_size=16))


def two_way_bert() -> Any:
    """Every token sees those after it: what was read changes with what comes."""
    return build(hf.BertConfig(**_SIZES, is_decoder=False))


def xlnet() -> Any:
    """Reads in both directions when nobody says in which order."""
    sizes = {"vocab_size": CHARS.vocab_size, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    return build(hf.XLNetConfig(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0))


def phi3(*, original: int = 16, **options: Any) -> Any:
    """Other frequencies of positions for texts longer than `original`, in all of their positions."""
    factors = {"short_factor": [1.0, 1.0], "long_factor": [4.0, 9.0]}
    limit = {"original_max_position_embeddings": original}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, **limit, **factors}
    return build(hf.Phi3Config(**_SIZES, **_GROUPS, **limit, rope_parameters=rope, **options))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt2": (gpt2, "attention"),
    "llama": (llama, "attention"),
    "mistral": (mistral, "attention"),
    "gpt-neox": (gpt_neox, "attention"),
    "gemma2": (gemma2, "attention"),
    "gpt-oss": (gpt_oss, "attention"),
    "bloom": (bloom, "cache"),
    "gpt-neo": (gpt_neo, "cache"),
    "llama4": (llama4, "cache"),
    "mamba": (mamba, "state"),
    "rwkv": (rwkv, "recompute"),
}
"""Models by name, and the way in which each can be read on."""


class Logits(nn.Module):
    """The logits of a Hugging Face model alone, from one full pass without a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def read(adapter: Any, prompt: list[int], suffix: list[int]) -> tuple[Tensor, Any]:
    logits, state = adapter.start(prompt)
    for token in suffix:
        logits, state = adapter.step(state, torch.tensor([token]))
    return logits, state


def full_pass(model: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits
