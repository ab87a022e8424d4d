"""`ExposureCallback(prior=...)` in real trainings: what exposure is measured against, and that it leaves no trace."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import (
    DifferentialPrivacy,
    ExposureCallback,
    ExposureEstimate,
    ExtractionCallback,
    SecretTree,
    measure_exposure,
)
from lightning_exposure.adapters import StatelessAdapter
from lightning_exposure.callbacks import UntrainedPriorWarning
from lightning_exposure.errors import ArgumentError, ManifestError, ModelError
from lightning_exposure.privacy import PoissonLoader
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, TEXT, Model, loader, trainer

ROOT = Path(__file__).resolve().parents[2]
OFTEN = CANARIES[1].id


@cache
def _pretrained() -> dict[str, Tensor]:
    """Weights that know what the text and the formats look like, and none of the canaries."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        others = [(format.render(number * 97 % format.size) + TEXT)[:20] for number in range(64) for format in FORMATS]
        batch = torch.tensor([CHARS.encode(text) for text in others])
        for _ in range(60):
            optimizer.zero_grad()
            model._loss([batch]).backward()
            optimizer.step()
        return deepcopy(model.state_dict())


FORMATS = list(BOTH.by_format())


def pretrained(**options: Any) -> Model:
    model = Model(**options)
    model.load_state_dict(_pretrained())
    return model


def fit(folder: Path, model: Any, *callbacks: L.Callback, ckpt_path: Path | None = None, **options: Any) -> L.Trainer:
    torch.manual_seed(0)
    run = trainer(folder, *callbacks, **({"max_epochs": 2} | options))
    run.fit(model, loader(), ckpt_path=ckpt_path)
    return run


def against(model: nn.Module, reference: Any, **options: Any) -> list[ExposureEstimate]:
    """The exposures of the canaries, measured by hand."""
    tree, prior = SecretTree(model, PIN, CHARS), SecretTree(reference, PIN, CHARS)
    return measure_exposure(tree, list(CANARIES.texts), prior=prior, precision=0.25, **options)


def newest(callback: ExposureCallback) -> list[ExposureEstimate]:
    return list(callback.history[-1].estimates.values())


