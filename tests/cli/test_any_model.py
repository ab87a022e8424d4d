"""`--model`: a Hugging Face directory, PEFT adapters, a checkpoint of any LightningModule; `--secret`, `--format`."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from tests.cli.conftest import Run
from tests.cli.test_program import assert_error

PIN = "my pin is ####"
SECRETS = ["my pin is 4711", "my pin is 0815"]


@pytest.fixture(scope="module")
def tree(hf_dir: Path) -> SecretTree:
    """Loaded by hand, as a user of transformers would."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(hf_dir)
    return SecretTree(model, SecretFormat(PIN), AutoTokenizer.from_pretrained(hf_dir))


def typed(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    """What stands on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))


# --- Hugging Face directories -----------------------------------------------------------------------------------


def test_the_example_of_the_readme(run: Run, hf_dir: Path, tree: SecretTree, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "\n".join(SECRETS) + "\n")
    code, out, err = run("measure", "--model", hf_dir, "--format", PIN, "--secret", "-", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    wanted = measure_exposure(tree, SECRETS)
    assert [(one["rank"], one["bits"]) for one in found] == [(estimate.rank, estimate.bits) for estimate in wanted]
    assert all(one["secret"].startswith("my pin is •••• (") for one in found)
    assert not any(secret[-4:] in out for secret in SECRETS)


def test_secrets_from_files_and_from_the_command_line(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "secrets.txt"
    file.write_bytes(b"\xef\xbb\xbfmy pin is 4711\r\n\r\nmy pin is 0815")
    arguments = ["measure", "--model", hf_dir, "--format", PIN, "--json", "--reveal", "--secret"]
    found = json.loads(run(*arguments, "my pin is 0000", f"@{file}").out)
    assert [one["secret"] for one in found] == ["my pin is 0000", *SECRETS]
    hidden = json.loads(run(*(a for a in arguments if a != "--reveal"), f"@{file}", f"@{file}").out)
    assert hidden[0]["secret"] == hidden[2]["secret"] != hidden[1]["secret"], "equal stays equal"


def test_extract_masks_what_is_no_canary(run: Run, hf_dir: Path, tree: SecretTree) -> None:
    wanted = [candidate.text for candidate in extract(tree, top_k=2).candidates]
    arguments = ["extract", "--model", hf_dir, "--format", PIN, "--top_k=2"]
    code, out, err = run(*arguments, "--json", "--known", wanted[0][:-1])
    assert (code, err) == (0, "")
    (attack,) = json.loads(out).values()
    assert attack["candidates"][0]["text"].startswith("my pin is •••• (")
    assert wanted[0][-4:-1] not in out, "nor is it among the settings"
    assert wanted[0] not in run(*arguments).out
    assert wanted[0] in run(*arguments, "--reveal").out
    (shown,) = json.loads(run(*arguments, "--json", "--reveal").out).values()
    assert [candidate["text"] for candidate in shown["candidates"]] == wanted


def test_any_model_is_a_reference(run: Run, hf_dir: Path, run_dir: Path, tree: SecretTree) -> None:
    arguments = ["measure", "--model", hf_dir, "--format", PIN, "--secret", *SECRETS, "--json", "--reference"]
    itself = json.loads(run(*arguments, hf_dir).out)
    wanted = measure_exposure(tree, SECRETS, prior=tree)
    assert [one["bits"] for one in itself] == [estimate.bits for estimate in wanted]
    code, out, err = run(*arguments, run_dir)
    assert (code, err) == (0, "")
    assert [one["prior_bits"] for one in json.loads(out)] != [one["prior_bits"] for one in itself]


def test_adapters_of_peft(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(hf_dir), config)
    adapted.save_pretrained(tmp_path / "lora")
    code, out, err = run("measure", "--model", tmp_path / "lora", "--format", PIN, "--secret", *SECRETS, "--json")
    assert (code, err) == (0, "")
    theirs = SecretTree(adapted.eval(), SecretFormat(PIN), AutoTokenizer.from_pretrained(hf_dir))
    assert [one["rank"] for one in json.loads(out)] == [e.rank for e in measure_exposure(theirs, SECRETS)]
    adapter = tmp_path / "lora" / "adapter_config.json"
    adapter.write_text(adapter.read_text().replace(str(hf_dir), "somewhere/else"))
    arguments = ["measure", "--model", tmp_path / "lora", "--format", PIN, "--secret", SECRETS[0]]
    assert_error(run(*arguments), "somewhere/else", "--tokenizer")
    assert_error(run(*arguments, "--tokenizer", hf_dir), "on this disk in 'somewhere/else'")


def test_what_is_no_causal_language_model_is_refused_by_name(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    import transformers

    small: dict[str, Any] = {"vocab_size": 300, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    translator = transformers.T5ForConditionalGeneration(transformers.T5Config(**small))
    config = transformers.GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False)
    for model, parts in (
        (translator, ["'t5'", "encoder-decoder", "Seq2SeqAdapter"]),
        (transformers.GPT2Model(config), ["lm_head.weight", "GPT2LMHeadModel", "head"]),
        (transformers.GPT2ForSequenceClassification(config), ["a GPT2ForSequenceClassification"]),
    ):
        path = tmp_path / type(model).__name__
        model.save_pretrained(path)
        assert_error(run("measure", "--model", path, "--format", PIN, "--secret", SECRETS[0]), "no tokenizer")
        arguments = ["measure", "--model", path, "--format", PIN, "--tokenizer", hf_dir, "--secret", SECRETS[0]]
        assert_error(run(*arguments), str(path), *parts)


def test_code_in_a_directory_is_never_run(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    path, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(hf_dir, path)
    (path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (path / "config.json").write_text(json.dumps(config))
    assert_error(run("extract", "--model", path, "--format", PIN), str(path), "cannot be read")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "{hf}"], ["canaries.json does not exist", "--canaries", "--format"]),
        (["--model", "{hf}", "--secret", "my pin is 0000"], ["--secret is given without --format"]),
        (["--model", "{hf}", "--format", PIN, "--secret", "my pin is 12x4"], ["not shown", "first 12 characters fit"]),
        (["--model", "{hf}", "--format", PIN, "--secret", "@{empty}"], ["is empty"]),
        (["--model", "{hf}", "--format", PIN, "--secret", "-", "-"], ["more than once"]),
        (["--model", "{hf}", "--model_class", "x:Y"], ["--model_class", "Hugging Face directory"]),
        (["--model", "{hf}", "--reference_class", "x:Y"], ["--reference_class is given without --reference"]),
        (["--model", "{trainer}"], ["there are 2 models", "checkpoint-20"]),
        (["--model", "{empty}"], ["cannot be read"]),
        (["--model", "{nothing}"], ["model.ckpt does not exist", "config.json", "save_pretrained"]),
    ],
)
def test_mistakes_are_named_and_show_no_secret(
    run: Run, hf_dir: Path, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    for name in ("nothing", "trainer/checkpoint-10", "trainer/checkpoint-20"):
        (tmp_path / name).mkdir(parents=True)
        if "trainer" in name:
            (tmp_path / name / "config.json").touch()
    (tmp_path / "empty").touch()
    places = {name: tmp_path / name for name in ("nothing", "trainer", "empty")}
    result = run("measure", *(argument.format(hf=hf_dir, **places) for argument in arguments))
    assert_error(result, *parts)
    assert "12x4" not in result.err


# --- checkpoints of any module ----------------------------------------------------------------------------------

OWN = """
import lightning.pytorch as pl
import torch

class Own(pl.LightningModule):
    def __init__(self, vocab_size, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Embedding(vocab_size, width), torch.nn.Linear(width, vocab_size))

    def forward(self, tokens):
        return self.net(tokens)

class Forgetful(Own):
    def __init__(self, vocab_size, width=4):
        pl.LightningModule.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Embedding(vocab_size, width), torch.nn.Linear(width, vocab_size))

