"""An adapter that somebody registers is chosen wherever a module is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, SecretFormat, SecretTree
from lightning_exposure.adapters import ADAPTERS, StatelessAdapter, TriedModels, step_model
from lightning_exposure.cli import main
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import score
from tests.adapters.hf_models import CHARS as HF_CHARS
from tests.adapters.hf_models import gpt2
from tests.toys import Recurrent, Stateless, sharpened

CHARS = CharTokenizer.from_text("pin 0123456789")
PIN = SecretFormat("pin ##")


class Own(LightningModule):
    """A module that no adapter of ours could read: its forward takes a batch of the training data."""

    def __init__(self) -> None:
        super().__init__()
        self.network = sharpened(Stateless(CHARS.vocab_size), seed=0, dtype=torch.float32)
        self.other = nn.Sequential(nn.Linear(2, 2))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.network(batch["tokens"]).sum()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self({"tokens": batch}) * 0.0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class OwnAdapter(StatelessAdapter):
    """Reads with the network."""

    made: ClassVar[list[nn.Module]] = []

    @classmethod
    def recognise(cls, module: nn.Module, /, *, context: int | None = None) -> Any:
        if not isinstance(module, (Own, LanguageModel)):
            return None
        cls.made.append(module)
        return cls(module.network, context=context)

    def at_once(self, tokens: Tensor, last: int | None = None) -> Tensor:
        output = self.module(tokens)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


@pytest.fixture
def registered() -> Iterator[type[OwnAdapter]]:
    OwnAdapter.made.clear()
    ADAPTERS.register("own")(OwnAdapter)
    try:
        yield OwnAdapter
    finally:
        ADAPTERS.unregister("own")


def test_ours_are_asked_from_the_most_special_to_the_most_general() -> None:
    assert ADAPTERS.names() == ("huggingface", "recurrent", "stateless")


def test_an_adapter_of_ones_own_comes_before_ours_and_is_chosen_by_the_tree(registered: type[OwnAdapter]) -> None:
    assert ADAPTERS.names()[0] == "own"
    tree = SecretTree(Own(), PIN, CHARS)
    assert isinstance(tree.model, registered)
    expected = score(SecretTree(tree.model.module, PIN, CHARS), ["pin 12"]).costs
    assert score(tree, ["pin 12"]).costs == expected
    assert isinstance(SecretTree(Own(), PIN, CHARS, context=4).model, registered)


def test_what_it_does_not_recognise_is_read_as_before(registered: type[OwnAdapter]) -> None:
    assert type(step_model(Recurrent(CHARS.vocab_size))).__name__ == "RecurrentAdapter"
    assert not registered.made


def test_without_it_the_module_is_refused() -> None:
    with pytest.raises(ModelError, match=r"forward of Own failed.*module\.network"):
        step_model(Own())


def test_callbacks_choose_it(registered: type[OwnAdapter], tmp_path: Path) -> None:
    canaries = CanarySet.draw(PIN, repetitions=[1], seed=0)
    module = Own().train()
    exposure = ExposureCallback(canaries, CHARS)
    Trainer(
        max_epochs=1,
        callbacks=[exposure, ExtractionCallback(canaries, CHARS, verbose=False)],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    ).fit(module, torch.utils.data.DataLoader(torch.zeros(4, 5, dtype=torch.long)))
    assert registered.made
    assert all(each is module for each in registered.made)


def test_the_command_line_chooses_it(registered: type[OwnAdapter], tmp_path: Path, capsys: Any) -> None:
    model = LanguageModel(vocab_size=CHARS.vocab_size, hidden_size=8, embedding_size=4)
    trainer = Trainer(
        max_epochs=0, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    CHARS.save(tmp_path / "tokenizer.json")
    arguments = ["measure", "--model", str(tmp_path), "--format", "pin ##", "--secret", "pin 12", "--json", "--reveal"]
    assert main(arguments) == 0
    assert '"pin 12"' in capsys.readouterr().out
    assert [type(module) for module in registered.made] == [LanguageModel]


def test_a_name_is_taken_once(registered: type[OwnAdapter]) -> None:
    with pytest.raises(ArgumentError, match="adapter is 'own'; expected a new name"):
        ADAPTERS.register("own")(OwnAdapter)


def test_what_is_no_step_model_is_refused_with_the_name_of_who_made_it() -> None:
    class Wrong:
        @classmethod
        def recognise(cls, module: nn.Module, /, *, context: int | None = None) -> Any:
            return "yes"

    ADAPTERS.register("wrong")(Wrong)
    try:
        with pytest.raises(
            ModelError, match="adapter 'wrong' recognised Stateless and returned str; expected a StepModel"
        ):
            step_model(Stateless(CHARS.vocab_size))
    finally:
        ADAPTERS.unregister("wrong")


# --- models that were tried before ----------------------------------------------------------------------------


class Counted(Recurrent):
    def __init__(self) -> None:
        super().__init__(CHARS.vocab_size)
        self.shapes: list[tuple[int, ...]] = []  # a number would be put back after a trial

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        self.shapes.append(tuple(tokens.shape))
        return super().forward(tokens, state)


def test_trees_that_share_what_was_tried_try_nothing_twice() -> None:
    model, tried = sharpened(Counted(), seed=0), TriedModels()
    first = SecretTree(model, PIN, CHARS, tried=tried)
    calls = len(model.shapes)
    again = SecretTree(model, SecretFormat("pin ##"), CharTokenizer.from_text("pin 0123456789"), tried=tried)
    assert len(model.shapes) == calls
    assert again.model is first.model
    other = SecretTree(model, SecretFormat("pin ###"), CHARS, tried=tried)  # other texts: a trial, but no choice
    assert other.model is first.model
    assert calls < len(model.shapes) < 2 * calls
    assert score(again, ["pin 12"]).costs == score(SecretTree(model, PIN, CHARS), ["pin 12"]).costs


def test_the_trials_of_a_hugging_face_model_run_once_for_all_trees_of_a_fit() -> None:
    model, calls, tried = gpt2(), list[int](), TriedModels()
    model.register_forward_pre_hook(lambda module, given: calls.append(given[0].numel()))

    def calls_for(format: SecretFormat, **options: Any) -> int:
        calls.clear()
        SecretTree(model, format, HF_CHARS, **options)
        return len(calls)

    alone = calls_for(PIN)
    assert calls_for(PIN, tried=tried) == alone
    assert calls_for(PIN, tried=tried) == 0
    assert 0 < calls_for(SecretFormat("code ###"), tried=tried) < calls_for(SecretFormat("code ###"))


def test_a_context_is_another_adapter() -> None:
    model, tried = sharpened(Stateless(CHARS.vocab_size), seed=0), TriedModels()
    assert tried.step_model(model) is tried.step_model(model)
    assert tried.step_model(model, context=3) is not tried.step_model(model)
    adapter = StatelessAdapter(model)
    assert tried.step_model(adapter) is adapter


def test_a_model_that_is_refused_is_refused_each_time() -> None:
    tried = TriedModels()
    backwards = nn.LSTM(4, 4, bidirectional=True, batch_first=True)

    class BothWays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.out = (
                nn.Embedding(CHARS.vocab_size, 4),
                backwards,
                nn.Linear(8, CHARS.vocab_size),
            )

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.cell(self.embed(tokens))[0])  # type: ignore[no-any-return]

    model = sharpened(BothWays(), seed=0)
    for _ in range(2):
        with pytest.raises(ModelError, match="not causal"):
            SecretTree(model, PIN, CHARS, tried=tried)


def test_the_example_of_the_docs_works() -> None:
    page = Path(__file__).parents[2] / "docs" / "api" / "adapters.md"
    code = page.read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    try:
        assert type(SecretTree(names["MyModel"](), PIN, CHARS).model) is names["MyAdapter"]
    finally:
        ADAPTERS.unregister("mine")