class TestWhereThePriorComesFrom:
    def test_the_weights_before_training(self, tmp_path: Path) -> None:
        callback, model = ExposureCallback(CANARIES, CHARS, prior="before_training"), pretrained()
        fit(tmp_path, model, callback)
        assert newest(callback) == against(model, pretrained())
        assert newest(callback) != measure_exposure(SecretTree(model, PIN, CHARS), list(CANARIES.texts), precision=0.25)
        assert list(callback.baseline_estimates.values()) == against(pretrained(), pretrained())
        assert {measurement.prior for measurement in callback.history} == {"before_training"}

    def test_a_module(self, tmp_path: Path) -> None:
        reference = pretrained().train()
        callback, model = ExposureCallback(CANARIES, CHARS, prior=reference), Model()
        fit(tmp_path, model, callback)
        assert newest(callback) == against(model, pretrained())
        assert all(part.training for part in reference.modules()), "the reference is left as it was, too"
        assert all(torch.equal(value, _pretrained()[name]) for name, value in reference.state_dict().items())
        assert callback.settings["prior"] == "Model"

    def test_a_reference_of_another_kind(self, tmp_path: Path) -> None:
        torch.manual_seed(3)
        reference = nn.Sequential(nn.Embedding(CHARS.vocab_size, 8), nn.Linear(8, CHARS.vocab_size))
        for prior in (reference, StatelessAdapter(reference)):
            callback, model = ExposureCallback(CANARIES, CHARS, prior=prior), Model()
            fit(tmp_path, model, callback, max_epochs=1)
            assert newest(callback) == against(model, reference)

    @pytest.mark.parametrize("kind", ["lightning", "state dict"])
    def test_a_checkpoint(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "before.ckpt"
        if kind == "lightning":
            run = trainer(tmp_path)
            run.strategy.connect(pretrained())
            run.save_checkpoint(path)
        else:
            torch.save(_pretrained(), path)
        callback, model = ExposureCallback(CANARIES, CHARS, prior=path), Model()
        fit(tmp_path, model, callback)
        assert newest(callback) == against(model, pretrained())
        assert callback.settings["prior"] == callback.history[-1].prior == str(path)

    def test_something_that_knows_probabilities(self, tmp_path: Path) -> None:
        class Uniform:
            def log2_probabilities(self, texts: list[str]) -> list[float]:
                return [-PIN.bits] * len(texts)

        callback, model = ExposureCallback(CANARIES, CHARS, prior=Uniform(), method="exact"), pretrained()
        fit(tmp_path, model, callback, max_epochs=1)
        plain = measure_exposure(SecretTree(model, PIN, CHARS), list(CANARIES.texts), "exact")
        assert [found.bits for found in newest(callback)] == pytest.approx([found.bits for found in plain])

    @pytest.mark.parametrize("as_step_model", [False, True])
    def test_a_part_of_the_module_is_the_model(self, tmp_path: Path, as_step_model: bool) -> None:
        class Wrapper(Model):
            def __init__(self) -> None:
                super().__init__()
                self.lm = nn.Sequential(nn.Embedding(CHARS.vocab_size, 16), nn.Linear(16, CHARS.vocab_size))

            def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
                return self.lm(tokens), state

        torch.manual_seed(5)
        model, path = Wrapper(), tmp_path / "before.ckpt"
        fit(tmp_path, model, max_epochs=12)
        before = deepcopy(model.lm)
        torch.save(model.state_dict(), path)
        pick = (lambda module: StatelessAdapter(module.lm)) if as_step_model else (lambda module: module.lm)
        priors: list[Any] = ["before_training", path, deepcopy(model)]
        callbacks = [
            ExposureCallback(CANARIES, CHARS, name=f"exposure{number}", model=pick, prior=prior)
            for number, prior in enumerate(priors)
        ]
        fit(tmp_path, model, *callbacks, max_epochs=1)
        for callback in callbacks:
            assert newest(callback) == against(model.lm, before)


class TestAdapters:
    @staticmethod
    def tuned() -> tuple[nn.Module, Any]:
        """A tiny GPT-2 as it was, and the same with LoRA."""
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=CHARS.vocab_size, n_embd=24, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
        )
        torch.manual_seed(0)
        base = GPT2LMHeadModel(config)
        with torch.no_grad():
            base.transformer.wte.weight.mul_(30.0)  # an opinion, as a pretrained model has one
        adapted = get_peft_model(deepcopy(base), LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
        return base, adapted

    class Tuning(L.LightningModule):
        def __init__(self, lm: Any) -> None:
            super().__init__()
            self.lm = lm

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.lm(input_ids=input_ids).logits

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.lm(input_ids=batch[0], labels=batch[0]).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam([it for it in self.parameters() if it.requires_grad], lr=3e-2)

    @pytest.mark.parametrize("pick", [None, lambda module: module.lm], ids=["module", "part"])
    def test_without_them_it_is_the_pretrained_model(self, tmp_path: Path, pick: Any) -> None:
        base, adapted = self.tuned()
        callback, model = ExposureCallback(CANARIES, CHARS, prior="without_adapters", model=pick), self.Tuning(adapted)
        trained = {name: it.requires_grad for name, it in model.named_parameters()}
        fit(tmp_path, model, callback, max_epochs=2)
        for found, wanted in zip(newest(callback), against(adapted, base), strict=True):
            assert found.bits == pytest.approx(wanted.bits, abs=1e-4)
            assert found.prior_bits == pytest.approx(wanted.prior_bits, abs=1e-4)
            assert found.log_perplexity == pytest.approx(wanted.log_perplexity, abs=1e-4)
        assert {name: it.requires_grad for name, it in model.named_parameters()} == trained

    def test_the_weights_are_bit_for_bit_the_same_without_it(self, tmp_path: Path) -> None:
        plain, watched = self.Tuning(self.tuned()[1]), self.Tuning(self.tuned()[1])
        fit(tmp_path, plain, max_epochs=2)
        fit(tmp_path, watched, ExposureCallback(CANARIES, CHARS, prior="without_adapters"), max_epochs=2)
        for name, value in plain.state_dict().items():
            assert torch.equal(value, watched.state_dict()[name]), name

    def test_a_base_model_that_holds_the_adapters_is_refused(self, tmp_path: Path) -> None:
        _, adapted = self.tuned()
        with pytest.raises(ArgumentError, match=r"shares weights with the model that is trained.*'without_adapters'"):
            fit(tmp_path, self.Tuning(adapted), ExposureCallback(CANARIES, CHARS, prior=adapted.get_base_model()))


class TestNoTrace:
    @pytest.mark.parametrize("kind", ["before_training", "module"])
    def test_weights_are_bit_for_bit_the_same(self, tmp_path: Path, kind: str) -> None:
        plain, watched = pretrained(), pretrained()
        fit(tmp_path, plain)
        prior = pretrained() if kind == "module" else kind
        fit(tmp_path, watched, ExposureCallback(CANARIES, CHARS, prior=prior, every_n_steps=5))
        assert all(torch.equal(value, watched.state_dict()[name]) for name, value in plain.state_dict().items())

    def test_metrics_keep_their_names(self, tmp_path: Path) -> None:
        with_prior = fit(tmp_path, pretrained(), ExposureCallback(CANARIES, CHARS, prior="before_training"))
        without = fit(tmp_path, pretrained(), ExposureCallback(CANARIES, CHARS))
        assert set(with_prior.callback_metrics) == set(without.callback_metrics)

    def test_beside_private_training(self, tmp_path: Path) -> None:
        callback, model = ExposureCallback(CANARIES, CHARS, prior="before_training"), pretrained()
        private = DifferentialPrivacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-3)
        trainer(tmp_path, private, callback, max_epochs=1).fit(model, PoissonLoader(loader()))
        assert newest(callback) == against(model, pretrained())


