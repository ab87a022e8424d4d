"""Manual optimization: one optimizer is private, and the others do not see the data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import ArgumentError, ExposureError, FitError
from tests.callbacks import gan_models as gans
from tests.callbacks.gan_models import BATCH, RECORDS, Gan, Images, fit, says
from tests.callbacks.leaky_gans import MUTATIONS, Scheduled
from tests.callbacks.privacy_setups import privacy, trainer

EPOCHS = 2
STEPS = EPOCHS * RECORDS // BATCH


@pytest.fixture(autouse=True)
def quiet(caplog: Any) -> Iterator[None]:
    with caplog.at_level("ERROR", logger="lightning.pytorch"):
        yield


def weights(module: Any) -> list[Tensor]:
    return [value.detach().clone() for value in module.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- what is private -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", gans.HEALTHY)
def test_a_gan_written_in_any_way_is_trained(style: str, tmp_path: Path) -> None:
    module = gans.HEALTHY[style]()
    before = copy.deepcopy(module)
    callback = fit(tmp_path, module, seed=None)
    assert callback.history == [(0.7, BATCH / RECORDS, STEPS)]
    assert callback.epsilon > 0
    for part in ("generator", "discriminator"):
        assert not equal(weights(getattr(module, part)), weights(getattr(before, part)))
    assert all("forward" not in vars(part) for part in module.modules()), "nobody listens any more"


USERS = {"unit": "user", "user": [number % 20 for number in range(RECORDS)], "max_records_per_user": 3}


@pytest.mark.parametrize(
    "settings",
    [{"clipping": "per_layer"}, {"clipping": "adaptive"}, {"secure": True, "seed": None}, USERS],
    ids=["per layer", "adaptive", "secure", "users"],
)
def test_any_clipping_and_any_unit(settings: dict[str, Any], tmp_path: Path) -> None:
    callback = fit(tmp_path, Gan(), **settings)
    assert callback.steps == (4 if settings is USERS else STEPS)


@pytest.mark.parametrize("name", ["feature matching", "as many as the batch", "batch statistics in the generator"])
def test_what_is_not_private_is_refused_with_users_too(name: str, tmp_path: Path) -> None:
    make, message = MUTATIONS[name]
    with pytest.raises(ExposureError, match=message):
        fit(tmp_path, make(), **USERS)


def test_ways_to_write_it_lead_to_the_same_weights(tmp_path: Path) -> None:
    """What is frozen, and how gradients are cleared, does not matter: the private step is that of the same losses."""
    found = []
    for kind in (Gan, gans.Untoggled, gans.WithClosures):
        module = kind()
        torch.manual_seed(5)
        fit(tmp_path, module)
        found.append(weights(module))
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


def test_the_proof_leaves_no_trace(tmp_path: Path) -> None:
    found = []
    for verify in (0, 3):
        module = gans.ManySteps()
        torch.manual_seed(5)
        fit(tmp_path, module, verify_steps=verify)
        found.append((weights(module), torch.get_rng_state()))
    assert equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


class Plain(Gan):
    """Gradient descent, and everything that the discriminator was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[Tensor, Tensor, Tensor]] = []

    def discriminator_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        fakes = self.generated(labels).detach()
        self.shown.append((images, labels, fakes))
        return says(self.judged(images, labels), True) + says(self.judged(fakes, labels), False)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=1.0) for part in (self.generator, self.discriminator)]


def test_an_example_is_a_record_and_the_generated_one_beside_it(tmp_path: Path) -> None:
    """One step without noise, beside the same by brute force: pair by pair, clipped, added up."""
    module = Plain()
    before = copy.deepcopy(module)
    norm = 0.95
    fit(tmp_path, module, noise_multiplier=0.0, max_grad_norm=norm, options={"max_steps": 2})
    (images, labels, fakes) = module.shown[-1]
    parameters = list(before.discriminator.parameters())
    total, clipped = [torch.zeros_like(value) for value in parameters], 0
    for image, label, fake in zip(images, labels, fakes, strict=True):
        loss = says(before.judged(image[None], label[None]), True) + says(before.judged(fake[None], label[None]), False)
        gradient = torch.autograd.grad(loss, parameters)
        length = float(torch.cat([part.flatten() for part in gradient]).norm())
        clipped += length > norm
        for part, one in zip(total, gradient, strict=True):
            part += one * min(1.0, norm / length)
    assert 0 < clipped < len(images), "some are clipped, and some are not"
    for value, start, change in zip(module.discriminator.parameters(), parameters, total, strict=True):
        torch.testing.assert_close(value, start - change / BATCH, rtol=1e-4, atol=1e-6)


