"""Progress bars of every kind: what is running shows where it can, and a bar never ends a training run."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import lightning.pytorch.callbacks as bars
import pytest
import torch
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar

from lightning_exposure import ExposureCallback, ExtractionCallback
from lightning_exposure.callbacks._progress import say, status
from tests.callbacks.setups import BOTH, CANARIES, CHARS, Model, loader, trainer


class Plain(ProgressBar):
    """The example of Lightning's documentation: nobody asks it for `is_enabled`."""

    def __init__(self) -> None:
        super().__init__()
        self.enable = True  # type: ignore[method-assign,assignment]

    def disable(self) -> None:
        self.enable = False  # type: ignore[method-assign,assignment]


class Renamed(TQDMProgressBar):
    """A user's own descriptions, and a bar of their own for training."""

    def init_train_tqdm(self) -> Any:
        line = super().init_train_tqdm()
        line.set_description("my training")
        return line


class Broken(TQDMProgressBar):
    """A bar whose lines fail whenever they are asked for something outside of the training loop."""

    @property
    def train_progress_bar(self) -> Any:
        raise RuntimeError("no line today")

    @train_progress_bar.setter
    def train_progress_bar(self, line: Any) -> None:
        self._train_progress_bar = line

    def on_train_epoch_start(self, *_: Any) -> None: ...
    def on_train_batch_end(self, *_: Any) -> None: ...
    def on_train_epoch_end(self, *_: Any) -> None: ...
    def on_validation_end(self, *_: Any) -> None: ...
    def on_train_end(self, *_: Any) -> None: ...
    def on_sanity_check_end(self, *_: Any) -> None: ...

    def print(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no printer either")


class HalfMade(ProgressBar):
    """Has something called `progress` that is no display of Rich."""

    progress = "42%"
    is_enabled = True

    def disable(self) -> None: ...


MAKERS = [
    TQDMProgressBar,
    RichProgressBar,
    lambda: TQDMProgressBar(refresh_rate=0),
    lambda: RichProgressBar(refresh_rate=0),
    lambda: TQDMProgressBar(leave=True),
    lambda: RichProgressBar(leave=True),
    Plain,
    Renamed,
    Broken,
    HalfMade,
]


@pytest.mark.parametrize("bar_first", [False, True])
@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_a_training_with_validation_and_a_baseline_under_any_bar(
    tmp_path: Path, number: int, bar_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    exposure, attack = ExposureCallback(CANARIES, CHARS, references=50), ExtractionCallback(CANARIES, CHARS)
    bar = MAKERS[number]()
    callbacks: list[L.Callback] = [bar, exposure, attack] if bar_first else [exposure, attack, bar]
    run = trainer(tmp_path, *callbacks, max_epochs=1, enable_progress_bar=True, num_sanity_val_steps=2)
    run.fit(Model(), loader(), loader(shuffle=False))
    assert exposure.baseline_estimates
    assert exposure.history[-1].epoch == 1
    # The table of the attack is printed once, whichever of the two callbacks comes first when training ends.
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("candidate") == 1


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_bars_of_both_packages(tmp_path: Path, package: str) -> None:
    pl, found = import_module(package), import_module(f"{package}.callbacks")

    class Small(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, *arguments: Any) -> Any:
            return self.inner(*arguments)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.inner._loss(batch)

        def validation_step(self, batch: Any, index: int) -> Any:
            self.log("val_loss", self.inner._loss(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    for bar in (found.TQDMProgressBar(), found.RichProgressBar()):
        exposure = ExposureCallback(CANARIES, CHARS)
        run = pl.Trainer(
            max_epochs=1, accelerator="cpu", callbacks=[exposure, bar], logger=False, enable_checkpointing=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        run.fit(Small(), loader(), loader(shuffle=False))
        assert len(exposure.history) == 1


@pytest.mark.parametrize(
    ("bar", "line", "method"),
    [
        ("TQDMProgressBar", "tqdm.std.tqdm", "set_description"),
        ("TQDMProgressBar", "tqdm.std.tqdm", "set_description_str"),
        ("RichProgressBar", "rich.progress.Progress", "update"),
    ],
)
def test_progress_bars_say_what_is_running(
    tmp_path: Path, bar: str, line: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real bars, listened to."""
    said: list[str] = []
    owner = pkgutil.resolve_name(line)
    original = getattr(owner, method)

    def listen(self: Any, *arguments: Any, **options: Any) -> Any:
        said.append(f"{arguments} {options}")
        return original(self, *arguments, **options)

    monkeypatch.setattr(owner, method, listen)
    callbacks = [ExposureCallback(CANARIES, CHARS, method="exact"), ExtractionCallback(CANARIES, CHARS, verbose=False)]
    run = trainer(tmp_path, getattr(bars, bar)(), *callbacks, enable_progress_bar=True, max_epochs=1)
    run.fit(Model(), loader(BOTH))
    # A bar of TQDM that stands before the attack has closed its line when training ends: the attack has its own.
    if method != "set_description_str":
        assert any("measuring exposure" in text and "nodes" in text for text in said)
    if method != "set_description":
        assert any("extraction: shortest_path" in text and "expansions" in text for text in said)


def test_the_progress_bar_that_a_trainer_has_by_default(tmp_path: Path) -> None:
    """Before the training starts it has no line yet."""
    exposure, attack = ExposureCallback(CANARIES, CHARS), ExtractionCallback(CANARIES, CHARS, verbose=False)
    trainer(tmp_path, exposure, attack, enable_progress_bar=True, max_epochs=1).fit(
        Model(), loader(), loader(shuffle=False)
    )
    assert len(exposure.history) == 1
    assert attack.extractions


class Watch(L.Callback):
    """Notes what the bar looks like while something runs, and afterwards."""

    def __init__(self, look: Any) -> None:
        self.look, self.during, self.after = look, "", ""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with status(trainer, "looking") as update:
            update("at 3 of 4")
            self.during = self.look(trainer.progress_bar_callback)
        self.after = self.look(trainer.progress_bar_callback)


def test_a_tqdm_line_gets_its_own_text_back(tmp_path: Path) -> None:
    watch = Watch(lambda bar: bar.train_progress_bar.desc)
    trainer(tmp_path, watch, Renamed(), enable_progress_bar=True, max_epochs=1).fit(Model(), loader())
    assert (watch.during, watch.after) == ("looking at 3 of 4: ", "Epoch 0: ")


def test_lines_of_rich_keep_their_numbers(tmp_path: Path) -> None:
    """Lightning looks for its own line at the place that is its number; ours must not shift it."""
    baseline = ExposureCallback(CANARIES, CHARS, every_n_epochs=0, references=0)
    watch = Watch(lambda bar: (bar.train_progress_bar.description, len(bar.progress.tasks)))
    bar = RichProgressBar()
    # The baseline has a line of ours before there is one of the training.
    trainer(tmp_path, bar, baseline, watch, enable_progress_bar=True, max_epochs=3).fit(Model(), loader())
    assert "Epoch 2" in watch.during[0]
    assert watch.during == watch.after
    assert watch.after[1] == 2  # the training's and one of ours, however often it was shown


def test_an_error_in_the_measurement_itself_is_not_swallowed(tmp_path: Path) -> None:
    class Failing(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            with status(trainer, "failing"):
                raise RuntimeError("in the measurement")

    run = trainer(tmp_path, Failing(), TQDMProgressBar(), enable_progress_bar=True, max_epochs=1)
    with pytest.raises(RuntimeError, match="in the measurement"):
        run.fit(Model(), loader())


def test_what_is_said_while_no_bar_is_on_the_screen_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(tmp_path, TQDMProgressBar(), enable_progress_bar=True)
    say(run, "before anything")
    assert "before anything" in capsys.readouterr().err
