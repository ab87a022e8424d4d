"""Encoder-decoders with a given source: the tree of targets, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters import StepModel
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter, TargetTokenizer
from lightning_exposure.tokenization import WordTokenizer
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.walks import score
from tests import oracle
from tests.toys import MergingTokenizer, sharpened
from tests.translators import (
    CASES,
    KEEPING,
    LETTERS,
    PIN,
    SOURCE,
    Case,
    each_model,
    make_lstm,
)


@each_model
def test_costs_are_those_of_full_passes(case: Case) -> None:
    costs = case.costs(PIN)
    assert np.ptp(list(costs.values())) > 1.0, "a flat model would show nothing"
    texts = list(costs)
    np.testing.assert_allclose(score(case.tree(), texts).costs, list(costs.values()), atol=1e-4)


@each_model
def test_exact_exposures_are_those_of_brute_force(case: Case) -> None:
    costs = case.costs(PIN)
    secrets = sorted(costs, key=costs.__getitem__)[::111]
    tree = case.tree()
    for estimate in measure_exposure(tree, secrets, method="exact"):
        rank = oracle.rank(estimate.secret, costs)
        assert estimate.rank == rank
        assert estimate.bits == pytest.approx(math.log2(1000) - math.log2(rank))


@each_model
def test_the_shortest_path_is_the_cheapest_target(case: Case) -> None:
    costs = case.costs(PIN)
    found = extract(case.tree(), top_k=3)
    assert found.optimal
    assert [candidate.text for candidate in found.candidates] == sorted(costs, key=costs.__getitem__)[:3]


@each_model
def test_beam_and_importance_sampling_agree_with_brute_force(case: Case) -> None:
    costs = case.costs(PIN)
    best = min(costs, key=costs.__getitem__)
    assert extract(case.tree(), algorithm="beam", width=1000).candidates[0].text == best
    middle = sorted(costs, key=costs.__getitem__)[300]
    (estimate,) = measure_exposure(case.tree(), [middle], method="importance", samples=200, confidence=0.999)
    assert estimate.low <= math.log2(1000 / 301) <= estimate.high


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_ten_thousand_candidates(case: Case) -> None:
    format = SecretFormat("pin: ##-##")
    costs = case.costs(format)
    secrets = sorted(costs, key=costs.__getitem__)[5::2500]
    tree = case.tree(format)
    ranks = [estimate.rank for estimate in measure_exposure(tree, secrets, method="exact")]
    assert ranks == [oracle.rank(secret, costs) for secret in secrets]


@each_model
def test_in_float32_too(case: Case) -> None:
    single = Case(case.name, case.make, case.start, case.scale)
    single.model.float()
    texts = oracle.all_texts(PIN)[::20]
    costs = [single.costs(PIN)[text] for text in texts]
    np.testing.assert_allclose(score(single.tree(), texts).costs, costs, atol=1e-4)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3]], ids=str)
def test_tokens_of_several_characters(case: Case) -> None:
    tokenizer = MergingTokenizer("mepinst 0123456789", merged=["12", "7 ", " 3"])
    format = SecretFormat("pin ist ##")
    free = oracle.shared_tokens(format, tokenizer)
    costs = {text: case.cost(SOURCE, tokenizer.encode(text), free) for text in oracle.all_texts(format)}
    tree = SecretTree(Seq2SeqAdapter(case.model, SOURCE), format, tokenizer)
    np.testing.assert_allclose(score(tree, list(costs)).costs, list(costs.values()), atol=1e-4)
    assert [c.text for c in extract(tree, top_k=5).candidates] == sorted(costs, key=costs.__getitem__)[:5]
    secret = sorted(costs, key=costs.__getitem__)[20]
    assert [e.rank for e in measure_exposure(tree, [secret], method="exact")] == [21]


def make_subwords() -> Any:
    """A byte-level BPE tokenizer that merges some digits, and ends every text with a special token."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    subwords = Tokenizer(models.BPE())
    subwords.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    subwords.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<pad>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    text = " ".join(f"meine pin ist {number:03} und {number % 7}" for number in range(0, 1000, 3))
    subwords.train_from_iterator([text], trainer)
    subwords.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=subwords, pad_token="<pad>", eos_token="</s>")


