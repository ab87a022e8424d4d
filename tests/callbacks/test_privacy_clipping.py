"""Other ways to clip, and noise of the operating system, in whole training runs."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from lightning_exposure.errors import ArgumentError
from lightning_exposure.privacy import AdaptiveClipping, epsilon, generators
from lightning_exposure.privacy.steps.adaptive import GRID
from lightning_exposure.privacy.steps.origin import KEY
from lightning_exposure.privacy.steps.poisson import draw
from lightning_exposure.report import run_record, write_report
from lightning_exposure.report.pages import _answers as answers
from tests.callbacks.privacy_setups import (
    BATCH,
    DATA,
    OPTIMIZERS,
    RATE,
    RECORDS,
    STEPS,
    Data,
    Module,
    loss_of,
    network,
    privacy,
    same,
    trainer,
    weights,
)

ADAPTIVE = AdaptiveClipping(quantile=0.6, learning_rate=0.5, count_noise=1.1)


def by_hand(kind: str, *, noise: float = 0.7, epochs: int = 2) -> tuple[dict[str, Tensor], list[float]]:
    """DP-SGD with an adaptive norm, one example after the other and with plain autograd; weights, and the norms."""
    model = network(kind)
    optimizer, norm, norms = OPTIMIZERS["sgd"](model.parameters()), 0.5, []
    gradient_noise = 1 / math.sqrt(1 / noise**2 - 1 / (2 * 1.1) ** 2) if noise else 0.0
    for epoch in range(epochs):
        luck = generators(3, steps=epoch * STEPS)
        for _ in range(STEPS):
            sums, counted = [torch.zeros_like(p) for p in model.parameters()], 0.0
            for record in DATA[draw(RECORDS, RATE, luck.sampling)]:
                grads = torch.autograd.grad(loss_of(model, record[None]), list(model.parameters()))
                length = float(torch.stack([grad.norm() for grad in grads]).norm())
                counted += 0.5 if length <= norm else -0.5
                for total, grad in zip(sums, grads, strict=True):
                    total += min(1.0, norm / (length + 1e-6)) * grad
            of_count = float(torch.randn(1, generator=luck.noise, dtype=torch.float64))
            for parameter, total in zip(model.parameters(), sums, strict=True):
                added = torch.normal(0.0, gradient_noise * norm, size=total.shape, generator=luck.noise) if noise else 0
                parameter.grad = (total + added) / BATCH
            optimizer.step()
            released = counted + round(1.1 * of_count / GRID) * GRID
            norm *= math.exp(-0.5 * (released / BATCH + 0.5 - 0.6))
            norms.append(norm)
    return {f"net.{name}": value.detach() for name, value in model.named_parameters()}, norms


@pytest.mark.parametrize(("kind", "noise"), [("lstm", 0.7), ("layers", 0.0)])
def test_an_adaptive_norm_is_the_one_by_hand(kind: str, noise: float, tmp_path: Path) -> None:
    wanted, norms = by_hand(kind, noise=noise)
    module, callback = Module(kind, "sgd"), privacy(clipping=ADAPTIVE, noise_multiplier=noise, verify_steps=100)
    run = trainer(tmp_path, callback)
    run.fit(module, Data())
    for name, value in wanted.items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-4, atol=1e-4)
    assert callback.norm_in_force.norm == pytest.approx(norms[-1], rel=1e-9)
    assert callback.norm_in_force.epochs == [
        (STEPS, pytest.approx(norms[STEPS - 1], rel=1e-9)),
        (2 * STEPS, pytest.approx(norms[-1], rel=1e-9)),
    ]
    # What is logged is the norm in force; and epsilon is that of the noise that was asked for.
    assert float(run.callback_metrics["privacy/clipping_norm"]) == pytest.approx(norms[-1], rel=1e-6)
    assert float(run.callback_metrics["privacy/noise_multiplier"]) == pytest.approx(noise)
    assert callback.epsilon == (epsilon([(0.7, RATE, 2 * STEPS)], 1e-5, "rdp") if noise else math.inf)


def test_a_norm_that_adapts_is_the_same_in_parts(tmp_path: Path) -> None:
    found = []
    for most in (None, 4):
        module, callback = Module("lstm", "sgd"), privacy(clipping=ADAPTIVE, max_physical_batch_size=most)
        trainer(tmp_path, callback).fit(module, Data())
        found.append((callback.norm_in_force.epochs, weights(module)))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_run_goes_on_with_its_norm_bit_for_bit(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    module, callback = Module("lstm", "adam"), privacy(clipping="adaptive")
    trainer(tmp_path, callback, saving, max_epochs=3, enable_checkpointing=True).fit(module, Data())
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["callbacks"]
    (state,) = (state for key, state in saved.items() if "DifferentialPrivacy" in key)
    assert state["clipping_norm"] == callback.norm_in_force.epochs[0][1] != 0.5
    resumed, again = Module("lstm", "adam"), privacy(clipping="adaptive")
    trainer(tmp_path, again, max_epochs=3).fit(resumed, Data(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(weights(module), weights(resumed))
    assert again.norm_in_force.epochs == callback.norm_in_force.epochs
    assert again.state_dict() == callback.state_dict()


def test_fitting_another_module_begins_with_the_first_norm_again(tmp_path: Path) -> None:
    callback = privacy(clipping="adaptive")
    runs = []
    for _ in range(2):
        module = Module("layers", "sgd")
        trainer(tmp_path, callback, max_epochs=1).fit(module, Data())
        runs.append((callback.norm_in_force.norm, weights(module)))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])


def test_batches_without_examples_move_the_norm_by_noise_alone(tmp_path: Path) -> None:
    callback = privacy(clipping="adaptive", verify_steps=100)
    trainer(tmp_path, callback, max_epochs=8).fit(Module(), Data(records=3, batch_size=1))
    assert callback.steps == 24
    assert len({norm for _, norm in callback.norm_in_force.epochs}) == 8


def test_layers_are_clipped_one_by_one_with_as_much_noise(tmp_path: Path) -> None:
    """Every step is proven; and it is another training than that with one norm, of the same epsilon."""
    found = []
    for clipping in ("flat", "per_layer"):
        module, callback = Module("transformer", "sgd"), privacy(clipping=clipping, verify_steps=100)
        trainer(tmp_path, callback).fit(module, Data())
        found.append((weights(module), callback.epsilon))
    assert not same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_flat_is_what_it_was(tmp_path: Path) -> None:
    found = []
    for settings in ({}, {"clipping": "flat", "secure": False}):
        module = Module("lstm", "adam")
        trainer(tmp_path, privacy(**settings)).fit(module, Data())
        found.append(weights(module))
    assert same(*found)


# ---- noise of the operating system -----------------------------------------------------------------------------------


def test_secure_noise_leaves_the_global_generator_alone_and_is_never_the_same(tmp_path: Path) -> None:
    found = []
    trainer(tmp_path, privacy()).fit(Module("lstm", "sgd"), Data())
    usual = torch.get_rng_state()  # what loaders and Lightning draw
    for _ in range(2):
        module, callback = Module("lstm", "sgd"), privacy(secure=True, seed=None, verify_steps=100)
        trainer(tmp_path, callback).fit(module, Data())
        assert torch.equal(usual, torch.get_rng_state())
        found.append((module.seen, weights(module)))
        assert callback.epsilon == epsilon([(0.7, RATE, 2 * STEPS)], 1e-5, "rdp")
    assert found[0][0] != found[1][0]
    assert not same(found[0][1], found[1][1])


@pytest.mark.parametrize(
    "settings", [{"clipping": "adaptive"}, {"max_physical_batch_size": 4}, {"noise_multiplier": 0}]
)
def test_secure_noise_goes_with_everything_else(settings: dict[str, Any], tmp_path: Path) -> None:
    callback = privacy(secure=True, seed=None, verify_steps=100, **settings)
    trainer(tmp_path, callback).fit(Module("lstm", "adam"), Data())
    assert callback.steps == 2 * STEPS


# ---- what is refused, and what is written down ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clipping": "per layer"}, r"clipping is 'per layer'; expected one of 'flat', 'per_layer', 'adaptive'\. Did"),
        ({"clipping": ["adaptive", "per_layer"]}, "it has one norm, for all layers together"),
        ({"clipping": AdaptiveClipping(count_noise=0.3)}, r"count_noise is 0\.3; expected more than half .*, 0\.35\."),
        ({"clipping": AdaptiveClipping(least=1.0)}, r"max_grad_norm is 0\.5; expected between least=1 and most=1000"),
        ({"secure": True}, "seed is 3; expected None with secure=True"),
        ({"secure": 1}, "secure is 1, of type int; expected True or False"),
    ],
)
def test_what_cannot_work_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        privacy(**settings)


def test_noise_that_is_found_can_be_too_much_for_the_count(tmp_path: Path) -> None:
    callback = privacy(clipping=AdaptiveClipping(count_noise=0.3), target_epsilon=1.0)
    with pytest.raises(ArgumentError, match=r"count_noise is 0\.3; expected more than half of the noise multiplier"):
        trainer(tmp_path, callback).fit(Module(), Data())


def test_the_record_says_how_examples_were_clipped_and_where_the_noise_came_from(tmp_path: Path) -> None:
    facts, pages = [], []
    for settings in ({"clipping": "adaptive"}, {"clipping": "per_layer", "secure": True, "seed": None}):
        callback = privacy(**settings)
        run = trainer(tmp_path, callback)
        run.fit(Module(), Data())
        record = run_record(run)
        facts.append(record.privacy)
        pages.append((write_report(record, tmp_path / "page").read_text(), dict(answers.privacy_rows(record))))
    adaptive, layers = facts
    assert adaptive["clipping"] == {
        "name": "adaptive",
        "quantile": 0.5,
        "learning_rate": 0.2,
        "count_noise": 2.5 * 0.7,
        "gradient_noise_multiplier": pytest.approx((0.7**-2 - (2 * 2.5 * 0.7) ** -2) ** -0.5),
        "least": 1e-3,
        "most": 1e3,
    }
    assert [steps for steps, _ in adaptive["clipping_norms"]] == [STEPS, 2 * STEPS]
    assert adaptive["clipping_norm"] == adaptive["clipping_norms"][-1][1]
    assert adaptive["secure"] is False
    assert (layers["clipping"], layers["clipping_norms"], layers["clipping_norm"]) == ({"name": "per_layer"}, [], 0.5)
    assert layers["secure"] is True
    (page, rows), (other, others) = pages
    assert rows["Clipping norm"] == f"0.5 at first, {adaptive['clipping_norm']:.4g} at last"
    assert rows["Clipping"] == (
        "adaptive: the norm follows the 0.5 quantile, covered by epsilon "
        "(noise on the count: 1.75, noise multiplier of the gradient: 0.7144)"
    )
    assert "How the clipping norm moved" in page
    assert f"<td>{adaptive['clipping_norms'][0][1]:.4g}</td>" in page.replace(' class="number"', "")
    assert (others["Clipping norm"], others["Clipping"].split(",")[0]) == ("0.5", "layer by layer")
    assert others["Noise"].startswith("from the operating system")
    assert "How the clipping norm moved" not in other


def test_the_record_says_how_many_examples_are_trained_on_at_a_time(tmp_path: Path) -> None:
    run = trainer(tmp_path, privacy(max_physical_batch_size=4), max_epochs=1)
    run.fit(Module(), Data())
    record = run_record(run)
    assert (record.privacy or {})["max_physical_batch_size"] == 4
    assert dict(answers.privacy_rows(record))["Trained on at a time, at most"] == "4"


def test_what_the_record_says_of_the_noise_holds_for_all_fits_behind_the_weights(tmp_path: Path) -> None:
    def fitted(module: Any, checkpoint: str | None = None, **settings: Any) -> Any:
        run = trainer(tmp_path, privacy(**settings), max_epochs=1 if checkpoint is None else 2)
        run.fit(module, Data(), ckpt_path=checkpoint)
        return run

    def said(run: Any) -> tuple[Any, ...]:
        facts = run_record(run).privacy or {}
        return facts["secure"], facts["seeded"], facts["clippings"]

    from_outside = {"secure": True, "seed": None}
    module = Module()
    assert said(fitted(module, **from_outside)) == (True, False, [])
    assert said(fitted(module, **from_outside)) == (True, False, [])
    assert said(fitted(module, clipping="per_layer")) == (False, True, ["flat", "per_layer"])
    run = fitted(module, **from_outside)
    assert said(run) == (False, True, ["flat", "per_layer"])
    assert said(fitted(copy.deepcopy(module), **from_outside)) == (False, True, ["flat", "per_layer"])
    rows = dict(answers.privacy_rows(run_record(run)))
    assert rows["Clipping in all fits, one after the other"] == "flat, per_layer"
    assert rows["Noise"].startswith("from a fixed seed")
    # Also where they go on from a file.
    run.save_checkpoint(tmp_path / "all.ckpt")
    resumed = fitted(Module(), str(tmp_path / "all.ckpt"), **from_outside)
    assert said(resumed) == (False, True, ["flat", "per_layer"])
    # What was written down by a version that did not know of it is not said to be secure.
    older = torch.load(tmp_path / "all.ckpt", weights_only=False)
    older[KEY].pop("ways")
    again = Module()
    again.load_state_dict(older["state_dict"])
    told = trainer(tmp_path, privacy(history=older, **from_outside), max_epochs=1)
    told.fit(again, Data())
    assert said(told) == (False, False, ["unknown", "flat"])
