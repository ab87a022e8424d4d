"""Free sampling while a model trains: what is logged, and that nothing of the training changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_exposure import LeakCallback, SecretFormat
from lightning_exposure.errors import ArgumentError, ExposureError
from lightning_exposure.leakage import sample_leaks
from lightning_exposure.leakage.sampling import finder_for
from lightning_exposure.measuring import Alone, LeakMonitor, Moment, SamplingSettings, Schedule
from lightning_exposure.report.recording import run_record
from lightning_exposure.secrets import Canary, CanarySet, Scanner
from tests.callbacks.setups import CANARIES, CHARS, PIN, Model, loader, trainer

QUICK: dict[str, Any] = {"samples": 40, "length": 20, "verbose": False}
OFTEN = CanarySet([Canary("often", "my pin is 7351", PIN, 400), Canary("never", "my pin is 0000", PIN, 0)])


def fit(folder: Path, *callbacks: L.Callback, canaries: CanarySet = CANARIES, **options: Any) -> Model:
    torch.manual_seed(0)
    model = Model()
    trainer(folder, *callbacks, **options).fit(model, loader(canaries))
    return model


def test_the_weights_are_the_same_with_and_without(tmp_path: Path) -> None:
    callback = LeakCallback(CANARIES, tokenizer=CHARS, every_n_epochs=1, **QUICK)
    torch.manual_seed(0)
    without = fit(tmp_path)
    after = torch.rand(3)
    torch.manual_seed(0)
    with_it = fit(tmp_path, callback)
    assert torch.equal(after, torch.rand(3))
    assert all(torch.equal(a, b) for a, b in zip(without.parameters(), with_it.parameters(), strict=True))
    assert [entry["epoch"] for entry in callback.history] == [1, 2, 3]


def test_what_leaks_is_logged_as_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = CSVLogger(tmp_path, name="", version="")
    options = {**QUICK, "samples": 200, "prompt": "my pin", "length": 10, "verbose": True}
    callback = LeakCallback(OFTEN, tokenizer=CHARS, **options)
    fitted = trainer(tmp_path, callback, logger=logger, max_epochs=5)
    torch.manual_seed(0)
    model = Model()
    fitted.fit(model, loader(OFTEN))
    found = callback.found
    assert found is not None
    assert found.total.leaked == 1
    assert found.total.rate > 0.3
    (entry,) = callback.history
    wanted = {"secrets": 1.0, "rate": found.total.rate, "rate_low": found.total.rate_low, "samples": 200.0}
    wanted |= {"my-pin-is_secrets": 1.0, "my-pin-is_rate_high": found.classes[0].rate_high, "controls_rate": 0.0}
    assert {name: entry[f"leaks/{name}"] for name in wanted} == wanted
    assert float(fitted.callback_metrics["leaks/rate"]) == pytest.approx(found.total.rate)
    logged = (tmp_path / "metrics.csv").read_text()
    assert "leaks/my-pin-is_rate_low" in logged
    printed = capsys.readouterr().err
    assert "1 of 1 secrets appeared" in printed
    assert "7351" not in printed + logged + repr(callback.state_dict())
    assert run_record(fitted).settings["leaks"] == entry
    # The same numbers as the function gives for the weights that training ended with.
    again = sample_leaks(model, CHARS, OFTEN, samples=200, prompt="my pin", length=10)
    assert again == found


def test_a_scanner_and_the_training_texts(tmp_path: Path) -> None:
    training = ["my pin is 7351", "my pin is 7351"]
    callback = LeakCallback(
        Scanner([PIN], kinds=[]), training, CHARS, **{**QUICK, "samples": 200, "prompt": "my pin is ", "length": 4}
    )
    fit(tmp_path, callback, canaries=OFTEN, max_epochs=4)
    found = callback.found
    assert found is not None
    assert found.total.secrets == 1
    assert found.total.leaked == 1
    (entry,) = callback.history
    new = next(it for it in found.new if it.kind == "my-pin-is")
    assert entry["leaks/my-pin-is_new"] == new.distinct > 0
    assert new.samples + found.total.samples <= 200


def test_a_resumed_run_goes_on_with_its_history(tmp_path: Path) -> None:
    first = LeakCallback(CANARIES, tokenizer=CHARS, every_n_epochs=1, **QUICK)
    begun = trainer(tmp_path, first, max_epochs=1)
    begun.fit(Model(), loader())
    begun.save_checkpoint(tmp_path / "one.ckpt")
    second = LeakCallback(CANARIES, tokenizer=CHARS, every_n_epochs=1, **QUICK)
    trainer(tmp_path, second, max_epochs=2).fit(Model(), loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=False)
    assert [entry["epoch"] for entry in second.history] == [1, 2]


def test_what_cannot_work_is_refused_before_training(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "€"}, "'€'"),
        ({"model": lambda module: module.drop}, "logits of shape"),
    ]
    for options, message in cases:
        model = Model()
        before = [parameter.clone() for parameter in model.parameters()]
        callback = LeakCallback(CANARIES, tokenizer=CHARS, **QUICK, **options)
        with pytest.raises(ExposureError, match=message):
            trainer(tmp_path, callback).fit(model, loader())
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(ArgumentError, match="tokenizer is None"):
        trainer(tmp_path, LeakCallback(CANARIES, **QUICK)).fit(Model(), loader())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Scanner(),), {}, "training is None"),
        ((CANARIES, ["text"]), {}, "training is given with canaries"),
        (("pin",), {}, "scanner_or_canaries is 'pin'"),
        ((CANARIES,), {"samples": 0}, "samples is 0"),
        ((CANARIES,), {"temperature": -1}, "temperature is -1"),
        ((CANARIES,), {"every_n_epochs": -1}, "every_n_epochs is -1"),
        ((CANARIES,), {"name": ""}, "name is ''"),
        ((CANARIES,), {"verbose": 1}, "verbose is 1"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LeakCallback(*arguments, **options)


class TwoProcesses(Alone):
    """The surroundings of one of two processes, which are run one after the other here."""

    world_size = 2

    def __init__(self, rank: int, gathered: list[Any]) -> None:
        super().__init__()
        self.rank = rank
        self.gathered = gathered

    def gather(self, value: Any) -> list[Any]:
        self.gathered.append(value)
        return list(self.gathered)


def test_processes_share_the_samples_out() -> None:
    settings = SamplingSettings(samples=21, length=30, prompt="my pin is ")
    finder = finder_for(CanarySet.draw(SecretFormat("is #"), repetitions=[1] * 10, seed=0), None)
    torch.manual_seed(0)
    model = Model()

    def found(*around: Alone) -> Any:
        monitor = LeakMonitor(Schedule(), settings)
        monitor.begin(model, CHARS, finder)
        for it in around:
            monitor._sampled_at = -1
            monitor.finish(model, it, Moment(1, 1, last=True))
        return monitor.found

    gathered: list[Any] = []
    together = found(TwoProcesses(0, gathered), TwoProcesses(1, gathered))
    assert [part.samples for part in gathered] == [11, 10]
    assert together == found(Alone())
    assert together.total.times > 0