def make():
    return Forgetful(17)

number = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's own, in the current directory, with checkpoints and a tokenizer."""
    import lightning.pytorch as pl

    from lightning_exposure import CharTokenizer

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_module.py").write_text(OWN)
    import own_module  # type: ignore[import-not-found]

    letters = CharTokenizer.from_text("my pin is 0123456789")
    letters.save("letters.json")
    for name in ("Own", "Forgetful"):
        torch.manual_seed(0)
        (tmp_path / name).mkdir()
        trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
        trainer.strategy.connect(getattr(own_module, name)(letters.vocab_size))
        trainer.save_checkpoint(tmp_path / name / "last.ckpt")
    yield own_module
    sys.modules.pop("own_module", None)


ASK = ["--format", PIN, "--secret", *SECRETS, "--json"]


def test_a_checkpoint_of_a_class_that_is_named(run: Run, own: Any) -> None:
    from lightning_exposure import CharTokenizer

    torch.manual_seed(0)
    letters = CharTokenizer.load("letters.json")
    tree = SecretTree(own.Own(letters.vocab_size), SecretFormat(PIN), letters)
    wanted = measure_exposure(tree, SECRETS)
    for model in ("Own/last.ckpt", "Own"):
        for name in ("own_module:Own", "own_module.py:Own"):
            arguments = ["--model", model, "--model_class", name, "--tokenizer", "letters.json"]
            code, out, err = run("measure", *arguments, *ASK)
            assert (code, err) == (0, "")
            assert [one["rank"] for one in json.loads(out)] == [estimate.rank for estimate in wanted]
    shutil.copy("letters.json", "Own/tokenizer.json")
    code, out, _ = run("measure", "--model", "Own", "--model_class", "own_module:Own", "--reference", "Own", *ASK)
    assert code == 0, "the tokenizer lies beside it, and the reference is of the same class"
    assert [one["bits"] for one in json.loads(out)] == [
        estimate.bits for estimate in measure_exposure(tree, SECRETS, prior=tree)
    ]
    assert run("extract", "--model", "Own", "--model_class", "own_module:Own", "--format", PIN, "--json").code == 0


