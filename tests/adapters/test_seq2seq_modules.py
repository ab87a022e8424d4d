"""Which modules, sources and beginnings of targets an encoder-decoder's adapter takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter, TargetTokenizer
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.walks import score
from tests import oracle
from tests.translators import (
    BART_LIKE,
    CASES,
    END,
    LETTERS,
    PADDING,
    PIN,
    SOURCE,
    START,
    Case,
    LogitsOnly,
    make_bart,
    make_t5,
)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], ids=str)
def test_the_target_needs_no_prompt(case: Case) -> None:
    format = SecretFormat("###")
    tree = SecretTree(Seq2SeqAdapter(case.model, SOURCE), format, TargetTokenizer(LETTERS, case.start))
    texts = oracle.all_texts(format)
    costs = dict(zip(texts, case.many([SOURCE] * len(texts), list(map(LETTERS.encode, texts))), strict=True))
    np.testing.assert_allclose(score(tree, list(costs)).costs, list(costs.values()), atol=1e-4)
    secret = sorted(costs, key=costs.__getitem__)[41]
    (estimate,) = measure_exposure(tree, [secret], method="exact")
    assert estimate.rank == 42


def test_the_start_token_can_be_chosen() -> None:
    case = CASES[1]
    other = Seq2SeqAdapter(case.model, SOURCE, start=END)
    assert other.start_id == END
    text = PIN.render(5)
    (cost,) = score(SecretTree(other, PIN, LETTERS), [text]).costs
    chosen = Case(case.name, case.make, start=END)
    assert cost == pytest.approx(chosen.cost(SOURCE, LETTERS.encode(text), len(PIN.prompt)), abs=1e-6)
    assert cost != pytest.approx(case.costs(PIN)[text], abs=1e-5)


def test_a_model_that_does_not_say_how_targets_begin() -> None:
    model = LogitsOnly()
    model.start_id = None  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match=r"start is None, and LogitsOnly says None.*Give start="):
        Seq2SeqAdapter(model, SOURCE)
    assert Seq2SeqAdapter(model, SOURCE, start=START).start_id == START


# --- which module -------------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_a_module_that_holds_an_encoder_decoder(case: Case) -> None:
    adapter = Seq2SeqAdapter(Holder(other=nn.Linear(2, 2), translator=case.model), SOURCE)
    assert adapter.module is case.model


def make_relative(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**BART_LIKE)
    made: nn.Module = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return made


def make_bert_to_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    encoder = transformers.BertConfig(vocab_size=LETTERS.vocab_size, **sizes)
    decoder = transformers.BertConfig(vocab_size=LETTERS.vocab_size, **sizes, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = START, PADDING
    return transformers.EncoderDecoderModel(config=config)


@pytest.mark.parametrize(
    "case",
    [
        *(Case(name, partial(make_relative, name), scale=2.0) for name in ("MBart", "Pegasus", "M2M100", "NllbMoe")),
        Case("BERT to BERT", make_bert_to_bert, scale=2.0),
    ],
    ids=str,
)
def test_other_encoder_decoders_of_hugging_face(case: Case) -> None:
    adapter = Seq2SeqAdapter(case.model, SOURCE)
    assert adapter.keeps_state
    texts = oracle.all_texts(PIN)[::40]
    costs = score(SecretTree(adapter, PIN, LETTERS), texts).costs
    np.testing.assert_allclose(costs, [case.costs(PIN)[text] for text in texts], atol=1e-6)


def test_a_peft_module() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q", "v"], init_lora_weights=False)
    case = Case("T5 with LoRA", lambda: peft.get_peft_model(make_t5(), config), start=PADDING, scale=4.0)
    adapter = Seq2SeqAdapter(case.model, SOURCE)
    assert adapter.keeps_state
    texts = oracle.all_texts(PIN)[::200]
    costs = score(SecretTree(adapter, PIN, LETTERS), texts).costs
    np.testing.assert_allclose(costs, [case.costs(PIN)[text] for text in texts], atol=1e-4)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(3, 3), r"model is Linear, which is no encoder-decoder. Expected a Hugging Face"),
        ("t5", r"model is str, which is no encoder-decoder"),
        (Holder(one=LogitsOnly(), two=LogitsOnly()), r"Holder holds 2 encoder-decoders \(one, two\)"),
    ],
)
def test_modules_that_are_refused(model: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Seq2SeqAdapter(model, SOURCE)


class Unclear(LogitsOnly):
    def encode(self, source: Tensor) -> Any:
        return torch.zeros(5, 5)


class NoMemory(LogitsOnly):
    def encode(self, source: Tensor) -> Any:
        return "memory"


class Failing(LogitsOnly):
    def encode(self, source: Tensor) -> Any:
        raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Unclear, r"encode of Unclear returned a tensor of shape \(5, 5\) for 2 sources"),
        (NoMemory, r"encode of NoMemory returned str"),
        (Failing, r"encode of Failing failed on token ids of shape \(2, 4\): ZeroDivisionError\('oh'\)"),
    ],
)
def test_encoders_that_are_refused(model: type[nn.Module], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Seq2SeqAdapter(model(), SOURCE)


def test_token_ids_that_the_model_does_not_have() -> None:
    with pytest.raises(ModelError, match=r"failed on a source of 2 tokens.*Are these ids within its vocabularies"):
        Seq2SeqAdapter(make_bart(), SOURCE[:2], start=10_000)


@pytest.mark.parametrize("source", ["my pin is", [], 3, [1.5], [[1, 2]], [-1]])
def test_sources_that_are_refused(source: Any) -> None:
    with pytest.raises(ArgumentError, match=r"source is .*; expected the token ids of one source"):
        Seq2SeqAdapter(LogitsOnly(), source)


def test_a_tensor_is_a_source() -> None:
    Seq2SeqAdapter(LogitsOnly(), torch.tensor(SOURCE))  # type: ignore[arg-type]


def test_a_source_with_blanks_is_no_tree_and_the_error_says_what_is() -> None:
    with pytest.raises(ArgumentError, match=r"'my pin is ###': every secret would have.*measure_tied_exposure"):
        Seq2SeqAdapter(LogitsOnly(), SecretFormat("my pin is ###"))  # type: ignore[arg-type]