@pytest.mark.parametrize("pattern", ["meine pin ist ###", "###"])
def test_subwords_with_or_without_a_prompt(pattern: str) -> None:
    subwords = make_subwords()
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=len(subwords), **sizes, decoder_start_token_id=0)
    case = Case("T5", lambda: transformers.T5ForConditionalGeneration(config), start=0, scale=4.0)
    source = subwords.encode("my pin is 815")
    assert source[-1] == 1, "the source ends as in training"
    format = SecretFormat(pattern)
    tokenizer = HuggingFaceTokenizer(subwords)
    tree = SecretTree(
        Seq2SeqAdapter(case.model, source), format, subwords if format.prompt else TargetTokenizer(tokenizer, 0)
    )
    spelled = {text: tokenizer.encode(text) for text in oracle.all_texts(format)}
    assert len({len(tokens) for tokens in spelled.values()}) > 1, "some digits are merged"
    free = len(tree.spelling.root) - (0 if format.prompt else 1)
    costs: dict[str, float] = {}
    for length in {len(tokens) for tokens in spelled.values()}:
        alike = {text: tokens for text, tokens in spelled.items() if len(tokens) == length}
        costs |= zip(alike, case.many([source] * len(alike), list(alike.values()), free), strict=True)
    np.testing.assert_allclose(score(tree, list(costs)).costs, list(costs.values()), atol=1e-4)
    secret = sorted(costs, key=costs.__getitem__)[20]
    assert [e.rank for e in measure_exposure(tree, [secret], method="exact")] == [21]
    assert extract(tree).candidates[0].text == min(costs, key=costs.__getitem__)


@each_model
def test_a_source_is_given_and_matters(case: Case) -> None:
    other = SecretTree(Seq2SeqAdapter(case.model, LETTERS.encode("something else")), PIN, LETTERS)
    texts = oracle.all_texts(PIN)[:50]
    assert not np.allclose(score(other, texts).costs, score(case.tree(), texts).costs, atol=1e-3)


# --- states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KEEPING, ids=str)
def test_decoders_that_keep_a_state_read_on_from_it(case: Case) -> None:
    adapter = Seq2SeqAdapter(case.model, SOURCE)
    assert isinstance(adapter, StepModel)
    assert adapter.keeps_state


@pytest.mark.parametrize("case", CASES[5:], ids=str)
def test_a_state_that_does_not_carry_what_was_read_is_not_used(case: Case) -> None:
    assert not Seq2SeqAdapter(case.model, SOURCE).keeps_state


