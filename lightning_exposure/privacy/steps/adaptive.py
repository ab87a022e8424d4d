r"""Adaptive clipping: a clipping norm that follows a quantile of the norms of the examples, privately.

After Andrew, Thakkar, McMahan and Ramaswamy, "Differentially private learning with adaptive clipping". A step does two
things with the examples of its batch: it sums their gradients, each clipped to the norm C that is in force, and it
counts those that were within C. Both are released with noise, and C is then multiplied by
`exp(-learning_rate * (noisy share - quantile))`: too many within, and it shrinks; too few, and it grows. What follows
from released numbers costs nothing more, so the new norm is as private as the weights, and may be shown.

**What the count costs.** Let b_i be 1 if example i is within C, and 0 otherwise. What is counted is the sum of
b_i - 1/2, so that whoever is added to a batch or taken from it moves the count by 1/2, up or down, and not by 0 or 1.
The noise of the count has the standard deviation s (`count_noise`), that of the gradient z_grad C. An example moves the
pair (sum / (z_grad C), count / s), whose noise is standard normal, by a vector of a length of at most

    sqrt((C / (z_grad C))^2 + (1/2 / s)^2) = sqrt(z_grad^-2 + (2 s)^-2),

which is a single Gaussian query with the noise multiplier z if z^-2 = z_grad^-2 + (2 s)^-2. The accountant is told z,
of one step, as always; and so the gradient gets the noise multiplier

    z_grad = (z^-2 - (2 s)^-2)^(-1/2) > z,

for which s must be above z / 2. With s = 2.5 z it is 2% above z; with larger s less.

**What it is divided by.** The noisy count is divided by the batch size that was asked for, which is public, and not by
the number of examples that were drawn, which is not: `share = count / batch size + 1/2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lightning_exposure._checks import choice, number, refusal

ClippingName = Literal["flat", "per_layer", "adaptive"]
CLIPPINGS: Final[tuple[ClippingName, ...]] = get_args(ClippingName)

GRID: Final = 2.0**-20
"""What the noise of a count is rounded to, in examples."""
_COUNT_NOISE = 2.5
"""The noise of the count in units of the noise multiplier, at least: then the gradient has 2% more noise at most."""
_SHARE_NOISE = 0.05
"""The noise of the share of examples, where the batch is large enough for that to cost even less."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Settings of a clipping norm that follows a quantile of the examples' norms.

    Attributes:
        quantile: The share of examples that are to be within the norm.
        learning_rate: How quickly the norm moves: after every step it is multiplied by
            `exp(-learning_rate * (noisy share of examples within it - quantile))`.
        count_noise: The standard deviation of the noise on the number of examples within the norm. It must be above
            half of the noise multiplier. None: a twentieth of the batch size, and 2.5 times the noise multiplier at
            least; nothing, where the noise multiplier is 0.
        least: What the norm never falls below.
        most: What it never exceeds.

    Raises:
        ArgumentError: A value is out of its range.

    Example:
        >>> AdaptiveClipping(quantile=0.5).tracking(noise_multiplier=1.0, batch_size=256).count_noise
        12.8
        >>> AdaptiveClipping(quantile=1.5)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: quantile is 1.5; expected a number above 0 and below 1.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None
    least: float = 1e-3
    most: float = 1e3

    def __post_init__(self) -> None:
        """Refuse what cannot be; numbers of other libraries become Python's own."""
        checked = {
            "quantile": number("quantile", self.quantile, above=0, below=1),
            "learning_rate": number("learning_rate", self.learning_rate, above=0),
            "least": number("least", self.least, above=0),
            "most": number("most", self.most, at_least=self.least, remedy="No norm could be within both limits."),
        }
        if self.count_noise is not None:
            checked["count_noise"] = number("count_noise", self.count_noise, above=0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def check_noise(self, noise_multiplier: float) -> None:
        """Refuse so little noise on the count that the two queries together could not be told to the accountant.

        Raises:
            ArgumentError: It says how much is needed.
        """
        if self.count_noise is not None and not 2 * self.count_noise > noise_multiplier:
            raise refusal(
                "count_noise",
                self.count_noise,
                f"more than half of the noise multiplier, {noise_multiplier / 2:.4g}",
                "Below it, the count alone spends more than the accountant is told. With "
                f"{_COUNT_NOISE * noise_multiplier:.4g}, the gradient gets 2% more noise; leave it out for that.",
            )

    def check_norm(self, max_grad_norm: float) -> None:
        """Refuse a first norm that is not within the limits.

        Raises:
            ArgumentError: It says what they are.
        """
        if not self.least <= max_grad_norm <= self.most:
            raise refusal(
                "max_grad_norm",
                max_grad_norm,
                f"between least={self.least:g} and most={self.most:g}",
                "It is the first norm of adaptive clipping: change it, or the limits of AdaptiveClipping(...).",
            )

    def tracking(self, noise_multiplier: float, batch_size: float) -> Tracking:
        """The same, with the noise that there will be.

        Args:
            noise_multiplier: What the accountant is told.
            batch_size: How many examples were asked for in a batch of all processes: a public number.

        Raises:
            ArgumentError: The noise on the count is not enough.
        """
        self.check_noise(noise_multiplier)
        noise = self.count_noise
        if noise is None:
            noise = max(_SHARE_NOISE * batch_size, _COUNT_NOISE * noise_multiplier) if noise_multiplier else 0.0
        return Tracking(self, noise, batch_size, gradient_noise(noise_multiplier, noise))


@dataclass(frozen=True)
class Tracking:
    """How the norm of a training run moves.

    Attributes:
        settings: As the user gave them.
        count_noise: The standard deviation of the noise on the count.
        batch_size: What the count is divided by.
        gradient_noise: The noise multiplier of the gradient.
    """

    settings: AdaptiveClipping
    count_noise: float
    batch_size: float
    gradient_noise: float

    def next_norm(self, norm: float, count: float) -> float:
        """The norm of the next step.

        Args:
            norm: That of this step.
            count: The noisy sum of b_i - 1/2.

        Example:
            >>> tracking = AdaptiveClipping(learning_rate=1.0).tracking(noise_multiplier=1.0, batch_size=10)
            >>> tracking.next_norm(1.0, 0.0)  # half of the examples are within
            1.0
            >>> round(tracking.next_norm(1.0, 5.0), 3), round(tracking.next_norm(1.0, -5.0), 3)  # all, none
            (0.607, 1.649)
        """
        settings = self.settings
        share = count / self.batch_size + 0.5
        moved = norm * math.exp(-settings.learning_rate * (share - settings.quantile))
        return min(settings.most, max(settings.least, moved))


def gradient_noise(noise_multiplier: float, count_noise: float) -> float:
    """The noise multiplier of the gradient with which both queries together are one with a noise multiplier.

    Args:
        noise_multiplier: What the accountant is told of both together.
        count_noise: The standard deviation of the noise on the count of b_i - 1/2.

    Example:
        >>> round(gradient_noise(1.0, 2.5), 4), gradient_noise(0.0, 0.0)
        (1.0206, 0.0)
    """
    if not noise_multiplier:
        return 0.0
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_noise) ** -2)


