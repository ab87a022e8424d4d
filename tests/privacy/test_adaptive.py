"""The clipping norm that follows a quantile: what it costs, where it goes, and that it moves by nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_exposure.errors import ArgumentError, FitError
from lightning_exposure.privacy import AdaptiveClipping, Clipping, PrivateSteps, epsilon
from lightning_exposure.privacy.steps.adaptive import GRID, FollowedNorm, chosen_clipping, gradient_noise
from lightning_exposure.privacy.steps.proof import Promise
from lightning_exposure.privacy.steps.proof._bound import COUNT_TESTS, Bound
from lightning_exposure.privacy.steps.proof._error import ErrorBudget

# ---- what it costs -------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 10), st.floats(0.51, 100))
def test_both_queries_together_are_one_with_the_noise_that_the_accountant_is_told(noise: float, times: float) -> None:
    """The loss of privacy of independent Gaussian queries: a shift of 1/z, in all of them together."""
    count_noise = times * noise
    shifts = np.array([1 / gradient_noise(noise, count_noise), 0.5 / count_noise])
    assert float(np.linalg.norm(shifts)) == pytest.approx(1 / noise, rel=1e-9)
    assert gradient_noise(noise, count_noise) > noise


def test_the_accountant_agrees() -> None:
    """Composed at a sample rate of 1, where composition is exact: two queries, and one with the joint noise."""
    separately = epsilon([(gradient_noise(1.0, 1.5), 1.0, 10), (2 * 1.5, 1.0, 10)], 1e-5, "rdp")
    assert separately == pytest.approx(epsilon([(1.0, 1.0, 10)], 1e-5, "rdp"), rel=1e-6)


def test_the_usual_noise_of_the_count_costs_the_gradient_two_percent_at_most() -> None:
    for noise in (0.3, 1.0, 5.0):
        for batch_size in (1, 16, 256, 4096):
            tracking = AdaptiveClipping().tracking(noise, batch_size)
            assert noise < tracking.gradient_noise <= 1.021 * noise
            assert tracking.count_noise == max(batch_size / 20, 2.5 * noise)
    assert AdaptiveClipping().tracking(0.0, 256).count_noise == 0.0


# ---- where it goes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_it_arrives_at_the_quantile_of_norms_that_stay(quantile: float) -> None:
    luck = np.random.default_rng(0)
    norms = luck.lognormal(1.0, 0.7, size=20_000)
    followed = FollowedNorm(AdaptiveClipping(quantile=quantile).tracking(1.0, 200), 0.01)
    seen = []
    for _ in range(400):
        batch = norms[luck.random(len(norms)) < 0.01]
        within = batch <= followed.norm
        followed.release(float((within - 0.5).sum()), luck.standard_normal())
        seen.append(followed.norm)
    assert np.mean(seen[150:]) == pytest.approx(np.quantile(norms, quantile), rel=0.05)


def test_it_stays_within_its_limits() -> None:
    settings = AdaptiveClipping(least=0.5, most=2.0, learning_rate=5.0)
    for side, limit in ((1, 0.5), (-1, 2.0)):
        followed = FollowedNorm(settings.tracking(1.0, 10), 1.0)
        for _ in range(5):
            followed.release(side * 5.0, 0.0)
        assert followed.norm == limit


def test_the_share_is_of_the_batch_size_that_was_asked_for() -> None:
    """Three of four examples within, where ten were asked for: the true number of examples is nobody's business."""
    followed = FollowedNorm(AdaptiveClipping(learning_rate=1.0).tracking(1.0, 10), 1.0)
    followed.release(3 - 4 / 2, 0.0)
    assert followed.norm == pytest.approx(math.exp(-(1 / 10)))