@each_model
def test_rows_of_different_lengths_in_one_batch(case: Case) -> None:
    adapter = Seq2SeqAdapter(case.model, SOURCE)
    with torch.no_grad():
        _, root = adapter.start(LETTERS.encode("pin "))
        rows = torch.zeros(2, dtype=torch.long)
        _, one = adapter.step(adapter.select(root, rows), torch.tensor(LETTERS.encode("12")))
        _, two = adapter.step(one, torch.tensor(LETTERS.encode("34")))
        mixed = adapter.concatenate([two, adapter.select(root, rows[:1]), one])
        mixed = adapter.select(mixed, torch.tensor([4, 0, 2, 1, 3]))
        logits, after = adapter.step(mixed, torch.tensor(LETTERS.encode("56789")))
        again, _ = adapter.step(after, torch.tensor(LETTERS.encode("00000")))
    for row, text in enumerate(["pin 25", "pin 136", "pin 7", "pin 248", "pin 19"]):
        for given, read in ((logits, text), (again, text + "0")):
            target = LETTERS.encode(read + "x")
            expected = case.full_passes([SOURCE], [target])[0, -1]
            torch.testing.assert_close(given[row], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("case", KEEPING, ids=str)
def test_little_memory_changes_nothing_but_time(case: Case) -> None:
    costs = case.costs(PIN)
    tree = case.tree(batch_size=16)
    found = extract(tree, top_k=2, memory=2**15)
    assert [candidate.text for candidate in found.candidates] == sorted(costs, key=costs.__getitem__)[:2]
    secret = sorted(costs, key=costs.__getitem__)[100]
    (estimate,) = measure_exposure(tree, [secret], method="exact", memory=2**15)
    assert estimate.rank == 101


@pytest.mark.parametrize("case", KEEPING[:3], ids=str)
def test_what_rows_share_is_kept_once(case: Case) -> None:
    adapter = Seq2SeqAdapter(case.model, SOURCE)
    with torch.no_grad():
        _, root = adapter.start(LETTERS.encode("meine pin ist "))
        many = adapter.select(root, torch.zeros(1000, dtype=torch.long))
        _, many = adapter.step(many, torch.zeros(1000, dtype=torch.long))
    assert many.columns == 1, "a row has its own token only, not those of the prompt"
    assert many.prompt is root.prompt, "the prompt is there once"
    assert {keys.shape[1] for keys, _ in many.prompt.layers} == {1 + len("meine pin ist ")}
    source = many.prompt.beside
    assert {len(tensor) for layer in source.layers for tensor in layer} == {len(source.encoded)} == {1}
    assert adapter.bytes_of(many) == sum(tensor.numel() * 8 for tensor in [*many.stacks, many.lengths])
    assert adapter.row_bytes(root, 3) > adapter.bytes_of(many) / 1000


def encoder_calls(case: Case, work: Callable[[SecretTree], Any]) -> tuple[int, int]:
    """How often the encoder and the decoder run during some work on a tree."""
    tree = case.tree()
    names = ("encoder", "decoder")
    inner = next(part for part in case.model.modules() if all(hasattr(part, name) for name in names))
    counts = dict.fromkeys(names, 0)

    def count(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[name] += 1

        return hook

    hooks = [getattr(inner, name).register_forward_hook(count(name)) for name in names]
    try:
        work(tree)
    finally:
        for hook in hooks:
            hook.remove()
    return counts["encoder"], counts["decoder"]


@pytest.mark.parametrize("case", KEEPING, ids=str)
def test_the_source_is_encoded_when_a_walk_begins_and_never_at_a_step(case: Case) -> None:
    def walk(tree: SecretTree) -> None:
        children = tree.root()
        for _ in range(2):
            children = tree.expand(children.take(np.flatnonzero(children.open)))

    assert encoder_calls(case, walk) == (1, 3)


@each_model
def test_it_can_be_walked_again_after_more_training(case: Case) -> None:
    torch.manual_seed(0)
    changed = Case(case.name, case.make, case.start, case.scale)
    tree = changed.tree()
    before = score(tree, [PIN.render(7)]).costs
    sharpened(changed.model, seed=2, scale=case.scale)
    after = score(tree, [PIN.render(7)]).costs
    assert before != after
    free = oracle.shared_tokens(PIN, LETTERS)
    assert after == pytest.approx(changed.cost(SOURCE, LETTERS.encode(PIN.render(7)), free), abs=1e-4)


def test_a_walk_changes_no_mode() -> None:
    model = make_lstm(dropout=0.5)
    model.train()
    model.network.encoder.eval()
    tree = SecretTree(Seq2SeqAdapter(model, SOURCE), PIN, LETTERS)
    texts = oracle.all_texts(PIN)[:5]
    assert np.array_equal(score(tree, texts).costs, score(tree, texts).costs), "no dropout while it reads"
    assert model.training
    assert model.network.decoder.training
    assert not model.network.encoder.training


def test_number_words_with_a_large_vocabulary() -> None:
    names = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    words = WordTokenizer(["<pad>", "<s>", *(f"wort{i}" for i in range(2000)), "meine", "nummer", "ist", *names])
    format = SecretFormat("meine nummer ist {z} {z} {z}", z=names)
    model = sharpened(make_lstm(target_vocab_size=words.vocab_size), seed=3)
    tree = SecretTree(Seq2SeqAdapter(model, SOURCE), format, words)
    case = Case("words", lambda: model)
    costs = {text: case.cost(SOURCE, words.encode(text), free=3) for text in oracle.all_texts(format)[::10]}
    np.testing.assert_allclose(score(tree, list(costs)).costs, list(costs.values()), atol=1e-6)
