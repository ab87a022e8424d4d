"""Canaries in loaders of every kind: each exactly as often as asked, and nothing else changed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_exposure.data import CanaryDataModule
from lightning_exposure.errors import ArgumentError, DataError
from tests.data.helpers import (
    CANARIES,
    COUNT,
    LIGHTNING_WARNINGS,
    WANTED,
    Numbers,
    NumberStream,
    SizedNumberStream,
    encode,
    example,
    make_datamodule,
    make_module,
    make_trainer,
    numbers_loader,
    places,
    read,
    wrapped,
)

pytestmark = LIGHTNING_WARNINGS


class Odd(Sampler[int]):
    """A sampler of someone's own, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, 50, 2))


class Pairs(Sampler[list[int]]):
    """A batch sampler that is not PyTorch's."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[number, number + 1] for number in range(0, 50, 2)])

    def __len__(self) -> int:
        return 25


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS = {
    "sequential": lambda: numbers_loader(),
    "shuffled": lambda: numbers_loader(shuffle=True, generator=generator()),
    "drawn": lambda: numbers_loader(sampler=RandomSampler(range(50), True, 80, generator=generator())),
    "weighted": lambda: numbers_loader(sampler=WeightedRandomSampler([1.0] * 50, 30, generator=generator())),
    "subset": lambda: numbers_loader(sampler=SubsetRandomSampler([3, 1, 4, 15, 9], generator=generator())),
    "distributed": lambda: numbers_loader(sampler=DistributedSampler(range(50), 2, 1, shuffle=True)),
    "no length": lambda: numbers_loader(sampler=Odd()),
    "drop last": lambda: numbers_loader(50, batch_size=8, drop_last=True),
    "batch sampler": lambda: DataLoader(
        Numbers(50), batch_sampler=BatchSampler(SequentialSampler(range(50)), 6, False)
    ),
    "own batch sampler": lambda: DataLoader(Numbers(50), batch_sampler=Pairs()),
    "stream": lambda: DataLoader(NumberStream(50), batch_size=4),
    "sized stream": lambda: DataLoader(SizedNumberStream(50), batch_size=4),
    "empty": lambda: numbers_loader(0, sampler=[]),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_canary_is_there_as_often_as_asked_and_the_rest_is_as_it_was(kind: str) -> None:
    plain, _ = read(SAMPLERS[kind]())
    data = wrapped(SAMPLERS[kind]())
    loader = data.train_dataloader()
    numbers, found = read(loader)
    assert found == WANTED
    assert data.ledger[0] == data.ledger.total == WANTED
    if kind == "drop last":
        # The tail of the longer epoch is dropped; it has examples of the user's only, and fewer than a batch.
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 50 - 8
    else:
        assert numbers == plain
    _, found = read(loader)
    assert found == WANTED
    assert data.ledger.total == {id_: 2 * count for id_, count in WANTED.items()}


@pytest.mark.parametrize("kind", sorted(set(SAMPLERS) - {"empty"}))
def test_places_are_random_and_depend_on_the_seed_and_the_epoch(kind: str) -> None:
    def epochs(seed: int) -> list[list[int]]:
        loader = wrapped(SAMPLERS[kind](), seed=seed).train_dataloader()
        return [places(loader), places(loader)]

    first, second = epochs(0)
    assert epochs(0) == [first, second]
    assert first != second
    assert epochs(1)[0] != first
    assert len(first) == COUNT
    # Interleaved, not appended or clumped.
    if kind != "subset":
        assert first[-1] - first[0] > 2 * COUNT


@pytest.mark.parametrize("size", range(40, 60))
@pytest.mark.parametrize("stream", [False, True])
def test_dropping_the_last_batch_never_drops_a_canary(size: int, stream: bool) -> None:
    dataset: Any = NumberStream(size) if stream else Numbers(size)
    for seed in range(5):
        data = wrapped(DataLoader(dataset, batch_size=16, drop_last=True), seed=seed)
        batches = list(data.train_dataloader())
        assert {len(batch) for batch in batches} == {16}
        assert read(batches)[1] == data.ledger[0] == WANTED


@pytest.mark.parametrize("dataset", [Numbers(3), NumberStream(3)])
def test_canaries_that_cannot_be_kept_are_an_error(dataset: Any) -> None:
    loader = wrapped(DataLoader(dataset, batch_size=9, drop_last=True)).train_dataloader()
    with pytest.raises(
        DataError, match="drop_last is True, and 3 examples and 11 canaries fill 9 places in batches of 9"
    ):
        list(loader)


@pytest.mark.parametrize("kind", ["shuffled", "drop last", "own batch sampler", "stream", "sized stream"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_change_nothing(kind: str, persistent: bool) -> None:
    original = SAMPLERS[kind]()
    original.num_workers = 2
    original.prefetch_factor = 2
    vars(original)["persistent_workers"] = persistent
    data = wrapped(original)
    loader = data.train_dataloader()
    for epoch in range(2):
        numbers, found = read(loader)
        assert found == data.ledger[epoch] == WANTED
        if "stream" in kind:
            assert sorted(numbers) == list(range(50))
    assert original._iterator is None


def test_counting_stops_where_fetching_stops() -> None:
    data = wrapped(numbers_loader(num_workers=2))
    loader = data.train_dataloader()
    taken = [batch for _, batch in zip(range(6), loader, strict=False)]
    assert data.ledger[0] == read(taken)[1] != WANTED


def test_settings_of_the_loader_are_kept() -> None:
    class Loader(DataLoader[Any]):
        """A class of the user's, with an argument of its own."""

        def __init__(self, extra: str, **settings: Any) -> None:
            super().__init__(Numbers(50), **settings)
            self.extra = extra

        def __iter__(self) -> Any:
            return ({"numbers": batch} for batch in super().__iter__())

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(items)

    def work(number: int) -> None: ...

    user = Loader(
        "x", batch_size=5, collate_fn=collate, timeout=30, generator=generator(), worker_init_fn=work, num_workers=1
    )
    before = dict(vars(user))
    data = wrapped(user)
    woven = data.train_dataloader()
    assert vars(user) == before
    assert isinstance(woven, Loader)
    changed = {name for name, value in vars(woven).items() if value is not before[name]}
    assert changed == {"dataset", "sampler", "batch_sampler"}
    assert woven.batch_sampler.batch_size == 5
    assert len(woven) == len(list(woven)) == 13
    assert len(woven.dataset) == 50 + COUNT
    assert read([batch["numbers"] for batch in woven])[1] == WANTED
    assert data.ledger.total == {id_: 2 * count for id_, count in WANTED.items()}


