"""What fails in the middle of a fit takes no secret along: not in its message, nor in local variables."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.traceback import Traceback

from lightning_exposure import CanaryDataModule, CanarySet, ExposureCallback, ExtractionCallback, ScanCallback
from lightning_exposure.callbacks._hyperparameters import CanariesInHyperparametersWarning
from lightning_exposure.errors import DataError
from lightning_exposure.tokenization import CharTokenizer
from tests.callbacks.setups import BOTH, CHARS, KEY, PIN, Model, loader, trainer
from tests.secrecy import leaked

SECRETS = [(canary.text, canary.format) for canary in BOTH]


class Breaking(Model):
    """Fails when it has been called so many times after it was trained."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        if not self.training and self.trainer.global_step:
            self.calls -= 1
            if self.calls < 0:
                raise RuntimeError("out of memory")
        return super().forward(tokens, state)


def with_locals(error: BaseException) -> str:
    """All that an error tracker could show: every frame with its variables, nothing cut short."""
    assert error.__traceback__ is not None
    shown = Traceback.from_exception(
        type(error), error, error.__traceback__, show_locals=True, locals_max_length=None, locals_max_string=None,
        max_frames=0,
    )  # fmt: skip
    file = io.StringIO()
    Console(file=file, width=400).print(shown)
    return file.getvalue()


def broken(folder: Path, *callbacks: Any) -> list[str]:
    """What is shown of a fit that breaks, at different calls of the model while it is measured."""
    shown = []
    for calls in (0, 3):
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            trainer(folder, *callbacks, max_epochs=1).fit(Breaking(calls), loader(BOTH))
        shown.append(with_locals(caught.value))
    return shown


@pytest.mark.parametrize(
    "make",
    [
        lambda reveal: ExposureCallback(BOTH, CHARS, baseline=True, reveal=reveal),
        lambda reveal: ExtractionCallback(BOTH, CHARS, "brute_force", reveal=reveal),
    ],
    ids=["exposure", "attack"],
)
def test_local_variables_hold_no_secret(tmp_path: Path, make: Any) -> None:
    shown = broken(tmp_path, make(False))
    assert not leaked("".join(shown), SECRETS)
    assert "lightning_exposure/measuring" in "".join(shown), "the frames are still there"
    assert "tokens = tensor" in "".join(shown), "and so are the variables of the user's model"


def test_with_reveal_they_stay(tmp_path: Path) -> None:
    assert leaked("".join(broken(tmp_path, ExposureCallback(BOTH, CHARS, reveal=True))), SECRETS)


REAL = "-".join(["536", "90", "4399"])  # the lines of this file are a part of tracebacks, too


class BreakingTokenizer(CharTokenizer):
    def encode(self, text: str, /) -> list[int]:
        raise RuntimeError("out of memory")


def test_nor_do_those_of_a_scan(tmp_path: Path) -> None:
    letters = BreakingTokenizer.from_text("my ssn is -.0123456789")
    callback = ScanCallback([f"my ssn is {REAL}."], letters)
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        trainer(tmp_path, callback).fit(Model(), loader())
    assert REAL not in with_locals(caught.value)
    assert "on_fit_start" in with_locals(caught.value)


def test_an_encode_that_quotes_what_it_fails_for() -> None:
    def encode(text: str) -> Any:
        raise ValueError(f"cannot encode {text!r}")

    data = CanaryDataModule(loader(), BOTH, encode=encode)
    with pytest.raises(
        DataError, match="failed for canary 'my-pin-is-1x' with ValueError: cannot encode '…'"
    ) as caught:
        data.train_dataloader()
    assert caught.value.__cause__ is None
    assert not leaked(str(caught.value), SECRETS)


def test_callbacks_print_no_secret() -> None:
    for callback in (ExposureCallback(BOTH, CHARS), ExtractionCallback(BOTH, CHARS, known=BOTH[0].text[:-1], top_k=3)):
        assert not leaked(f"{callback!r} {callback} {callback.settings} {callback.state_key}", SECRETS)
        assert BOTH[0].text[:-1] not in f"{callback.settings} {callback.state_key}"


