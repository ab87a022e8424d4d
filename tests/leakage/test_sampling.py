"""Text is sampled as the model and the decoder say, and what appears in it is counted as promised."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lightning_exposure import Canary, CanarySet, CharTokenizer, Decoder, SecretFormat, SecretTree, leak_probability
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.leakage import TextWriter, Written, sample_leaks
from lightning_exposure.leakage.counting import CanaryFinder, ScannerFinder, count
from lightning_exposure.leakage.sampling import finder_for, write_and_count
from lightning_exposure.secrets import Finding, Scanner
from tests.toys import Nested, Recurrent, Stateless, Table, sharpened

CHARS = CharTokenizer.from_text("pin 0123456789z")
PIN = SecretFormat("pin ##")
DECODERS = [
    Decoder(),
    Decoder(temperature=0.6),
    Decoder(top_k=3),
    Decoder(top_p=0.7),
    Decoder(temperature=1.5, top_k=6, top_p=0.8),
    Decoder(top_k=1),
    Decoder(top_k=99, top_p=1.0),
]


def model_of(kind: type[nn.Module] = Recurrent, seed: int = 0) -> Any:
    return sharpened(kind(CHARS.vocab_size), seed, scale=2.0)


def canary(text: str, copies: int = 1, format: SecretFormat = PIN) -> Canary:
    return Canary(text.replace(" ", "-"), text, format, copies)


# --- drawing a token ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_tokens_are_drawn_as_often_as_they_are_likely(decoder: Decoder) -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[1, 2] = logits[1, 5] = logits[1].max()  # ties: all of them are kept
    logits[2, :4] = -torch.inf
    wanted = decoder.probabilities(logits)
    steps = 20_000
    numbers = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps  # evenly, in place of chance
    for row in range(4):
        drawn = decoder.draw(logits[row].expand(steps, -1), numbers)
        shares = np.bincount(drawn.numpy(), minlength=9) / steps
        assert np.abs(shares - wanted[row]).max() < 2 / steps
        assert (shares[wanted[row] == 0.0] == 0.0).all()


def test_the_last_random_number_draws_no_token_that_was_cut() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [3.0, 1.0, -50.0]])
    almost = torch.full((2,), 1.0 - 2.0**-53, dtype=torch.float64)
    assert Decoder().draw(logits, almost).tolist() == [1, 1]
    assert Decoder(top_k=1).draw(logits[1:], almost[:1]).tolist() == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(ModelError, match="NaN or infinite logits"):
        Decoder().draw(torch.tensor([[0.0, value]]), torch.tensor([0.5]))


# --- writing ------------------------------------------------------------------------------------------------


def by_full_passes(writer: TextWriter, module: nn.Module, sample: int) -> str:
    """One sample, slowly: everything is read again for each token, and cuts are those of `probabilities`."""
    generator = np.random.Generator(np.random.Philox(key=writer.seed, counter=[0, 0, sample, 0]))
    tokens = list(writer.prompt)
    for number in generator.random(writer.length):
        with torch.no_grad():
            output = module(torch.tensor([tokens]))
        logits = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
        sums = np.cumsum(writer.decoder.probabilities(logits[:, -1])[0])
        tokens.append(int(np.searchsorted(sums, number * sums[-1], side="right")))
    return str(writer.tokenizer.decode(tokens))


@pytest.mark.parametrize("kind", [Recurrent, Nested, Stateless])
@pytest.mark.parametrize("decoder", [Decoder(), Decoder(temperature=0.7, top_k=5, top_p=0.9)], ids=str)
def test_states_write_what_full_passes_write(kind: type[nn.Module], decoder: Decoder) -> None:
    model = model_of(kind)
    writer = TextWriter(model, CHARS, decoder=decoder, length=12, seed=3, batch_size=4, prompt="pi")
    assert [it.text for it in writer.write(range(6))] == [by_full_passes(writer, model, n) for n in range(6)]


def test_a_gpt2_writes_what_full_passes_write() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=None, eos_token_id=None
    )  # fmt: skip
    model = sharpened(GPT2LMHeadModel(config), 0, scale=1.0)
    writer = TextWriter(model, CHARS, length=20, seed=5, prompt="pin ")
    written = writer.write(range(3))
    assert [it.text for it in written] == [by_full_passes_without(writer, model, CHARS, n) for n in range(3)]
    with pytest.raises(ArgumentError, match=r"length is 30; expected at most 20\. The model reads 24 tokens"):
        TextWriter(model, CHARS, length=30, prompt="pin ")


def by_full_passes_without(writer: TextWriter, model: nn.Module, tokenizer: CharTokenizer, sample: int) -> str:
    """The same for a model with more tokens than its tokenizer has: those write nothing."""
    generator = np.random.Generator(np.random.Philox(key=writer.seed, counter=[0, 0, sample, 0]))
    tokens = list(writer.prompt)
    for number in generator.random(writer.length):
        with torch.no_grad():
            sums = np.cumsum(writer.decoder.probabilities(model(torch.tensor([tokens])).logits[:, -1])[0])
        tokens.append(int(np.searchsorted(sums, number * sums[-1], side="right")))
    assert max(tokens) >= tokenizer.vocab_size
    return tokenizer.decode([token for token in tokens if token < tokenizer.vocab_size])


def test_greedy_decoding_writes_the_likeliest_tokens_each_time() -> None:
    model = model_of()
    tokens = CHARS.encode("pin ")
    for _ in range(8):
        tokens.append(int(model(torch.tensor([tokens]))[0][0, -1].argmax()))
    written = TextWriter(model, CHARS, decoder=Decoder(top_k=1), length=8, prompt="pin ").write(range(5))
    assert {it.text for it in written} == {CHARS.decode(tokens)}


def test_a_sample_depends_on_the_seed_and_its_number_alone() -> None:
    model = model_of()

    def texts(samples: Sequence[int] = range(20), **options: Any) -> list[str]:
        return [it.text for it in TextWriter(model, CHARS, **{"length": 15, "seed": 7, **options}).write(samples)]

    together = texts(batch_size=20)
    assert len(set(together)) == 20
    assert texts(batch_size=3) == texts(batch_size=1) == together
    assert texts([13, 2]) == [together[13], together[2]]
    assert [text[:10] for text in together] == [text[:10] for text in texts(length=9)]
    assert texts(seed=8) != together


def test_an_end_token_ends_a_sample() -> None:
    model, end = model_of(), CHARS.encode("z")
    plain = [it.text for it in TextWriter(model, CHARS, length=30, end=[]).write(range(40))]
    ended = TextWriter(model, CHARS, length=30, end=end, batch_size=16).write(range(40))
    assert [it.text for it in ended] == [text.split("z")[0] for text in plain]  # also when rows have left the batch
    assert [it.tokens for it in ended] == [len(text.split("z")[0]) - 1 for text in plain]
    assert len({it.tokens for it in ended}) > 5

    class WithEnd(CharTokenizer):
        eos_token_id = end[0]

    own = TextWriter(model, WithEnd(CHARS.vocabulary), length=30).write(range(40))
    assert [it.text for it in own] == [it.text for it in ended]


def test_a_prompt_that_says_nothing() -> None:
    for characters, prompt in (("ab \n", "\n"), ("ab ", " ")):
        tokenizer = CharTokenizer.from_text(characters)
        (written,) = TextWriter(nn.Embedding(len(tokenizer.vocabulary), tokenizer.vocab_size), tokenizer).write([0])
        assert written.text.startswith(prompt)
        assert written.start == 1
    with pytest.raises(ArgumentError, match=r"prompt is None.*such as prompt='The '"):
        TextWriter(nn.Embedding(2, 2), CharTokenizer.from_text("ab"))


def test_nothing_of_the_model_or_of_global_random_states_changes() -> None:
    model = Recurrent(CHARS.vocab_size).train()
    model.cell.eval()
    weights, state = deepcopy(model.state_dict()), torch.get_rng_state()
    modes = [part.training for part in model.modules()]
    numpy_state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    sample_leaks(model, CHARS, [canary("pin 12")], samples=20, length=8)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # type: ignore[index]
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


# --- as likely as the walk says -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.9, "temperature": 1.3}], ids=str
)
def test_secrets_appear_as_often_as_leak_probability_says(options: dict[str, Any]) -> None:
    model = model_of(seed=4)
    secrets = [canary(f"pin {number:02d}") for number in range(0, 100, 7)]
    leaks = leak_probability(SecretTree(model, PIN, CHARS), [it.text for it in secrets], Decoder(**options))
    found = sample_leaks(
        model, CHARS, secrets, samples=4000, length=2, prompt="pin ", confidence=0.9999, seed=1, **options
    )
    assert any(it.samples > 50 for it in found.secrets)
    for leak, secret in zip(leaks, found.secrets, strict=True):
        assert secret.low <= leak.high
        assert leak.low <= secret.high


def test_a_table_of_probabilities_comes_out_again() -> None:
    model = Table(CHARS, lambda prefix: [0.3, 0.2] + [0.05] * 8 if not prefix else [0.0] * 7 + [0.4, 0.1, 0.2])
    secrets = [canary(f"pin {digits}") for digits in ("07", "18", "99")]
    found = sample_leaks(model, CHARS, secrets, samples=3000, length=2, prompt="pin ", confidence=0.9999)
    for secret, truth in zip(found.secrets, (0.3 * 0.4, 0.2 * 0.1, 0.05 * 0.2), strict=True):
        assert secret.low <= truth <= secret.high
    assert found.total.rate == sum(it.samples for it in found.secrets) / 3000  # one secret a sample at most


# --- counting -----------------------------------------------------------------------------------------------


def test_what_counts_as_an_appearance() -> None:
    wanted = [canary("pin 12"), canary("pin 77"), canary("pin 99", copies=0)]
    texts = [
        Written("z pin 12 pin 77 pin 12", 1, 20),  # one twice, another once
        Written("z pin 1", 1, 6),  # cut off here,
        Written("2 pin 123", 0, 9),  # and going on there is no secret; one inside of a longer number is
        Written("pin 12zzz", 6, 3),  # all of it in the prompt: not written by the model
        Written("pin 12zzz", 5, 4),  # a part of it in the prompt
        Written("pin 99pin 99", 0, 12),  # never inserted
        Written("zzzz", 0, 4),
    ]
    tally = count(CanaryFinder(CanarySet(wanted)), texts)
    assert (tally.samples, tally.tokens) == (7, 58)
    assert dict(tally.hits) == {0: 3, 1: 1, 2: 1}
    assert dict(tally.times) == {0: 4, 1: 1, 2: 2}
    assert dict(tally.leaky) == {"pin": 3, "": 3}
    assert dict(tally.controls) == {"pin": 1, "": 1}


def test_classes_of_secrets_are_counted_apart() -> None:
    key = SecretFormat("key ?", name="key")
    wanted = CanarySet([canary("pin 12"), canary("key z", format=key), canary("key n", format=key)])
    texts = [Written(text, 0, 1) for text in ("pin 12 key z", "key z", "key n key z", "")]
    tally = count(CanaryFinder(wanted), texts)
    assert dict(tally.leaky) == {"pin": 1, "key": 3, "": 3}


def test_a_scanner_looks_at_texts_and_samples_with_the_same_eyes() -> None:
    scanner = Scanner()
    training = ["my ssn is 536-90-4399.", "card 4111 1111 1111 1111; my ssn is 536-90-4399", "ssn: 219-09-9998"]
    texts = [
        Written("his ssn is 536 90 4399, hers 212-45-6789", 0, 1),  # another writing, and one that is in no text
        Written("4111 1111 1111 1111 and 4111-1111-1111-1111", 0, 1),
        Written("an ssn 212-45-6789 again", 0, 1),
        Written("536-90-4399 was given", 11, 1),
    ]
    by_texts = ScannerFinder(scanner, training)
    tally = count(by_texts, texts)
    assert [(it.kind, it.text) for it in by_texts.wanted] == [
        ("ssn", "536-90-4399"), ("credit-card", "4111 1111 1111 1111"), ("ssn", "219-09-9998"),
    ]  # fmt: skip
    assert dict(tally.hits) == {0: 1, 1: 1}
    assert dict(tally.times) == {0: 1, 1: 2}
    assert dict(tally.leaky) == {"ssn": 1, "credit-card": 1, "": 2}
    assert dict(tally.new) == {("ssn", "212456789"): 2}
    assert dict(tally.leaky_new) == {"ssn": 2}
    for given in ("\n".join(training), [it for text in training for it in scanner.find(text)]):
        assert count(ScannerFinder(scanner, given), texts) == tally
    assert count(ScannerFinder(scanner, {"a": scanner.find("\n".join(training))}), texts) == tally


def test_samples_of_several_processes_add_up() -> None:
    finder, model = finder_for([canary("pin 12"), canary("pin 00", copies=0)], None), model_of()
    writer = TextWriter(model, CHARS, length=40, prompt="pin ")
    whole, parts = write_and_count(writer, finder, range(30)), write_and_count(writer, finder, range(0, 30, 2))
    parts.add(write_and_count(writer, finder, range(1, 30, 2)))
    assert parts == whole


def test_intervals_are_exact_binomial_ones() -> None:
    found = sample_leaks(
        model_of(), CHARS, [canary(f"pin {n}") for n in range(10, 60)], samples=300, length=2, prompt="pin "
    )
    total = found.total
    assert 0 < total.leaked < 50
    exact = stats.binomtest(total.samples, 300).proportion_ci(0.95, "exact")
    assert (total.rate_low, total.rate_high) == pytest.approx((exact.low, exact.high))
    exact = stats.binomtest(total.leaked, 50).proportion_ci(0.95, "exact")
    assert (total.share_low, total.share_high) == pytest.approx((exact.low, exact.high))
    for secret in found.secrets:
        exact = stats.binomtest(secret.samples, 300).proportion_ci(0.95, "exact")
        assert (secret.low, secret.high) == pytest.approx((exact.low, exact.high))


def test_no_secret_is_shown_unless_asked_for() -> None:
    wanted = [canary("pin 12")]
    found = sample_leaks(model_of(), CHARS, wanted, samples=200, length=2, prompt="pin ")
    scanned = sample_leaks(
        model_of(), CHARS, Scanner([PIN], kinds=[]), ["pin 12", "pin 34"], samples=200, length=2, prompt="pin "
    )
    for leaks in (found, scanned):
        assert leaks.total.leaked
        shown = f"{leaks!r} {leaks} {leaks.rows()} {leaks.to_dict()} {leaks._repr_html_()} {leaks.secrets!r}"
        assert "pin 12" not in shown
        assert "'12'" not in shown
        assert leaks.to_dict(reveal=True)["secrets"][0]["text"].endswith("12")
    assert [it.name for it in found.leaked] == ["pin-12"]  # the id of the canary, chosen by the user
    assert scanned.new[0].kind == "pin"


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0; expected an integer of at least 1"),
        ({"length": 0}, "length is 0"),
        ({"temperature": 0}, r"temperature is 0; expected a number above 0\. Greedy decoding is top_k=1"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 2.0}, "top_p is 2.0"),
        ({"prompt": 3}, "prompt is 3, of type int"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"confidence": 95}, "confidence is 95"),
        ({"end": 3}, "end is 3; expected the ids"),
        ({"end": ["z"]}, r"end\[0\] is 'z'"),
        ({"context": 0}, "context is 0"),
        ({"scanner_or_canaries": []}, r"scanner_or_canaries is \[\]; expected canaries or a Scanner"),
        ({"scanner_or_canaries": ["pin 12"]}, "expected canaries or a Scanner. Draw canaries"),
        ({"scanner_or_canaries": Scanner()}, "training is None; expected the texts"),
        ({"scanner_or_canaries": Scanner(), "training": [3]}, r"training\[0\] is int; expected the texts"),
        ({"training": ["text"]}, "training is given with canaries"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"scanner_or_canaries": [canary("pin 12")], "samples": 2, "length": 2, **options}
    with pytest.raises(ArgumentError, match=message):
        sample_leaks(Stateless(CHARS.vocab_size), CHARS, **given)


def test_a_generator_gives_the_seed() -> None:
    def found(generator: torch.Generator) -> Any:
        return sample_leaks(model_of(), CHARS, [canary("pin 12")], samples=50, length=6, seed=generator)

    generator = torch.Generator().manual_seed(3)
    first, second = found(generator), found(generator)
    assert first == found(torch.Generator().manual_seed(3))
    assert first.samples == second.samples


def test_findings_know_what_their_writings_share() -> None:
    one, other = (Finding("credit-card", text, 0, 1, 1, "") for text in ("4111 1111", "4111-1111"))
    assert one.same == other.same
    assert Finding("email", "A@b.de", 0, 6, 1, "").same == "a@b.de"
    assert Finding("password", "A b ", 0, 4, 1, "").same == "A b"
