"""Publish generated digits in the place of real ones: what do they give away, and what are they good for?

A conditional variational autoencoder and a conditional GAN are trained on handwritten digits (the 8 by 8 pictures that
scikit-learn brings along), without privacy and with differential privacy. Each then generates as many digits as it was
trained on. A classifier that has seen nothing but generated digits and noise is asked about real ones: those that the
generator was trained on, and others. And classifiers are trained on real and on generated digits, and tested on both.
The row "copy" is that of a generator which gives away what it was trained on.

Prints a table; writes it as digits.csv, and a picture of generated digits as digits.png.
"""

from __future__ import annotations

import argparse
import csv
import logging
import time
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import DifferentialPrivacy
from lightning_exposure.privacy import PoissonLoader
from lightning_exposure.synthetic import AttackResult, GeneratedDataAttack, Utility, UtilityMatrix

PIXELS, CLASSES, LATENT = 64, 10, 16
DELTA = 1e-4
_binary = nn.functional.binary_cross_entropy_with_logits


def one_hot(labels: Tensor) -> Tensor:
    """Labels as the networks read them."""
    return nn.functional.one_hot(labels, CLASSES).float()


def layers(*sizes: int) -> nn.Sequential:
    """Linear layers with leaky rectifiers between them."""
    made: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        made += [nn.Linear(inputs, outputs), nn.LeakyReLU(0.2)]
    return nn.Sequential(*made[:-1])


class ConditionalVae(L.LightningModule):
    """Learns to write a digit from its label and 16 random numbers, by writing real ones again."""

    def __init__(self, hidden_size: int = 256, lr: float = 2e-3) -> None:
        super().__init__()
        self.encoder = layers(PIXELS + CLASSES, hidden_size, 2 * LATENT)
        self.decoder = layers(LATENT + CLASSES, hidden_size, PIXELS)
        self.lr = lr

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The mean over the examples of what each costs by itself, as private training asks for."""
        images, labels = batch
        kinds = one_hot(labels)
        mean, log_variance = self.encoder(torch.cat([images, kinds], 1)).chunk(2, 1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        written = self.decoder(torch.cat([code, kinds], 1))
        error = _binary(written, images, reduction="none").sum(1)
        distance = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return (error + distance).mean()

    def configure_optimizers(self) -> Any:
        """Adam, for everything."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def generate(self, labels: Tensor) -> Tensor:
        """A digit for each label."""
        pictures: Tensor = self.decoder(torch.cat([torch.randn(len(labels), LATENT), one_hot(labels)], 1)).sigmoid()
        return pictures


class ConditionalGan(L.LightningModule):
    """A generator learns to write digits that a discriminator takes for real ones.

    The discriminator is the part that sees the data: with privacy, `DifferentialPrivacy(private="discriminator")`.
    """

    def __init__(self, hidden_size: int = 256, batch_size: int = 100, lr: float = 1e-3) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = layers(LATENT + CLASSES, hidden_size, hidden_size, PIXELS)
        self.discriminator = layers(PIXELS + CLASSES, hidden_size, hidden_size // 2, 1)
        self.batch_size, self.lr = batch_size, lr

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """One step of the discriminator, and one of the generator."""
        images, labels = batch
        generator, discriminator = self.optimizers()

        self.toggle_optimizer(discriminator)
        # For every real digit a generated one, in a pass of its own: together they are one example.
        generated = self.generate(labels).detach()
        loss = self._judge(images, labels, real=True) + self._judge(generated, labels, real=False)
        discriminator.zero_grad()
        self.manual_backward(loss)
        discriminator.step()
        self.untoggle_optimizer(discriminator)

        self.toggle_optimizer(generator)
        # Nothing of the batch: always as many, and labels at random.
        wanted = torch.randint(CLASSES, (self.batch_size,))
        loss = self._judge(self.generate(wanted), wanted, real=True)
        generator.zero_grad()
        self.manual_backward(loss)
        generator.step()
        self.untoggle_optimizer(generator)

    def _judge(self, images: Tensor, labels: Tensor, *, real: bool) -> Tensor:
        logits = self.discriminator(torch.cat([images, one_hot(labels)], 1))
        return _binary(logits, torch.full_like(logits, float(real)))

    def configure_optimizers(self) -> Any:
        """One Adam for each of them."""
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=self.lr, betas=(0.5, 0.999)) for part in parts]

    def generate(self, labels: Tensor) -> Tensor:
        """A digit for each label."""
        pictures: Tensor = self.generator(torch.cat([torch.randn(len(labels), LATENT), one_hot(labels)], 1)).sigmoid()
        return pictures