def test_digits_of_the_noise_do_not_tell_the_count() -> None:
    """All counts are on the grid, whatever the noise, so that each can be reached from each other."""
    tracking = AdaptiveClipping().tracking(1.3, 100)
    for exact in (0.0, 7.5, -31.0):
        for noise in np.random.default_rng(1).standard_normal(50):
            followed = FollowedNorm(tracking, 1.0)
            followed.release(exact, float(noise))
            assert followed.count / GRID == round(followed.count / GRID)
            assert followed.count == pytest.approx(exact + tracking.count_noise * noise, abs=GRID)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantile": 0.0}, "quantile is 0.0; expected"),
        ({"quantile": 1.0}, "quantile is 1.0; expected"),
        ({"learning_rate": 0}, "learning_rate is 0; expected"),
        ({"count_noise": -1.0}, "count_noise is -1.0; expected"),
        ({"least": 0.0}, "least is 0.0; expected"),
        ({"least": 2.0, "most": 1.0}, "most is 1.0; expected"),
    ],
)
def test_settings_check_themselves(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AdaptiveClipping(**settings)


def test_too_little_noise_on_the_count_is_refused_with_what_would_be_enough() -> None:
    with pytest.raises(ArgumentError, match=r"count_noise is 0\.5; expected more than half .*, 0\.5\. .* With 2\.5,"):
        AdaptiveClipping(count_noise=0.5).tracking(1.0, 100)
    assert AdaptiveClipping(count_noise=0.51).tracking(1.0, 100).gradient_noise > 5


def test_ways_to_clip_are_checked_with_norm_and_noise() -> None:
    assert chosen_clipping("per_layer", 1.0, None) == "per_layer"
    with pytest.raises(ArgumentError, match=r"clipping is 'perlayer'; expected one of 'flat', 'per_layer', 'adaptive'"):
        chosen_clipping("perlayer", 1.0, None)
    for both in (["adaptive", "per_layer"], {"quantile": 0.5}, None):
        with pytest.raises(ArgumentError, match=r"clipping is .*; expected one of .* it has one norm, for all layers"):
            chosen_clipping(both, 1.0, None)
    with pytest.raises(ArgumentError, match=r"max_grad_norm is 5000.0; expected between least=0.001 and most=1000"):
        chosen_clipping("adaptive", 5000.0, None)
    with pytest.raises(ArgumentError, match=r"count_noise is 0\.1; expected more than half of the noise"):
        chosen_clipping(AdaptiveClipping(count_noise=0.1), 1.0, 1.0)


# ---- private steps without a Trainer ---------------------------------------------------------------------------------


def steps_of(settings: AdaptiveClipping, *, noise: float, verify: int = 100) -> tuple[PrivateSteps, list[float]]:
    """Thirty private steps of a linear layer; and the norm of each of them."""
    torch.manual_seed(0)
    layer, batch_size = nn.Linear(4, 2), 12
    clipping = Clipping(layer, max_grad_norm=0.05)
    promise = Promise(noise, 0.05, tracking=settings.tracking(noise, batch_size), seed=[1])
    steps = PrivateSteps(
        clipping,
        torch.optim.SGD(layer.parameters(), lr=0.01),
        noise_multiplier=noise,
        expected_batch_size=batch_size,
        count=lambda: None,
        verify=verify,
        promise=promise,
    )
    steps.use_noise(torch.Generator().manual_seed(5))
    data, norms = torch.Generator().manual_seed(2), []
    for step in range(30):
        examples = 0 if step % 7 == 3 else 8 + step % 5
        inputs = torch.randn(max(1, examples), 4, generator=data)
        norms.append(clipping.max_grad_norm)
        steps.optimizer.zero_grad()
        steps.begin(examples)
        (layer(inputs) - 1).square().sum(1).mean().backward()
        steps.optimizer.step()
        steps.end()
    steps.finish()
    steps.close()
    return steps, norms


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_private_steps_move_the_norm_also_when_nothing_was_drawn(noise: float) -> None:
    steps, norms = steps_of(AdaptiveClipping(), noise=noise)
    assert norms[0] == 0.05 < norms[-1] < steps.clipping.max_grad_norm * 1.5
    assert len(set(norms)) == 30 if noise else len(set(norms)) > 20
    if not noise:
        empty = [step for step in range(29) if step % 7 == 3]
        assert all(norms[step + 1] == norms[step] for step in empty)  # 0 examples are as many within as not


# ---- the proof -------------------------------------------------------------------------------------------------------


class Optimizer:
    """What the proof looks at."""

    def __init__(self, followed: FollowedNorm) -> None:
        self.followed, self.clipping = followed, self
        self.max_grad_norm = followed.norm

    def release(self, exact: float, noise: float) -> None:
        self.followed.release(exact, noise)
        self.max_grad_norm = self.followed.norm


def bound(settings: AdaptiveClipping | None = None) -> tuple[Bound, Optimizer]:
    tracking = (settings or AdaptiveClipping()).tracking(1.0, 40)
    proof = Bound(1.0, 1.0, tracking, ErrorBudget(COUNT_TESTS), np.random.default_rng(0))
    return proof, Optimizer(FollowedNorm(tracking, 1.0))


def run(proof: Bound, optimizer: Optimizer, luck: np.random.Generator, steps: int, change: Any = float) -> None:
    for _ in range(steps):
        proof.begin(optimizer)
        norms = torch.from_numpy(luck.lognormal(size=40))
        within = (norms <= optimizer.max_grad_norm).double()
        proof.count(norms, within, 40)
        optimizer.release(float(within.sum()) - 20, change(luck.standard_normal()))
        proof.end(optimizer, None)
    proof.look()


def test_no_healthy_run_is_refused() -> None:
    for seed in range(50):
        run(*bound(), np.random.default_rng(seed), steps=40)


@pytest.mark.parametrize(
    "change", [lambda noise: 0.0, lambda noise: 0.3 * noise, lambda noise: 3 * noise, abs, lambda noise: 1.5]
)
def test_noise_of_the_count_that_is_none_shows_without_drawing_it_again(change: Any) -> None:
    with pytest.raises(FitError, match="its noise is something else than normal numbers"):
        run(*bound(), np.random.default_rng(0), steps=200, change=change)


def test_a_norm_that_moves_by_something_else_is_refused() -> None:
    proof, optimizer = bound()
    proof.begin(optimizer)
    optimizer.max_grad_norm *= 1.0001
    with pytest.raises(FitError, match=r"The clipping norm is 1\.0001; expected 1, to which the counts have led"):
        proof.begin(optimizer)


def test_something_else_that_is_counted_is_refused() -> None:
    proof, optimizer = bound()
    proof.begin(optimizer)
    norms = torch.tensor([0.5, 0.9, 3.0, 4.0])
    for wrong in ([1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0], [1.0, 1.0]):
        with pytest.raises(FitError, match="of 4 examples were counted, and 2 to 2 were within the norm"):
            proof.count(norms, torch.tensor(wrong), 4)
    proof.count(norms, torch.tensor([1.0, 1.0, 0.0, 0.0]), 4)
    assert proof.exact == 0.0


def test_noise_that_is_other_noise_when_it_is_drawn_again_is_refused() -> None:
    proof, optimizer = bound()
    proof.begin(optimizer)
    optimizer.release(0.0, 0.5)
    with pytest.raises(FitError, match="if it is drawn again from the private generator"):
        proof.end(optimizer, 0.6)