def test_the_generators_steps_are_its_own(tmp_path: Path) -> None:
    """Between private steps its weights move as its optimizer moves them, along a gradient with no noise on it."""

    class Look(L.Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if optimizer is trainer.optimizers[0]:
                self.seen = (weights(module.generator), [value.grad.clone() for value in module.generator.parameters()])

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            for value, start, gradient in zip(module.generator.parameters(), *self.seen, strict=True):
                torch.testing.assert_close(value.detach(), start - gradient, rtol=0, atol=1e-7)

    fit(tmp_path, Plain(), Look())


def test_one_private_optimizer_in_a_loop_of_its_own(tmp_path: Path) -> None:
    class Loop(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.net = nn.Linear(gans.SIZE, gans.CLASSES)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    class Automatic(Loop):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = True

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    manual, automatic = Loop(), Automatic()
    one, other = fit(tmp_path, manual, private="net"), fit(tmp_path, automatic, private=None)
    assert equal(weights(manual), weights(automatic))
    assert one.history == other.history


def test_empty_batches_train_the_generator_alone(tmp_path: Path) -> None:
    """The discriminator gets noise; the generator learns from what it says, as always."""
    sizes: list[int] = []
    moved: list[bool] = []

    class Look(L.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
            self.before = weights(module.generator)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            moved.append(not equal(self.before, weights(module.generator)))

    callback = privacy(private="discriminator", verbose=False, noise_multiplier=2.0)
    run = trainer(tmp_path, callback, Look(), max_epochs=6)
    module = Gan()
    data = Images(records=4, batch_size=1)
    original = callback._count
    callback._count = lambda: (sizes.append(callback._fit.steps.proof._examples), original())[1]  # type: ignore
    run.fit(module, data)
    assert 0 in sizes
    assert max(sizes) > 1
    assert all(moved)
    assert callback.steps == len(sizes) == 24


def test_a_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    class Reseed(L.Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            torch.manual_seed(trainer.current_epoch)

    def run(stop: int, folder: Path, checkpoint: Path | None = None) -> tuple[Any, Any, Any]:
        module = gans.GeneratorFirst()
        callback = privacy(private="discriminator", verbose=False, noise_multiplier=0.9)
        made = trainer(folder, callback, Reseed(), max_epochs=stop)
        made.fit(module, Images(), ckpt_path=checkpoint)
        made.save_checkpoint(folder / f"{stop}.ckpt")
        return module, callback, made

    whole, history, _ = run(4, tmp_path / "a")
    run(2, tmp_path / "b")
    resumed, again, made = run(4, tmp_path / "b", tmp_path / "b" / "2.ckpt")
    assert equal(weights(whole), weights(resumed))
    assert again.history == history.history == [(0.9, BATCH / RECORDS, 16)]
    checkpoint = torch.load(tmp_path / "b" / "4.ckpt", weights_only=True)
    assert len(checkpoint["optimizer_states"]) == 2
    plain = Gan()
    plain.load_state_dict(checkpoint["state_dict"])
    assert equal(weights(plain), weights(resumed))
    assert [type(optimizer) for optimizer in made.optimizers] == [torch.optim.Adam] * 2, "taken off again"


def test_steps_are_planned_by_batches_and_not_by_the_steps_of_all_optimizers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = Gan()
    callback = privacy(private="discriminator", target_epsilon=4.0)
    run = trainer(tmp_path, callback)
    run.fit(module, Images())
    assert run.global_step == 2 * STEPS
    assert callback.steps == STEPS
    assert 3.5 < callback.epsilon <= 4.0
    assert float(run.callback_metrics["privacy/epsilon"]) == pytest.approx(callback.epsilon)
    run.save_checkpoint(tmp_path / "end.ckpt")
    capsys.readouterr()
    more = trainer(tmp_path, privacy(private="discriminator", noise_multiplier=1.0), max_epochs=EPOCHS + 1)
    more.fit(Gan(), Images(), ckpt_path=tmp_path / "end.ckpt")
    said = capsys.readouterr().err
    assert f"{RECORDS // BATCH} steps are planned" in said
    assert f"it includes the {STEPS} private steps" in said
    assert "without privacy" not in said


# ---- what is not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_not_private_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, message = MUTATIONS[name]
    with pytest.raises(ExposureError, match=message):
        fit(tmp_path, make(), options={"max_epochs": 3})


def test_another_callback_cannot_put_records_into_the_generators_gradient(tmp_path: Path) -> None:
    class Pull(L.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            self.mean = batch[0].mean(0)

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if module.generator[2].bias.grad is not None:
                module.generator[2].bias.grad += self.mean

    with pytest.raises(FitError, match="was stepped along another gradient than the one it has when other records"):
        fit(tmp_path, Gan(), Pull())


def test_what_could_not_be_seen_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, Gan(), data=Images(records=1, batch_size=1))
    assert "beside that of 'discriminator' see the data could not be seen: no batch had two" in capsys.readouterr().err


def test_a_step_in_a_hook_that_is_vouched_for(tmp_path: Path) -> None:
    class Vouched(Gan):
        def on_train_epoch_end(self) -> None:
            self.train_generator(self.optimizers()[0], None)

    module = Vouched()
    before = copy.deepcopy(module)
    fit(tmp_path, module, post_processing=["on_train_epoch_end"])
    assert not torch.equal(module.generator[0].weight, before.generator[0].weight)


def test_a_schedule_in_a_hook_that_is_vouched_for(tmp_path: Path) -> None:
    class Vouched(Scheduled):
        def on_train_epoch_end(self) -> None:
            self.lr_schedulers().step()

    module = Vouched()
    callback = fit(tmp_path, module, post_processing=["on_train_epoch_end"])
    assert callback.steps == STEPS


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Gan, {"private": None}, r'DifferentialPrivacy\(private="discriminator"\)'),
        (Gan, {"private": "critic"}, r"private is 'critic'; expected .* \('generator', 'discriminator'\)"),
        (Gan, {"max_physical_batch_size": 4}, "max_physical_batch_size is 4: with automatic_optimization=False"),
        (lambda: _automatic(Gan()), {}, "automatic_optimization is True: .* leave it out"),
        (lambda: _with_statistics(Gan()), {}, r"'1' \(BatchNorm1d\)"),
    ],
)
def test_what_cannot_be_trained_is_said_before(make: Any, settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExposureError, match=message):
        fit(tmp_path, make(), **settings)


def _automatic(module: Gan) -> Gan:
    module.automatic_optimization = True
    return module


def _with_statistics(module: Gan) -> Gan:
    module.discriminator.insert(1, nn.BatchNorm1d(16))
    return module


@pytest.mark.parametrize("wrong", ["", 3, ["discriminator"]])
def test_a_private_part_is_a_name(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^private is .*; expected the name of the part"):
        privacy(private=wrong)
