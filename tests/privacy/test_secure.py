"""Noise and coins from the operating system: what they are made of, how they are distributed, what they leave alone."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader

from lightning_exposure.errors import FitError
from lightning_exposure.privacy import PoissonLoader, generators
from lightning_exposure.privacy.steps.poisson import draw
from lightning_exposure.privacy.steps.proof import BATCH_TESTS, BatchTests, ErrorBudget
from lightning_exposure.privacy.steps.proof._secure import as_before, check_secure, check_secure_draw, listen_to
from lightning_exposure.privacy.steps.secure import (
    SecureGenerator,
    coins,
    gaussian,
    hardened_gaussian,
    standard_normal,
    uniform,
)

MANY = 200_000


def bytes_of(key: str) -> Callable[[int], bytes]:
    """Bytes that look random and are always the same: a hash with as long an output as is wanted."""
    requests = [0]

    def read(count: int) -> bytes:
        requests[0] += 1
        return hashlib.shake_256(f"{key} {requests[0]}".encode()).digest(count)

    return read


@pytest.mark.parametrize("make", [gaussian, hardened_gaussian])
@pytest.mark.parametrize("key", ["one", "two"])
def test_numbers_are_normal(make: Callable[..., np.ndarray], key: str) -> None:
    found = make(MANY, bytes_of(key))
    assert found.dtype == np.float64
    assert stats.kstest(found, "norm").pvalue > 1e-3
    scale = MANY**-0.5
    assert abs(found.mean()) < 4 * scale
    assert abs(found.var() - 1) < 4 * 2**0.5 * scale
    assert abs((found**3).mean()) < 4 * 15**0.5 * scale
    assert abs((found**4).mean() - 3) < 4 * 96**0.5 * scale
    for edge in (2.0, 3.0, 4.0):
        expected = 2 * stats.norm.sf(edge)
        assert stats.binomtest(int((np.abs(found) > edge).sum()), MANY, expected).pvalue > 1e-4
    # No two of them go together, neither neighbours nor the two that are made of the same bytes.
    for lag in (1, 2, MANY // 2):
        assert abs(float((found[:-lag] * found[lag:]).mean())) < 4 / (MANY - lag) ** 0.5


def test_tails_reach_as_far_as_63_bits_do() -> None:
    far = gaussian(2, read=bytes)  # all bits are 0: the smallest number there is, and the angle 0
    assert far[0] == pytest.approx((2 * 64 * np.log(2)) ** 0.5)
    assert far[1] == 0.0
    near = gaussian(2, read=lambda count: b"\xff" * count)
    assert np.isfinite(near).all()
    assert float(np.abs(near).max()) < 1e-9


def box_muller(radius: int, angle: int) -> tuple[float, float]:
    """Two normal numbers of two words, by nothing but Python's own functions."""
    length = math.sqrt(-2 * math.log(((radius & (2**63 - 1)) + 0.5) / 2**63))
    turned = 2 * math.pi * ((angle >> 11) / 2**53)
    return length * math.cos(turned), length * math.sin(turned)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_a_hardened_number_is_half_the_sum_of_four_of_different_pairs(count: int) -> None:
    pairs = 2 * (count + count % 2)
    words = np.frombuffer(bytes_of("x")(16 * pairs), dtype="<i8").tolist()
    both = [box_muller(words[place], words[pairs + place]) for place in range(pairs)]
    step = pairs // 4
    of_pairs = [range(number % step, pairs, step) for number in range(2 * step)]
    assert all(len(set(four)) == 4 for four in of_pairs)
    expected = [sum(both[pair][number // step] for pair in four) / 2 for number, four in enumerate(of_pairs)]
    assert hardened_gaussian(count, bytes_of("x")) == pytest.approx(expected[:count], abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_eight_words_decide_over_a_hardened_number(count: int) -> None:
    pairs = 2 * (count + count % 2)
    words = np.frombuffer(bytes_of("y")(16 * pairs), dtype="<i8")
    before = hardened_gaussian(count, lambda size: words.tobytes())
    assert len(words.tobytes()) == 32 * (count + count % 2)
    decided = np.zeros((2, pairs, count), dtype=bool)  # by the radius and by the angle of a pair
    for place in range(2 * pairs):
        other = words.copy()
        other[place] ^= 2**61
        changed = hardened_gaussian(count, lambda size, other=other: other.tobytes()) != before
        decided[place // pairs, place % pairs] = changed
    assert np.array_equal(decided[0], decided[1])  # the words of a pair go together
    assert decided[0].sum(0).tolist() == [4] * count  # and each number is made of four pairs


def test_large_requests_are_made_in_parts() -> None:
    sizes: list[int] = []

    def read(count: int) -> bytes:
        sizes.append(count)
        return os.urandom(count)

    assert len(hardened_gaussian(300_001, read)) == 300_001
    assert sum(sizes) in range(32 * 300_001, 32 * 300_001 + 33)
    assert max(sizes) <= 2**23


def test_coins_are_uniform_and_all_bits_count() -> None:
    found = uniform(MANY, bytes_of("coins"))
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    assert found.min() >= 0
    assert found.max() < 1
    assert uniform(1, lambda count: b"\xff" * count)[0] == 1 - 2.0**-53


def test_batches_pass_the_tests_of_poisson_sampling() -> None:
    generator, tests = SecureGenerator(), BatchTests(300, ErrorBudget(BATCH_TESTS), np.random.default_rng(0))
    for _ in range(200):
        tests.add(draw(300, 0.1, generator), 0.1)
    tests.look()


def test_nothing_comes_from_global_generators_and_nothing_is_repeated() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (generators(None) for _ in range(2))  # of two processes, or of two passes
    numbers = [
        *first.noise.normal(5000),
        *second.noise.normal(5000),
        *first.sampling.normal(5000),
        *coins(5000, first.sampling).tolist(),
        *coins(5000, second.sampling).tolist(),
        standard_normal(first.noise),
    ]
    assert len(set(numbers)) == len(numbers)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert first.sampling.initial_seed() != first.sampling.initial_seed()


def test_noise_is_added_in_double_precision_and_rounded_once() -> None:
    values = torch.tensor([1e6, -3.0, 1e-12])
    noise = hardened_gaussian(3, bytes_of("n"))
    noisy = SecureGenerator(bytes_of("n")).noisy(values, 2.0)
    assert noisy.dtype == values.dtype
    assert torch.equal(noisy, (values.double() + 2.0 * torch.from_numpy(noise)).float())
    assert torch.equal(SecureGenerator().noisy(values, 0.0), values)


def test_a_loader_can_be_read_with_it() -> None:
    loader = PoissonLoader(DataLoader(range(100), batch_size=10), generator=lambda: generators(None).sampling)
    first, second = ([sorted(map(int, batch)) for batch in loader] for _ in range(2))
    assert len(first) == 10
    assert first != second


# ---- what can be proven ----------------------------------------------------------------------------------------------


def test_what_was_given_is_remembered_request_by_request() -> None:
    generator = SecureGenerator()
    listen_to(generator)
    count, noise = standard_normal(generator), generator.normal(10)
    again = as_before(generator, generator.get_state(), torch.device("cpu"))
    assert standard_normal(again) == count
    assert np.array_equal(again.normal(10), noise)
    assert np.isnan(again.normal(1)).all()  # nothing is left
    assert len(generator.kept()) == 0  # and nothing is kept any longer


def test_what_does_not_fit_is_not_kept_nor_what_follows() -> None:
    generator = SecureGenerator()
    generator.keep(10)
    for count in (4, 8, 2):
        generator.normal(count)
    assert [len(part) for part in generator.kept()] == [4]


def test_other_sources_are_refused() -> None:
    check_secure(SecureGenerator())
    for other in (torch.Generator(), None, SecureGenerator(bytes_of("x"))):
        with pytest.raises(FitError, match="secure=True was asked for, but the noise comes from another generator"):
            check_secure(other)
    check_secure_draw(SecureGenerator().get_state())
    with pytest.raises(FitError, match="batches are drawn from another generator than the operating system's"):
        check_secure_draw(torch.Generator().get_state())