@dataclass(frozen=True)
class Digits:
    """Pictures with numbers between 0 and 1, and their labels."""

    images: Tensor
    labels: Tensor

    def part(self, begin: int, end: int) -> Digits:
        """Some of them."""
        return Digits(self.images[begin:end], self.labels[begin:end])

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """As `UtilityMatrix` takes them."""
        return self.images, self.labels


def load_digits(seed: int) -> Digits:
    """All 1,797 of them, in an order of the seed's."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise SystemExit("The digits come with scikit-learn: pip install scikit-learn") from None
    found = load()
    order = np.random.default_rng(seed).permutation(len(found.target))
    images = torch.tensor(found.data[order] / found.data.max(), dtype=torch.float32)
    return Digits(images, torch.tensor(found.target[order], dtype=torch.long))


def train(model: str, members: Digits, epsilon: float | None, options: argparse.Namespace) -> tuple[Any, float | None]:
    """A trained model, and the epsilon that was spent."""
    torch.manual_seed(options.seed)
    module = ConditionalVae() if model == "VAE" else ConditionalGan(batch_size=options.batch_size)
    loader: Any = DataLoader(TensorDataset(*members.pair), batch_size=options.batch_size, shuffle=True)
    callbacks = []
    if epsilon is not None:
        loader = PoissonLoader(loader)
        part = "discriminator" if model == "GAN" else None
        norm = options.norms[model == "GAN"]
        callbacks = [
            DifferentialPrivacy(
                target_epsilon=epsilon, max_grad_norm=norm, delta=DELTA, seed=options.seed, private=part, verbose=False
            )
        ]
    epochs = options.epochs[model == "GAN"] if epsilon is None else options.private_epochs[model == "GAN"]
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(module, loader)
    return module.eval(), callbacks[0].epsilon if callbacks else None


@torch.no_grad()
def release(module: Any, members: Digits, count: int, seed: int) -> Digits:
    """Generated digits, with labels as often as real ones have them."""
    torch.manual_seed(seed)
    labels = members.labels[torch.randint(len(members.labels), (count,))]
    return Digits(module.generate(labels), labels)


@dataclass(frozen=True)
class Row:
    """What is known of one generator."""

    model: str
    epsilon: float | None
    attack: AttackResult
    sharp: AttackResult
    utility: Utility

    def shown(self) -> str:
        """A line of the table."""
        epsilon = "none" if self.epsilon is None else f"{self.epsilon:.2f}"
        means = "  ".join(f"{self.utility.mean(name).value:.3f}" for name in ("p1", "p2", "p3", "p4"))
        attack = self.attack
        return (
            f"{self.model:<5} {epsilon:>7}  {attack.privacy_loss!s:<22}  {attack.held_out_loss!s:<22}  "
            f"{attack.leak!s:<23}  {self.sharp.leak!s:<23}  {means}  {self.utility.loss}"
        )

    def values(self) -> dict[str, Any]:
        """A line of the file."""
        found: dict[str, Any] = {"model": self.model, "epsilon": "" if self.epsilon is None else round(self.epsilon, 4)}
        estimates = {
            "P_members": self.attack.members,
            "P_held_out": self.attack.held_out,
            "privacy_loss": self.attack.privacy_loss,
            "held_out_loss": self.attack.held_out_loss,
            "leak": self.attack.leak,
            "sharp_leak": self.sharp.leak,
            **{name: self.utility.mean(name) for name in ("p1", "p2", "p3", "p4")},
            "p1_minus_p2": self.utility.loss,
        }
        for name, estimate in estimates.items():
            values = (estimate.value, estimate.low, estimate.high)
            found |= dict(zip((name, f"{name}_low", f"{name}_high"), (round(v, 4) for v in values), strict=True))
        return found


HEADER = (
    f"{'':<5} {'':>7}  {'privacy loss (P - 0.5) / 0.5':<22}\n"
    f"{'model':<5} {'epsilon':>7}  {'of members':<22}  {'of held-out digits':<22}  {'leak':<23}  "
    f"{'leak, sharper attack':<23}  {'p1':<5}  {'p2':<5}  {'p3':<5}  {'p4':<5}  p1 - p2"
)


def picture(path: Path, real: Digits, shown: dict[str, Digits]) -> None:
    """Two of each digit: real ones, and those of every generator."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    named = {"real": real, **shown}
    figure, axes = plt.subplots(len(named), 1, figsize=(9, 0.75 * len(named)), squeeze=False)
    for axis, (name, digits) in zip(axes[:, 0], named.items(), strict=True):
        chosen = [int(place) for kind in range(CLASSES) for place in (digits.labels == kind).nonzero()[:2, 0]]
        row = torch.cat([nn.functional.pad(digits.images[place].view(8, 8), (1, 1, 1, 1)) for place in chosen], 1)
        axis.imshow(row, cmap="gray_r", vmin=0, vmax=1)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        axis.set(xticks=[], yticks=[], frame_on=False)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits"), help="directory to write to (default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=["VAE", "GAN"], default=["VAE", "GAN"], help="(default: both)")
    parser.add_argument(
        "--epsilons", type=float, nargs="*", default=[100.0, 10.0], help="with privacy (default: 100 and 10)"
    )
    parser.add_argument("--members", type=int, default=1000, help="digits to train on (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument(
        "--epochs", type=int, nargs=2, default=[100, 300], metavar=("VAE", "GAN"),
        help="without privacy (default: 100 and 300)",
    )  # fmt: skip
    parser.add_argument(
        "--private_epochs", type=int, nargs=2, default=[60, 150], metavar=("VAE", "GAN"),
        help="with privacy (default: 60 and 150)",
    )  # fmt: skip
    parser.add_argument(
        "--norms", type=float, nargs=2, default=[1.0, 1.0], metavar=("VAE", "GAN"),
        help="what gradients are clipped to (default: 1 and 1)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=5, help="how many, of the classifiers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all else that is random (default: %(default)s)")
    parser.add_argument("--fast", action="store_true", help="hardly any training, in seconds")
    options = parser.parse_args()
    if options.fast:
        options.epochs, options.private_epochs, options.epsilons = [1, 1], [1, 1], options.epsilons[-1:]
        options.members, options.seeds = 300, 2
    return options


@dataclass(frozen=True)
class Measurement:
    """Asks what generated digits give away, and what they are good for.

    Attributes:
        members: What the generators were trained on.
        held_out: Others; also to test classifiers on.
        reference: Others again, which the sharper attack has in the place of noise.
        seeds: How many classifiers are trained for each accuracy, and vote in an attack.
        seed: Of the attacks.
    """

    members: Digits
    held_out: Digits
    reference: Digits
    seeds: int
    seed: int

    def row(self, model: str, epsilon: float | None, generated: Digits, more: Digits) -> Row:
        """What is known of a generator, by what it has made: for classifiers to learn from, and to be tested on."""
        asked = {"members": self.members.images, "held_out": self.held_out.images}
        settings = {"classifiers": self.seeds, "seed": self.seed}
        sharper = GeneratedDataAttack(noise=self.reference.images, **settings)
        utility = UtilityMatrix(seeds=range(self.seeds)).measure(
            self.members.pair, generated.pair, private_test=self.held_out.pair, generated_test=more.pair
        )
        attack = GeneratedDataAttack(**settings).measure(generated.images, **asked)
        return Row(model, epsilon, attack, sharper.measure(generated.images, **asked), utility)


def main() -> None:
    """Train, generate, attack and classify; print the rows, and write them and the picture."""
    options = parsed()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    began, digits = time.process_time(), load_digits(options.seed)
    members, rest = digits.part(0, options.members), digits.part(options.members, len(digits.labels))
    half = len(rest.labels) // 2
    held_out, reference = rest.part(0, half), rest.part(half, len(rest.labels))
    measurement = Measurement(members, held_out, reference, options.seeds, options.seed)
    print(f"{len(members.labels)} digits to train on, {half} held out\n{HEADER}", flush=True)
    rows = [measurement.row("copy", None, members, members.part(0, half))]
    print(rows[0].shown(), flush=True)
    shown: dict[str, Digits] = {}
    for model in options.models:
        for epsilon in (None, *options.epsilons):
            module, spent = train(model, members, epsilon, options)
            generated = release(module, members, options.members, options.seed)
            more = release(module, members, half, options.seed + 1)
            rows.append(measurement.row(model, spent, generated, more))
            print(rows[-1].shown(), flush=True)
            shown[f"{model}, no privacy" if epsilon is None else f"{model}, epsilon {epsilon:g}"] = generated
    with (options.out / "digits.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0].values()), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.values() for row in rows)
    picture(options.out / "digits.png", held_out, shown)
    print(f"{options.out}/digits.csv and digits.png; {time.process_time() - began:.0f} s of CPU time")


if __name__ == "__main__":
    main()