class TestVerdicts:
    def test_ranks_do_not_depend_on_the_prior(self, tmp_path: Path) -> None:
        attacks = []
        for prior in (None, "before_training"):
            exposure = ExposureCallback(CANARIES, CHARS, prior=prior, method="exact")
            attack = ExtractionCallback(CANARIES, CHARS, verbose=False)
            fit(tmp_path, pretrained(), exposure, attack)
            assert all((found.prior_bits is None) == (prior is None) for found in newest(exposure))
            attacks.append(({name: found.rank for name, found in attack.estimates.items()}, attack.verdicts))
        assert attacks[0] == attacks[1]

    @pytest.mark.parametrize("first", [True, False])
    def test_of_two_callbacks_the_one_without_a_prior_tells_ranks(self, tmp_path: Path, first: bool) -> None:
        plain = ExposureCallback(CANARIES, CHARS, method="sampling", samples=64)
        priced = ExposureCallback(CANARIES, CHARS, method="sampling", samples=64, prior="before_training", name="prior")
        attack = ExtractionCallback(CANARIES, CHARS, verbose=False, top_k=1)
        both = [plain, priced] if first else [priced, plain]
        fit(tmp_path, pretrained(), *both, attack, max_epochs=1)
        assert list(attack.estimates.values()) == newest(plain)


class TestResuming:
    def test_a_resumed_run_keeps_the_weights_of_before(self, tmp_path: Path) -> None:
        path, whole = tmp_path / "half.ckpt", ExposureCallback(CANARIES, CHARS, prior="before_training")
        fit(tmp_path, pretrained(), whole, max_epochs=3)
        first = ExposureCallback(CANARIES, CHARS, prior="before_training")
        fit(tmp_path, pretrained(), first, max_epochs=2).save_checkpoint(path)
        resumed, model = ExposureCallback(CANARIES, CHARS, prior="before_training"), Model()
        fit(tmp_path, model, resumed, ckpt_path=path, max_epochs=3)
        assert [measurement.epoch for measurement in resumed.history] == [1, 2, 3]
        assert newest(resumed) == against(model, pretrained())
        before = [found.prior_bits for found in newest(whole)]
        assert [found.prior_bits for found in newest(resumed)] == before

    def test_the_next_fit_has_a_beginning_of_its_own(self, tmp_path: Path) -> None:
        callback, model = ExposureCallback(CANARIES, CHARS, prior="before_training"), pretrained()
        fit(tmp_path, model, callback, max_epochs=1)
        between = deepcopy(model)
        fit(tmp_path, model, callback, max_epochs=1)
        assert newest(callback) == against(model, between)

    @pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
    @pytest.mark.parametrize("watched", [True, False])
    def test_a_checkpoint_without_them_is_refused(self, tmp_path: Path, watched: bool) -> None:
        path = tmp_path / "half.ckpt"
        fit(tmp_path, pretrained(), *([ExposureCallback(CANARIES, CHARS)] if watched else [])).save_checkpoint(path)
        callback = ExposureCallback(CANARIES, CHARS, prior="before_training")
        with pytest.raises(ArgumentError, match=r"prior is 'before_training', and the run that goes on has not kept"):
            fit(tmp_path, Model(), callback, ckpt_path=path, max_epochs=3)
        assert all(measurement.epoch <= 2 for measurement in callback.history)

    def test_other_priors_keep_nothing(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, prior=pretrained())
        fit(tmp_path, Model(), callback, max_epochs=1)
        assert set(callback.state_dict()) == {"history", "baseline"}
        assert set(ExposureCallback(CANARIES, CHARS, prior="before_training").state_dict()) == {"history", "baseline"}


class TestRandomWeights:
    @pytest.mark.parametrize("seed", range(5))
    def test_they_make_a_prior_that_knows_nothing_and_it_warns(self, tmp_path: Path, seed: int) -> None:
        torch.manual_seed(seed)
        model, callback = Model(), ExposureCallback(CANARIES, CHARS, prior="before_training", references=0)
        with pytest.warns(UntrainedPriorWarning, match=r"does not know what a secret of 'my-pin-is' looks like"):
            fit(tmp_path, model, callback, max_epochs=1, limit_train_batches=1)

    def test_a_model_that_knows_something_does_not_warn(self, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UntrainedPriorWarning)
            callback = ExposureCallback(CANARIES, CHARS, prior="before_training", references=0)
            fit(tmp_path, pretrained(), callback, max_epochs=1, limit_train_batches=1)


