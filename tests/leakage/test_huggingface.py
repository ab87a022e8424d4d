"""Leak probabilities of models and tokenizers of Hugging Face, against brute force and against `generate` itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from lightning_exposure import Decoder, SecretFormat, SecretTree, leak_probability
from lightning_exposure.tokenization import HuggingFaceTokenizer
from tests.leakage import brute_force
from tests.leakage.test_probability import bytes_bpe
from tests.tokenization.subword_models import byte_level, metaspace_bpe, random_format, random_tokenizer
from tests.toys import Recurrent, sharpened


def gpt2(tokens: int, seed: int = 0) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=tokens, n_positions=48, n_embd=16, n_layer=2, n_head=2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False).mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model


class Logits(torch.nn.Module):
    """What brute force needs: logits alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=tokens).logits
        return logits


def truth(model: torch.nn.Module, tokenizer: Tokenizer, prompt: Sequence[int], secret: str, chances: Any) -> float:
    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    return brute_force.probability(model, prompt, decode, {secret}, chances)


@pytest.mark.parametrize("decoder", [Decoder(), Decoder(0.8, 12, 0.9)])
def test_a_transformer_reads_all_tokenizations(decoder: Decoder) -> None:
    tokenizer = bytes_bpe()
    model = gpt2(tokenizer.get_vocab_size())
    tree = SecretTree(model, SecretFormat("pin is ##-#"), tokenizer)
    chances = brute_force.as_transformers_does(decoder.temperature, decoder.top_k, decoder.top_p)
    for secret in ("pin is 12-7", "pin is 33-0"):
        (leak,) = leak_probability(tree, [secret], decoder)
        expected = truth(Logits(model), tokenizer, tokenizer.encode("pin is ").ids, secret, chances)
        assert leak.low <= expected <= leak.high
        assert leak.high <= 1.02 * leak.low + 1e-12 or expected == 0.0


def test_generate_says_it_as_often() -> None:
    """Sampling with `generate` itself: the frequency is the probability, within five standard deviations."""
    tokenizer = bytes_bpe()
    model = gpt2(tokenizer.get_vocab_size())
    format = SecretFormat("pin#-")
    tree = SecretTree(model, format, tokenizer)
    decoder = Decoder(temperature=0.7, top_k=20, top_p=0.95)
    leaks = leak_probability(tree, [format.render(i) for i in range(10)], decoder)
    leak = max(leaks, key=lambda leak: leak.low)
    assert leak.low > 1e-4
    prompt = torch.tensor([tokenizer.encode("pin").ids])
    samples = 4000
    with torch.random.fork_rng():
        torch.manual_seed(0)
        written = model.generate(
            prompt.expand(samples, -1),
            attention_mask=torch.ones(samples, prompt.shape[1], dtype=torch.long),
            do_sample=True,
            temperature=0.7,
            top_k=20,
            top_p=0.95,
            max_new_tokens=2,
            pad_token_id=0,
            eos_token_id=-1,
        )
    hits = sum(tokenizer.decode(row).startswith(leak.secret) for row in written.tolist())
    spread = 5 * (leak.high * samples) ** 0.5
    assert leak.low * samples - spread <= hits <= leak.high * samples + spread
    assert hits > 0


@pytest.mark.parametrize("make", [metaspace_bpe, byte_level], ids=["as Llama 2's", "as GPT-2's"])
def test_bytes_spaces_and_first_tokens(make: Any) -> None:
    """A token for the beginning of a text, single bytes beside characters, and a sign for spaces."""
    tokenizer: Tokenizer = make()
    model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=3, scale=1.0)
    tree = SecretTree(model, SecretFormat("my pin is ##"), tokenizer)
    secret = "my pin is 42"
    (leak,) = leak_probability(tree, [secret])
    expected = truth(model, tokenizer, tokenizer.encode("my pin is ").ids, secret, brute_force.softmax)
    assert leak.low <= expected <= leak.high <= 1.02 * leak.low


@pytest.mark.parametrize("seed", [1, 2, 3, 9, 11, 14, 20, 41, 47, 76, 77, 96, 119])
def test_tokenizers_that_no_training_would_make(seed: int) -> None:
    tokenizer, format = random_tokenizer(seed), random_format(7 * seed + 1)
    assert format is not None
    secret = format.render(format.size // 2)
    model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=6), seed=seed, scale=1.2)
    tree = SecretTree(model, format, tokenizer)
    (leak,) = leak_probability(tree, [secret], budget=2_000)
    expected = truth(model, tokenizer, tokenizer.encode(format.prompt).ids, secret, brute_force.softmax)
    assert leak.low <= expected <= leak.high


def test_a_chat_template_stands_before_the_prompt() -> None:
    tokenizer = byte_level()
    from transformers import PreTrainedTokenizerFast

    chatting = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    chatting.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    wrapped = HuggingFaceTokenizer(chatting, chat=lambda text: [{"role": "user", "content": text}])
    model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=3, scale=1.0)
    tree = SecretTree(model, SecretFormat("my pin is ##"), wrapped)
    (leak,) = leak_probability(tree, ["my pin is 42"])
    prompt = "<user> my pin is "
    expected = truth(model, tokenizer, tokenizer.encode(prompt).ids, prompt + "42", brute_force.softmax)
    assert leak.low <= expected <= leak.high <= 1.02 * leak.low
