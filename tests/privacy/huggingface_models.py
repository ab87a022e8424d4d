"""Hugging Face models of many families, tiny and built from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

transformers: Any = pytest.importorskip("transformers")

VOCAB, STEPS = 23, 6
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FEW_KEYS: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 8}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _bert_like(name: str, task: str = "MaskedLM", **options: Any) -> Any:
    dropout = options.pop("dropout", 0.0)
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = getattr(transformers, f"{name}Config")(**_SIZES, **dropouts, **options)
    return getattr(transformers, f"{name}For{task}")(config)


def _llama_like(name: str, config: str | None = None, **options: Any) -> Any:
    made = getattr(transformers, config or f"{name}Config")(**_SIZES, **_FEW_KEYS, **options)
    return getattr(transformers, f"{name}ForCausalLM")(made)


def gpt2(dropout: float = 0.0) -> Any:
    """A GPT-2."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    dropouts = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], dropout)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts, **_ENDS))


def bert(dropout: float = 0.0) -> Any:
    """A BERT that fills in."""
    return _bert_like("Bert", dropout=dropout)


def gemma(dropout: float = 0.0) -> Any:
    """A Gemma 3: norms of its own, a table that is multiplied by a number."""
    return _llama_like("Gemma3", "Gemma3TextConfig", attention_dropout=dropout)


def _distilbert() -> Any:
    sizes = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 16}
    config = transformers.DistilBertConfig(vocab_size=VOCAB, **sizes, dropout=0.0, attention_dropout=0.0)
    return transformers.DistilBertForMaskedLM(config)


def _gpt_neo() -> Any:
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 16}
    kinds = [[["global", "local"], 1]]
    dropouts = {"resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
    config = transformers.GPTNeoConfig(vocab_size=VOCAB, **sizes, **dropouts, **_ENDS, attention_types=kinds)
    return transformers.GPTNeoForCausalLM(config)


def _bart() -> Any:
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 16}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
    dropouts = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.0)
    ends = _ENDS | {"decoder_start_token_id": 2, "forced_eos_token_id": 2}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **dropouts, **ends))


def opt() -> Any:
    """Flattens the steps of all examples."""
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 1}
    others = {"num_attention_heads": 2, "max_position_embeddings": 16, "dropout": 0.0}
    return transformers.OPTForCausalLM(transformers.OPTConfig(vocab_size=VOCAB, **sizes, **others, **_ENDS))


def deberta() -> Any:
    """Its linear layers also read relative positions."""
    return _bert_like("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"])


def mamba() -> Any:
    """Has parameters beside its layers."""
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=VOCAB, **sizes, **_ENDS))


FAMILIES: dict[str, Callable[[], Any]] = {
    "GPT-2": gpt2,
    "GPT-Neo": _gpt_neo,
    "BERT": bert,
    "BERT, classifying": lambda: _bert_like("Bert", "SequenceClassification", num_labels=3),
    "RoBERTa": lambda: _bert_like("Roberta"),
    "DistilBERT": _distilbert,
    "ELECTRA": lambda: _bert_like("Electra", embedding_size=16),
    "ALBERT": lambda: _bert_like("Albert", embedding_size=16),
    "BART": _bart,
    "Llama": lambda: _llama_like("Llama"),
    "Mistral": lambda: _llama_like("Mistral"),
    "Qwen 2": lambda: _llama_like("Qwen2"),
    "Qwen 3": lambda: _llama_like("Qwen3"),
    "Gemma": lambda: _llama_like("Gemma"),
    "Gemma 2": lambda: _llama_like("Gemma2"),
    "Gemma 3": gemma,
}


def texts(examples: int = 5) -> Tensor:
    """Tokens, of which none is a special one."""
    return torch.randint(3, VOCAB, (examples, STEPS), generator=torch.Generator().manual_seed(1))


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """What the model says about a batch, without anything beside the tokens."""
    others = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    logits: Tensor = model(input_ids=tokens, **others).logits
    return logits