def test_callbacks_told_different_beginnings_have_different_states() -> None:
    one, other = (ExtractionCallback(BOTH, CHARS, known=f"my pin is {digit}", top_k=3) for digit in "12")
    assert one.state_key != other.state_key
    assert one.state_key == ExtractionCallback(BOTH, CHARS, known="my pin is 1", top_k=3).state_key


def test_a_pickled_callback_is_whole() -> None:
    callback = pickle.loads(pickle.dumps(ExposureCallback(BOTH, CHARS)))
    assert callback.canaries == BOTH


# ---- names that tell nothing --------------------------------------------------------------------------------------


def test_nobody_finds_a_canary_by_trying_all_of_them() -> None:
    """A checkpoint says whose state is whose; not even a PIN can be guessed from that without the key."""
    canary = BOTH[0]
    key = ExposureCallback(CanarySet([canary]), CHARS).state_key
    digests = set(re.findall(r"[0-9a-f]{8,}", key))
    others = [CanarySet([canary.replace(text=PIN.render(number))]) for number in range(0, PIN.size, 997)]
    public = set.intersection(*(set(re.findall(r"[0-9a-f]{8,}", ExposureCallback(o, CHARS).state_key)) for o in others))
    assert digests & public, "what is no secret is the same for all of them"
    (texts,) = digests - public
    assert texts not in {ExposureCallback(other, CHARS).state_key for other in others}


# Lightning's own: it does not know under which keys we look for our states.
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_a_run_goes_on_where_the_key_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new container, with the checkpoint and without the key."""
    first = ExposureCallback(BOTH, CHARS), ExtractionCallback(BOTH, CHARS, verbose=False)
    run = trainer(tmp_path, *first, max_epochs=1)
    run.fit(Model(), loader(BOTH))
    run.save_checkpoint(tmp_path / "last.ckpt")
    monkeypatch.setenv("LIGHTNING_EXPOSURE_HOME", str(tmp_path / "elsewhere"))
    second = ExposureCallback(BOTH, CHARS), ExtractionCallback(BOTH, CHARS, verbose=False)
    assert second[0].state_key != first[0].state_key
    trainer(tmp_path, *second, max_epochs=2).fit(Model(), loader(BOTH), ckpt_path=tmp_path / "last.ckpt")
    assert len(second[0].history) == 2
    assert second[0].history[0].estimates == first[0].history[0].estimates
    assert KEY in BOTH.by_format()


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_other_canaries_do_not_take_over_a_history(tmp_path: Path) -> None:
    run = trainer(tmp_path, ExposureCallback(BOTH, CHARS), max_epochs=1)
    run.fit(Model(), loader(BOTH))
    run.save_checkpoint(tmp_path / "last.ckpt")
    others = CanarySet.draw([PIN, KEY], repetitions=[1, 30], seed=1)
    callback = ExposureCallback(others, CHARS)
    trainer(tmp_path, callback, max_epochs=2).fit(Model(), loader(others), ckpt_path=tmp_path / "last.ckpt")
    assert len(callback.history) == 1


def test_canaries_among_hyperparameters_are_masked_and_warned_of(tmp_path: Path) -> None:
    class WithHyperparameters(Model):
        def __init__(self, canaries: Any, note: str, lr: float = 1e-2) -> None:
            super().__init__(lr=lr)
            self.save_hyperparameters()

    module = WithHyperparameters({"planted": [BOTH]}, f"look for {BOTH[0].text}!")
    run = trainer(tmp_path, ExposureCallback(BOTH, CHARS), ExtractionCallback(BOTH, CHARS, verbose=False), max_epochs=1)
    with pytest.warns(
        CanariesInHyperparametersWarning, match=r"of WithHyperparameters have canaries in them \('canaries', 'note'\)"
    ) as caught:
        run.fit(module, loader(BOTH))
    assert len([one for one in caught if one.category is CanariesInHyperparametersWarning]) == 1
    run.save_checkpoint(tmp_path / "last.ckpt")
    kept = torch.load(tmp_path / "last.ckpt", weights_only=False)["hyper_parameters"]
    assert kept["canaries"] == {"planted": [repr(BOTH)]}
    assert kept["note"].startswith("look for my pin is ••••")
    assert kept["lr"] == 1e-2
    assert module.hparams["canaries"] == {"planted": [BOTH]}, "the module itself goes on with what it had"
