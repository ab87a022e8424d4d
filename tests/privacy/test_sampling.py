"""Poisson sampling: the draws themselves, and the loader that makes batches of them."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scipy import stats
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_exposure.data import CanaryDataModule
from lightning_exposure.errors import DataError
from lightning_exposure.privacy.steps.poisson import PoissonLoader, draw, generators, steps_per_epoch
from tests.data.helpers import CANARIES, COUNT, encode, numbers_loader, read


class Dicts(Dataset[Any]):
    """Records as dictionaries, which say who fetched them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        worker = torch.utils.data.get_worker_info()
        return {"number": index, "worker": -1 if worker is None else worker.id}


class Slow(Dataset[Any]):
    """Every second batch takes long, and all of those are of one worker."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        worker = torch.utils.data.get_worker_info()
        time.sleep(0.05 if worker is not None and worker.id == 0 else 0.0)
        return index


def seeded(seed: int = 0, rank: int = 0) -> Any:
    """Passes that can be repeated, each with other batches."""
    passes = iter(range(1000))
    return lambda: generators(seed, rank=rank, steps=next(passes)).sampling


def collate_set(items: list[Any]) -> set[int]:
    return {item["number"] for item in items}


# ---- draws ----------------------------------------------------------------------------------------------------


def test_every_record_is_drawn_with_the_sample_rate_and_by_itself() -> None:
    generator, records, rate, draws = torch.Generator().manual_seed(0), 20, 0.3, 5000
    hits = torch.zeros(draws, records)
    for row in range(draws):
        hits[row, draw(records, rate, generator)] = 1
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], draws, rate)
    assert all(low <= count <= high for count in hits.sum(0).tolist())
    correlations = torch.corrcoef(hits.T) - torch.eye(records)
    assert correlations.abs().max() < 6 / math.sqrt(draws)
    # Neighbouring draws know nothing of each other either, and sizes vary as independent coins make them.
    assert abs(float(torch.corrcoef(torch.stack([hits[:-1, 0], hits[1:, 0]]))[0, 1])) < 5 / math.sqrt(draws)
    assert float(hits.sum(1).var()) == pytest.approx(records * rate * (1 - rate), rel=0.1)


def test_coins_are_fine_enough_for_rare_records() -> None:
    """Of 50 million numbers in single precision, about three are exactly 0 and would always be drawn."""
    generator = torch.Generator().manual_seed(0)
    assert not any(draw(10_000_000, 1e-12, generator) for _ in range(5))


def test_generators_differ_by_seed_process_step_and_purpose_and_are_the_same_again() -> None:
    def first(**where: int) -> list[float]:
        made = generators(**where)
        return [torch.rand((), generator=made.sampling).item(), torch.rand((), generator=made.noise).item()]

    places = [{"seed": s, "rank": r, "steps": n} for s in (0, 1, 2**100) for r in (0, 1) for n in (0, 1, 10)]
    numbers = [number for where in places for number in first(**where)]
    assert len(set(numbers)) == len(numbers) == 36
    assert numbers == [number for where in places for number in first(**where)]


# ---- how many steps -------------------------------------------------------------------------------------------


def test_steps_and_rate_are_those_of_the_original_loader_for_every_size() -> None:
    """For 312 sizes below 5,000, 1 / (1 / n) is not n; so the number of steps is never computed from the rate."""
    assert sum(int(1 / (1 / n)) != n for n in range(1, 5000)) == 312
    for n in range(1, 5000):
        loader = PoissonLoader(DataLoader(range(n), batch_size=1))  # type: ignore[arg-type]
        assert len(loader) == loader.steps == n
        assert loader.sample_rate == 1 / n


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("records", [10, 11, 12, 13])
def test_steps_are_those_that_several_processes_would_make(records: int, world_size: int, drop_last: bool) -> None:
    sampler: Any = DistributedSampler(range(records), world_size, 0)  # type: ignore[arg-type]
    theirs = len(DataLoader(range(records), batch_size=2, sampler=sampler, drop_last=drop_last))  # type: ignore[arg-type]
    assert steps_per_epoch(records, 2, drop_last=drop_last, world_size=world_size) == theirs


def test_the_loader_says_what_the_accountant_needs() -> None:
    loader = PoissonLoader(DataLoader(Dicts(50), batch_size=8), world_size=2, rank=1)
    assert (loader.records, loader.steps, loader.sample_rate) == (50, 4, 0.25)
    assert loader.batch_size == 8
    assert repr(loader) == "PoissonLoader(records=50, steps=4, sample_rate=0.25)"


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_one_record_more_or_less_changes_nothing_but_the_batches(drop_last: bool, world_size: int) -> None:
    # Rate and divisor are made of what is public, the batch size and the number of steps.
    loaders = [
        PoissonLoader(DataLoader(Dicts(n), batch_size=8, drop_last=drop_last), rank=0, world_size=world_size)
        for n in (52, 53)
    ]
    facts = [(loader.batch_size, loader.sample_rate, loader.steps) for loader in loaders]
    assert facts[0] == facts[1]


# ---- batches --------------------------------------------------------------------------------------------------


def test_batches_are_the_draws_of_the_generator() -> None:
    loader = PoissonLoader(DataLoader(Dicts(30), batch_size=5, shuffle=True), generator=seeded())
    for epoch in range(2):
        generator = generators(0, steps=epoch).sampling
        expected = [draw(30, 1 / 6, generator) for _ in range(6)]
        found = [batch["number"].tolist() for batch in loader]
        assert found == [batch or [0] for batch in expected]
        assert list(loader.sizes) == [len(batch) for batch in expected]


def test_an_empty_draw_gives_a_batch_that_counts_as_nothing_also_if_it_is_the_first() -> None:
    seed = next(s for s in range(100) if not draw(2, 0.5, generators(s).sampling))
    loader = PoissonLoader(DataLoader(Dicts(2), batch_size=1), generator=seeded(seed))
    batches = iter(loader)
    assert next(batches)["number"].tolist() == [0]
    assert loader.sizes.popleft() == 0
    sizes = [len(batch["number"]) for _ in range(50) for batch in loader]
    assert min(sizes) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_sizes_belong_to_the_batches_whoever_fetches_ahead(workers: int) -> None:
    options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 3} if workers else {}
    loader = PoissonLoader(DataLoader(Dicts(12), batch_size=2, num_workers=workers, **options), generator=seeded(3))
    seen = []
    for _ in range(3):
        for batch in loader:
            seen.append((loader.sizes.popleft(), batch["number"].tolist()))
            assert not loader.sizes
            assert set(batch["worker"].tolist()) <= ({0, 1} if workers else {-1})
    assert len(seen) == 18
    assert all(size == len(numbers) or (size == 0 and numbers == [0]) for size, numbers in seen)
    assert any(size == 0 for size, _ in seen)


def test_workers_that_may_overtake_each_other_do_not() -> None:
    loader = PoissonLoader(DataLoader(Slow(16), batch_size=2, num_workers=2, in_order=False), generator=seeded(1))
    for batch in loader:
        assert max(1, loader.sizes.popleft()) == len(batch)


def test_settings_of_the_loader_are_kept() -> None:
    original = DataLoader(Dicts(20), batch_size=4, collate_fn=collate_set, shuffle=True, drop_last=True)
    loader = PoissonLoader(original, generator=seeded(1))
    assert all(isinstance(batch, set) for batch in loader)
    assert loader.dataset is original.dataset
    # The original is as it was.
    assert type(original.batch_sampler) is BatchSampler
    assert isinstance(original.sampler, RandomSampler)
    assert original.generator is None


def test_nothing_is_drawn_before_the_first_batch_is_asked_for() -> None:
    asked = []

    def generator() -> torch.Generator:
        asked.append(True)
        return torch.Generator().manual_seed(0)

    loader = PoissonLoader(DataLoader(Dicts(20), batch_size=4), generator=generator)
    unused, used = iter(loader), iter(loader)
    assert not asked
    next(used)
    assert len(asked) == 1
    del unused


def test_the_programs_own_random_numbers_are_not_used() -> None:
    before = torch.get_rng_state()
    batches = [len(batch["number"]) for batch in PoissonLoader(DataLoader(Dicts(200), batch_size=20, num_workers=1))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)
    others = [len(batch["number"]) for batch in PoissonLoader(DataLoader(Dicts(200), batch_size=20))]
    assert batches != others  # without a generator, seeds come from the operating system


def test_processes_draw_from_parts_of_their_own_and_make_equally_many_steps() -> None:
    seen: list[set[int]] = []
    for rank in range(3):
        loader = PoissonLoader(
            DataLoader(Dicts(20), batch_size=2), rank=rank, world_size=3, generator=seeded(rank=rank)
        )
        numbers: set[int] = set()
        for _ in range(40):
            batches = [batch["number"].tolist() for batch in loader]
            assert len(batches) == 4
            sizes = list(loader.sizes)
            numbers |= {number for batch, size in zip(batches, sizes, strict=True) if size for number in batch}
        seen.append(numbers)
    assert seen == [set(range(rank, 20, 3)) for rank in range(3)]


def test_a_process_without_records_still_makes_its_steps() -> None:
    loader = PoissonLoader(DataLoader(Dicts(2), batch_size=1), rank=2, world_size=3)
    assert [batch["number"].tolist() for batch in loader] == [[0]]
    assert list(loader.sizes) == [0]


def test_a_loader_can_be_sent_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(PoissonLoader(DataLoader(Dicts(20), batch_size=4))))
    assert len([batch["number"] for batch in copy]) == 5


# ---- canaries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_each_copy_of_a_canary_is_a_record_and_the_ledger_counts_what_was_fetched(workers: int) -> None:
    data = CanaryDataModule(numbers_loader(60, shuffle=True, num_workers=workers), CANARIES, encode=encode)
    loader = PoissonLoader(data.train_dataloader(), generator=seeded(5))
    assert loader.records == 60 + COUNT
    total: dict[str, int] = {canary.id: 0 for canary in CANARIES}
    numbers: list[int] = []
    epochs = 1 if workers else 50
    for _ in range(epochs):
        batches = list(loader)
        real = [batch for batch, size in zip(batches, loader.sizes, strict=True) if size]
        mine, found = read(real)
        numbers += mine
        total = {id_: total[id_] + found[id_] for id_ in total}
    assert data.ledger.total == total
    assert sum(total.values()) > 0
    if not workers:
        for canary in CANARIES:
            # A copy is in an epoch once on average; the number varies as that of other records does.
            low, high = stats.binom.ppf(
                [1e-6, 1 - 1e-6], epochs * loader.steps * canary.repetitions, loader.sample_rate
            )
            assert low <= total[canary.id] <= high
        low, high = stats.binom.ppf([1e-6, 1 - 1e-6], epochs * loader.steps * 60, loader.sample_rate)
        assert low <= len(numbers) <= high


def test_canaries_in_a_loader_with_a_sampler_that_chooses_are_refused_too() -> None:
    loader = numbers_loader(10, sampler=SubsetRandomSampler([1, 2, 3]))
    with pytest.raises(DataError, match="the sampler SubsetRandomSampler, which does not take every record once"):
        PoissonLoader(CanaryDataModule(loader, CANARIES, encode=encode).train_dataloader())


# ---- refusals -------------------------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Odd(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__())


DATA: Any = list(range(10))
REFUSED = {
    "a list": ([DataLoader(DATA)], "train_dataloader is a list; expected one torch DataLoader"),
    "a dict": ({"a": DataLoader(DATA)}, "train_dataloader is a dict; expected one torch DataLoader"),
    "a stream": (DataLoader(Stream()), "the dataset Stream, which has no length or no index"),
    "no length": (DataLoader(Unsized(), sampler=SequentialSampler(DATA)), "the dataset Unsized, which has no length"),
    "single items": (DataLoader(DATA, batch_size=None), "the batch_sampler NoneType; expected none of your own"),
    "own batches": (DataLoader(DATA, batch_sampler=[[0], [1]]), "the batch_sampler list; expected none of your own"),
    "own iteration": (Odd(DATA), "train_dataloader is a Odd with an __iter__ of its own"),
    "weights": (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), "the sampler WeightedRandomSampler"),
    "replacement": (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "the sampler RandomSampler"),
    "fewer": (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=3)), "the sampler RandomSampler"),
    "nothing": (DataLoader(DATA, batch_size=20, drop_last=True), "has 10 records, which do not fill a batch of 20"),
    "twice": (PoissonLoader(DataLoader(DATA)), "a PoissonLoader already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loaders_that_poisson_sampling_would_change_are_refused(name: str) -> None:
    loader, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        PoissonLoader(loader)