def test_a_dataset_that_fetches_batches_still_does() -> None:
    asked: list[list[int]] = []

    class Batched(Numbers):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            asked.append(indices)
            return [example(index) for index in indices]

    loader = wrapped(DataLoader(Batched(50), batch_size=4)).train_dataloader()
    assert read(loader) == (list(range(50)), WANTED)
    assert sum(map(len, asked)) == 50
    copy = pickle.loads(pickle.dumps(loader.dataset.occurrences))
    assert len(copy) == COUNT
    assert not hasattr(wrapped(numbers_loader()).train_dataloader().dataset, "__getitems__")


def test_no_automatic_batches() -> None:
    data = wrapped(DataLoader(Numbers(50), batch_size=None))
    assert read([[row] for row in data.train_dataloader()]) == (list(range(50)), WANTED)
    assert data.ledger[0] == WANTED
    data = wrapped(DataLoader(NumberStream(50), batch_size=None))
    assert read([[row] for row in data.train_dataloader()]) == (list(range(50)), WANTED)
    assert data.ledger[0] == WANTED


def test_a_stream_is_only_read_once() -> None:
    rows = iter([example(number) for number in range(30)])

    class Once(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return rows

    assert read(wrapped(DataLoader(Once(), batch_size=4)).train_dataloader()) == (list(range(30)), WANTED)


def test_stream_length_spreads_canaries_over_a_long_stream() -> None:
    short = places(wrapped(DataLoader(NumberStream(6000), batch_size=64)).train_dataloader())
    long = places(wrapped(DataLoader(NumberStream(6000), batch_size=64), stream_length=6000).train_dataloader())
    wrong = wrapped(DataLoader(NumberStream(60), batch_size=64), stream_length=10**9).train_dataloader()
    assert max(short) < 1024 + COUNT
    assert max(long) > 3000
    assert read(wrong)[1] == WANTED


def test_an_example_handed_out_is_a_copy() -> None:
    data = wrapped(DataLoader(Numbers(5), batch_size=None))
    loader = data.train_dataloader()
    for row in loader:
        row.zero_()
    assert read([[row] for row in loader])[1] == WANTED


# ---- checking what encode makes --------------------------------------------------------------------------------


class Items(Dataset[Any]):
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.item


ROW = torch.zeros(8, dtype=torch.long)


@pytest.mark.parametrize(
    ("item", "made", "problem"),
    [
        (ROW, ROW.tolist(), "it is list, expected a tensor"),
        (ROW, ROW.float(), "it has dtype torch.float32, expected torch.int64"),
        (ROW, ROW[None], "it has 2 dimensions, expected 1"),
        (ROW, ROW[:7], r"it has shape \(7,\), expected \(8,\)"),
        (ROW.numpy(), ROW, "it is Tensor, expected a numpy array"),
        ((ROW, 1), ROW, "it is Tensor, expected tuple"),
        ((ROW, 1), (ROW,), "it has 1 entries, expected 2"),
        ((ROW, 1), (ROW, 1.0), r"the item\[1\] is float, expected int"),
        ({"x": ROW}, {"y": ROW}, r"it has the keys \['y'\], expected \['x'\]"),
        ({"x": [ROW, "a"]}, {"x": [ROW, 3]}, r"the item\['x'\]\[1\] is int, expected str"),
        (None, ROW, "it is Tensor, expected NoneType"),
    ],
)
def test_an_example_of_another_structure_is_refused_before_training(item: Any, made: Any, problem: str) -> None:
    data = CanaryDataModule(DataLoader(Items(item)), CANARIES, encode=lambda text: made)
    refused = rf"encode returned .* for canary 'pin-0x'; expected .*: {problem}\. Make"
    with pytest.raises(DataError, match=refused) as error:
        data.train_dataloader()
    # The text of a canary is a secret.
    assert not any(canary.text in str(error.value) for canary in CANARIES)


@pytest.mark.parametrize("item", [ROW, (ROW, 1), {"x": ROW, "y": [1.5, "a", None]}, ROW.numpy(), "text", [ROW]])
def test_an_example_of_the_same_structure_is_fine(item: Any) -> None:
    data = CanaryDataModule(DataLoader(Items(item), batch_size=None), CANARIES, encode=lambda text: item)
    assert len(list(data.train_dataloader())) == 3 + COUNT


def test_shapes_may_differ_where_a_collate_function_pads() -> None:
    loader = DataLoader(Items(ROW[:5]), collate_fn=list)
    assert len(list(wrapped(loader).train_dataloader())) == 3 + COUNT
    with pytest.raises(DataError, match="2 dimensions, expected 1"):
        CanaryDataModule(loader, CANARIES, encode=lambda text: ROW[None]).train_dataloader()


def test_a_stream_is_checked_with_its_first_item() -> None:
    data = CanaryDataModule(DataLoader(NumberStream(9)), CANARIES, encode=lambda text: ROW[:3])
    with pytest.raises(DataError, match=r"it has shape \(3,\), expected \(8,\)"):
        next(iter(data.train_dataloader()))


def test_an_encode_that_fails_says_for_which_canary() -> None:
    data = CanaryDataModule(numbers_loader(), CANARIES, encode=lambda text: {}[0])
    with pytest.raises(DataError, match=r"encode: failed for canary 'pin-0x' with KeyError: 0; fix encode"):
        data.train_dataloader()


# ---- several loaders -------------------------------------------------------------------------------------------


def test_canaries_go_into_one_of_several_loaders() -> None:
    one, two = numbers_loader(), numbers_loader(20)
    for loaders, path, chosen in [
        ([one, two], None, lambda made: (made[0], made[1])),
        ([one, two], 1, lambda made: (made[1], made[0])),
        ({"a": one, "b": (two,)}, "b", lambda made: (made["b"][0], made["a"])),
        (CombinedLoader({"a": one, "b": two}, "max_size"), "a", lambda made: (made.flattened[0], made.flattened[1])),
    ]:
        data = wrapped(loaders, loader=path)
        made = data.train_dataloader()
        assert type(made) is type(loaders)
        woven, other = chosen(made)
        assert other in (one, two)
        assert read(woven)[1] == data.ledger[0] == WANTED
    assert isinstance(made, CombinedLoader)
    assert made._mode == "max_size"
    assert loaders.flattened == [one, two]


@pytest.mark.parametrize("loader", [2, -1, "c"])
def test_a_loader_that_is_not_there_is_an_error(loader: Any) -> None:
    data = wrapped({"a": numbers_loader(), "b": numbers_loader()}, loader=loader)
    with pytest.raises(ArgumentError, match=r"loader is .*; expected a number from 0 to 1 or a key .*\(a, b\)"):
        data.train_dataloader()


# ---- wrong arguments -------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="datamodule is 3; expected a LightningDataModule, a torch DataLoader"):
        wrapped(3)
    with pytest.raises(ArgumentError, match=r"canaries is of type list; expected a CanarySet"):
        CanaryDataModule(numbers_loader(), ["pin 1234"], encode=encode)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="encode is 3, of type int; expected a function"):
        CanaryDataModule(numbers_loader(), CANARIES, encode=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seed is -1; expected an integer of at least 0"):
        wrapped(numbers_loader(), seed=-1)
    with pytest.raises(ArgumentError, match=r"val_dataloaders, .*; expected with plain training loaders only"):
        wrapped(make_datamodule(pl, numbers_loader()), val_dataloaders=numbers_loader())
    with pytest.raises(ArgumentError, match="package is 'torch'; expected one of 'lightning', 'pytorch_lightning'"):
        wrapped(numbers_loader(), package="torch")
    with pytest.raises(DataError, match="train_dataloader returned int, which has no torch DataLoader"):
        wrapped(make_datamodule(pl, 3)).train_dataloader()


def test_loaders_that_cannot_be_woven_are_named() -> None:
    class NoLength(Dataset[Any]):
        def __getitem__(self, index: int) -> torch.Tensor:
            return example(index)

    class Endless(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[1]])

    class Mine(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    with pytest.raises(DataError, match="the dataset NoLength, which has no __len__"):
        wrapped(DataLoader(NoLength(), sampler=[1])).train_dataloader()
    with pytest.raises(DataError, match="batch_sampler is Endless, which has no __len__"):
        wrapped(DataLoader(Numbers(5), batch_sampler=Endless())).train_dataloader()
    with pytest.raises(DataError, match="Mine, which has an __iter__ of its own over an iterable dataset"):
        wrapped(Mine(NumberStream(5))).train_dataloader()


# ---- under a Trainer that limits things ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:You requested to overfit:UserWarning")
def test_overfit_batches_makes_the_loader_anew_with_canaries(tmp_path: Any) -> None:
    data = wrapped(make_datamodule(pl, lambda: numbers_loader(shuffle=True)))
    module = make_module(pl)
    make_trainer(pl, tmp_path, overfit_batches=16, max_epochs=2).fit(module, data)
    for epoch in range(2):
        numbers, found = read(module.epoch_batches(epoch))
        assert (numbers, found) == (list(range(50)), WANTED)
        assert data.ledger[epoch] == WANTED
