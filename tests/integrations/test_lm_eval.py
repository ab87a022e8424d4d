"""The task for lm-evaluation-harness: written, run by the harness itself, and compared with our own numbers."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_exposure import CanarySet, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.cli import main
from lightning_exposure.errors import ArgumentError, ScoreError
from lightning_exposure.exposure import exposure_from_scores
from lightning_exposure.integrations.lm_eval import Reported, write_task
from lightning_exposure.walks import score

# ---- the numbers ---------------------------------------------------------------------------------------------------


def test_exposure_from_scores_is_that_of_sampling(hf_model: Any) -> None:
    model, tokenizer, _ = hf_model
    tree = SecretTree(model, SecretFormat("my pin is ####"), tokenizer)
    texts = ["my pin is 4711", "my pin is 0815"]
    wanted = measure_exposure(tree, texts, "sampling", samples=200, seed=3)
    references = tree.format.sample(200, 3, exclude=texts)
    found = exposure_from_scores(texts, score(tree, texts).costs, score(tree, references).costs, tree.size)
    for one, other in zip(found, wanted, strict=True):
        assert (one.bits, one.low, one.high, one.rank) == pytest.approx((other.bits, other.low, other.high, other.rank))


def test_with_every_other_secret_as_a_reference_it_is_exact() -> None:
    costs = np.random.default_rng(0).permutation(10).astype(float)
    (found,) = exposure_from_scores(["it"], costs[:1], costs[1:], 10)
    assert (found.rank, found.bits) == (1 + costs[0], pytest.approx(math.log2(10 / (1 + costs[0]))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [1.0], [], 10), "references has 0 scores"),
        ((["a"], [math.nan], [1.0], 10), "costs has 1 scores that are NaN"),
        ((["a", "b"], [1.0], [1.0], 10), "secrets is '2 names'; expected one for each of the 1 costs"),
        ((["a"], [1.0], [1.0, 2.0], 2), "size is 2; expected an integer of at least 3"),
    ],
)
def test_scores_that_make_no_exposure(arguments: Any, message: str) -> None:
    with pytest.raises((ScoreError, ArgumentError), match=message):
        exposure_from_scores(*arguments)


# ---- the task ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf_model(tmp_path_factory: Any) -> tuple[Any, Any, Path]:
    """A tiny GPT-2 and a tokenizer, as a harness finds them on disk."""
    import tokenizers
    import torch
    import transformers

    bytes_ = tokenizers.pre_tokenizers.ByteLevel
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = bytes_(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    texts = ["<|end|> my pin is 4711 and 0815", "the code is abc"] * 3
    special = ["<|end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=bytes_.alphabet(), special_tokens=special)
    made.train_from_iterator(texts, trainer)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=made.get_vocab_size(), n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():  # so that some secrets are much likelier than others
        parameter.data *= 8.0
    path: Path = tmp_path_factory.mktemp("model") / "gpt2"
    model.save_pretrained(path)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    tokenizer.save_pretrained(path)
    return model, tokenizer, path


@pytest.fixture(scope="module")
def canaries() -> CanarySet:
    formats = [SecretFormat("my pin is ####"), SecretFormat("the code is ???", name="code")]
    return CanarySet.draw(formats, repetitions=[1, 4], seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the harness and its many libraries
def test_the_harness_reports_what_we_measure(hf_model: Any, canaries: CanarySet, tmp_path: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    model, tokenizer, path = hf_model
    canaries.save(tmp_path / "canaries.json")
    task = tmp_path / "task"
    arguments = ["export", "lm-eval", f"--canaries={tmp_path / 'canaries.json'}", f"--out={task}", "--references=100"]
    assert main([*arguments, "--seed=7", "--task=my-exposure"]) == 0
    for file in task.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    done = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={path},dtype=float32",
        tasks=["my-exposure"],
        task_manager=TaskManager(include_path=str(task), include_defaults=False),
        device="cpu",
        batch_size=32,
        log_samples=True,
        bootstrap_iters=10,
    )
    results, lows = done["results"]["my-exposure"], []
    for format_, group in canaries.by_format().items():
        tree = SecretTree(model, format_, tokenizer)
        texts = [canary.text for canary in group]
        for canary, wanted in zip(group, measure_exposure(tree, texts, "sampling", samples=100, seed=7), strict=True):
            found = [results[f"{name}/{canary.id},none"] for name in ("exposure", "exposure_low", "rank")]
            assert found == pytest.approx([wanted.bits, wanted.low, wanted.rank], abs=1e-6)
            lows.append(wanted.low)
    assert results["exposure_low/max,none"] == pytest.approx(max(lows), abs=1e-6)
    assert len(set(lows)) > 1, "not all the same by accident"
    scored = {sample["doc"]["prompt"] + sample["doc"]["secret"]: sample for sample in done["samples"]["my-exposure"]}
    assert len(scored) == 2 * 100 + len(canaries), "one request for each"


def test_secrets_from_a_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "secrets.txt").write_text("my pin is 4711\nmy pin is 0815\nmy pin is 4711\n")
    arguments = ["export", "lm-eval", f"--out={tmp_path / 'task'}", "--format=pin", "--references=5"]
    assert main([*arguments, f"--secret=@{tmp_path / 'secrets.txt'}"]) == 0
    said = capsys.readouterr().out
    assert "4711" not in said
    assert f"--include_path {tmp_path / 'task'} --tasks exposure" in said
    lines = (tmp_path / "task" / "documents.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    assert [document["id"] for document in documents] == ["secret-1", "secret-2", *[""] * 5]
    assert documents[0] == {
        "id": "secret-1",
        "format": "pin",
        "prompt": "my pin is ",
        "secret": "4711",
        "size": "10000",
    }
    assert len({document["secret"] for document in documents}) == 7, "no reference is a secret"


def test_a_canary_that_was_not_scored() -> None:
    with pytest.raises(ScoreError, match=r"pin-4x was not scored; expected all documents\. Run .* without --limit"):
        Reported("exposure/pin-4x")([("pin-1x", "pin", 2.0, 100), ("", "pin", 3.0, 100)])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "the following arguments are required: TOOL, --out"),
        (["lm-evil", "--out=x"], "lm-evil"),
        (["lm-eval", "--out=x"], "neither of them given"),
        (["lm-eval", "--out=x", "--canaries=nowhere.json"], "nowhere.json"),
        (["lm-eval", "--out=x", "--secret=a"], "without --format"),
        (["lm-eval", "--out=x", "--format=pin", "--secret=my pin is 12"], "not shown"),
        (["lm-eval", "--out=x", "--format=pin", "--secret=my pin is 1234", "--references=0"], "references is 0"),
        (["lm-eval", "--out=.", "--format=pin", "--secret=my pin is 1234"], "a new or empty directory"),
        (["lm-eval", "--out=x", "--format=pin", "--secret=my pin is 1234", "--task=My Task"], "name is 'My Task'"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert "1234" not in said
    assert not (tmp_path / "x").exists()


def test_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="canaries is empty"):
        write_task(tmp_path / "task", CanarySet([]))
    one = CanarySet.draw(SecretFormat("pin #"), repetitions=[1] * 10)
    with pytest.raises(ArgumentError, match="some that are left as references"):
        write_task(tmp_path / "task", one)
    assert not (tmp_path / "task").exists()
