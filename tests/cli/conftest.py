"""One tiny run for all tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightning_exposure.cli import main
from lightning_exposure.data.corpora import python_topics

TINY = [
    "--format=pin",
    "--repetitions",
    "1",
    "30",
    "--model.architecture=gru",
    "--model.hidden_size=48",
    "--model.num_layers=1",
    "--model.embedding_size=16",
    "--model.lr=0.01",
    "--data.batch_size=16",
    "--data.window=32",
    "--exposure.references=64",
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: Any) -> Run:
    """Runs the command in this process."""

    def run_(*arguments: object) -> Result:
        capsys.readouterr()  # whatever was said before is not the command's
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # --help and --version
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return run_


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(python_topics()[:10_000], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: Any, text_file: Path) -> Path:
    """What `fit` leaves after a few epochs, made once."""
    path: Path = tmp_path_factory.mktemp("runs") / "tiny"
    fit = ["fit", *TINY, f"--data.text_or_path={text_file}", f"--run_dir={path}", "--trainer.max_epochs=4"]
    assert main(fit) == 0
    return path


@pytest.fixture(scope="session")
def hf_dir(tmp_path_factory: Any) -> Path:
    """A GPT-2 that was never trained, with a tokenizer that was, as `save_pretrained` writes them."""
    import tokenizers
    import torch
    import transformers

    bytes_ = tokenizers.pre_tokenizers.ByteLevel
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = bytes_(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=bytes_.alphabet())
    made.train_from_iterator([python_topics()[:5000], "my pin is 4711 my ssn is 078-05-1120"], trainer)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=made.get_vocab_size(), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    config.bos_token_id = config.eos_token_id = 0
    path: Path = tmp_path_factory.mktemp("huggingface") / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return path