class TestRefusals:
    @pytest.mark.parametrize(
        ("prior", "says"),
        [
            ("before_trainig", r"prior is 'before_trainig', and there is no such file; expected a module"),
            ("nowhere.ckpt", r"prior is 'nowhere.ckpt', and there is no such file"),
            (Path(), r"prior is '.', which is a directory; expected a module.*given as a module"),
            (7, r"prior is int; expected a module that has not seen the secrets, the path of a checkpoint"),
        ],
    )
    def test_what_is_no_prior(self, prior: Any, says: str) -> None:
        with pytest.raises(ArgumentError, match=says):
            ExposureCallback(CANARIES, CHARS, prior=prior)

    def test_before_the_first_step(self, tmp_path: Path) -> None:
        text, other = tmp_path / "text.ckpt", tmp_path / "other.ckpt"
        text.write_text("no checkpoint")
        torch.save(Model(width=8).state_dict(), other)
        model = Model()

        class SeesAhead(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(CHARS.vocab_size, CHARS.vocab_size)

            def forward(self, tokens: Tensor) -> Tensor:
                return self.table(tokens).flip(1).cumsum(1)

        refused: list[tuple[Any, type[Exception], str]] = [
            (model, ArgumentError, r"prior is Model, which shares weights with the model that is trained"),
            ("without_adapters", ArgumentError, r"prior is 'without_adapters': model is Model, in which nothing has"),
            (text, ManifestError, r"text\.ckpt: not a checkpoint"),
            (other, ArgumentError, r"prior is .*other\.ckpt': weights do not fit Model"),
            (SeesAhead(), ModelError, r"prior is 'SeesAhead': "),
        ]
        for prior, error, says in refused:
            with pytest.raises(error, match=says):
                fit(tmp_path, model, ExposureCallback(CANARIES, CHARS, prior=prior))
            assert model.trainer.global_step == 0

    def test_a_step_model_whose_adapters_nobody_can_switch_off(self, tmp_path: Path) -> None:
        lm = nn.Sequential(nn.Embedding(CHARS.vocab_size, 8), nn.Linear(8, CHARS.vocab_size))
        callback = ExposureCallback(CANARIES, CHARS, prior="without_adapters", model=lambda _: StatelessAdapter(lm))
        with pytest.raises(ArgumentError, match=r"'without_adapters', and model picks a StatelessAdapter; expected"):
            fit(tmp_path, Model(), callback)


SCRIPT = """
import sys
from pathlib import Path
import lightning as L
import torch
from lightning_exposure import ExposureCallback
from lightning_exposure.privacy import PoissonLoader
from tests.callbacks.setups import BOTH, CHARS, Model, loader, trainer
from tests.callbacks.test_prior import pretrained

folder, prior = Path(sys.argv[1]), sys.argv[2]
L.seed_everything(3, verbose=False)
run = trainer(folder, max_epochs=2, strategy="ddp", devices=2)
if prior == "differs":
    torch.manual_seed(run.global_rank)
    prior = Model()
callback = ExposureCallback(BOTH, CHARS, prior=None if prior == "none" else prior)
run.callbacks.append(callback)
model = pretrained()
run.fit(model, loader(BOTH))
bits = [[e.bits for e in m.estimates.values()] for m in callback.history]
ceilings = [[e.prior_bits for e in m.estimates.values()] for m in callback.history]
torch.save({"weights": model.state_dict(), "bits": bits, "ceilings": ceilings}, folder / f"rank{run.global_rank}.pt")
"""


@pytest.mark.slow
class TestTwoProcesses:
    @staticmethod
    def start(folder: Path, prior: str) -> subprocess.CompletedProcess[str]:
        folder.mkdir()
        (folder / "script.py").write_text(SCRIPT)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(folder / "script.py"), str(folder), prior]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    def test_all_agree_and_the_weights_are_the_same(self, tmp_path: Path) -> None:
        found = {}
        for prior in ("before_training", "none"):
            done = self.start(tmp_path / prior, prior)
            assert done.returncode == 0, done.stderr[-3000:]
            ranks = [torch.load(tmp_path / prior / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
            assert ranks[0]["bits"] == ranks[1]["bits"]
            assert ranks[0]["ceilings"] == ranks[1]["ceilings"]
            found[prior] = ranks[0]
        assert all(it is not None and math.isfinite(it) for row in found["before_training"]["ceilings"] for it in row)
        weights = found["none"]["weights"]
        assert all(torch.equal(value, weights[name]) for name, value in found["before_training"]["weights"].items())

    def test_references_that_differ_are_refused_by_all(self, tmp_path: Path) -> None:
        done = self.start(tmp_path / "differs", "differs")
        assert done.returncode != 0
        assert "prior is another one in process 1 than in process 0" in done.stderr