class FollowedNorm:
    """The clipping norm of a training run, moved by every step.

    Args:
        tracking: How it moves.
        norm: The first one.

    Attributes:
        tracking: As given.
        norm: The one of the next step.
        count: What was released last: the noisy sum of b_i - 1/2 over all processes.
    """

    def __init__(self, tracking: Tracking, norm: float) -> None:
        self.tracking, self.norm, self.count = tracking, norm, 0.0

    def release(self, exact: float, noise: float) -> None:
        """Release a count with noise, and move the norm by what was released.

        Args:
            exact: The sum of b_i - 1/2 over the examples of all processes.
            noise: A standard normal number from the private generator.
        """
        # To whole multiples of the grid, on which every count is: then the digits of the noise do not tell the count.
        self.count = exact + round(self.tracking.count_noise * noise / GRID) * GRID
        self.norm = self.tracking.next_norm(self.norm, self.count)


def chosen_clipping(clipping: object, max_grad_norm: float, noise_multiplier: float | None) -> str | AdaptiveClipping:
    """What a user means by a way to clip.

    Args:
        clipping: "flat", "per_layer", "adaptive", or the settings of the last.
        max_grad_norm: The first norm.
        noise_multiplier: What the accountant is told; None if it is not known yet.

    Returns:
        A name, or the settings.

    Raises:
        ArgumentError: It is neither, or does not go with the noise and the norm.

    Example:
        >>> chosen_clipping("adaptive", 1.0, 1.0)
        AdaptiveClipping(quantile=0.5, learning_rate=0.2, count_noise=None, least=0.001, most=1000.0)
    """
    settings = AdaptiveClipping() if isinstance(clipping, str) and clipping == "adaptive" else clipping
    if isinstance(settings, AdaptiveClipping):
        settings.check_norm(max_grad_norm)
        if noise_multiplier is not None:
            settings.check_noise(noise_multiplier)
        return settings
    remedy = "Settings of the last are given as AdaptiveClipping(...); it has one norm, for all layers together."
    return choice("clipping", clipping, CLIPPINGS, remedy=remedy)