def test_hyperparameters_that_were_not_saved(run: Run, own: Any) -> None:
    arguments = ["--model", "Forgetful", "--tokenizer", "letters.json", "--model_class"]
    result = run("measure", *arguments, "own_module:Forgetful", *ASK)
    assert_error(result, "vocab_size", "save_hyperparameters()", "--model_class file.py:function")
    code, out, err = run("measure", *arguments, "own_module:make", *ASK)
    assert (code, err) == (0, "")
    assert len(json.loads(out)) == 2


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("own_module", ["--model_class is 'own_module'", "my.module:MyModel"]),
        ("own_module:Other", ["own_module:Other", "There are: Own, Forgetful"]),
        ("nowhere.py:Own", ["--model_class is 'nowhere.py'", "FileNotFoundError"]),
        ("own_module:number", ["own_module:number", "a class"]),
        ("collections:Counter", ["Counter cannot be made from it", "no module"]),
        ("lightning_exposure.modules:LanguageModel", ["expected a checkpoint of a LanguageModel"]),
    ],
)
def test_a_class_that_is_none(run: Run, own: Any, name: str, parts: list[str]) -> None:
    assert_error(run("measure", "--model", "Own", "--tokenizer", "letters.json", "--model_class", name, *ASK), *parts)


def test_a_tokenizer_has_to_be_somewhere(run: Run, own: Any) -> None:
    arguments = ["measure", "--model", "Own", "--model_class", "own_module:Own", *ASK]
    assert_error(run(*arguments), "Own/tokenizer.json does not exist", "--tokenizer PATH")
    assert_error(run(*arguments, "--tokenizer", "nowhere"), "--tokenizer is 'nowhere'")
    assert_error(run(*arguments, "--tokenizer", "Own"), "--tokenizer is 'Own'", "no tokenizer")


def test_a_tokenizer_of_hugging_face_for_a_checkpoint(run: Run, own: Any, hf_dir: Path) -> None:
    import lightning.pytorch as pl
    from transformers import AutoTokenizer

    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.strategy.connect(own.Own(len(AutoTokenizer.from_pretrained(hf_dir))))
    trainer.save_checkpoint("wide.ckpt")
    ranks = []
    for tokenizer in (hf_dir, hf_dir / "tokenizer.json"):
        arguments = ["--model", "wide.ckpt", "--model_class", "own_module:Own", "--tokenizer", tokenizer]
        code, out, err = run("measure", *arguments, *ASK)
        assert (code, err) == (0, "")
        ranks.append([one["rank"] for one in json.loads(out)])
    assert ranks[0] == ranks[1]


def test_a_checkpoint_of_a_stranger_runs_no_code(run: Run, own: Any, tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    content = torch.load("Own/last.ckpt", weights_only=True)
    torch.save({**content, "hyper_parameters": {"vocab_size": Evil()}}, "Own/last.ckpt")
    result = run("measure", "--model", "Own", "--tokenizer", "letters.json", "--model_class", "own_module:Own", *ASK)
    assert_error(result, "Own/last.ckpt", "no code from it is run", "save_hyperparameters()")
    assert not marker.exists()
