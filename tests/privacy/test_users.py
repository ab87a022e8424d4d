"""Users: whose the records are, and batches of them."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.privacy import PoissonLoader
from lightning_exposure.privacy.steps.parts import part_sizes
from lightning_exposure.privacy.steps.poisson import generators
from lightning_exposure.privacy.steps.proof import UsersOfProcess
from lightning_exposure.privacy.users.grouping import Grouped
from lightning_exposure.privacy.users.membership import Users, check_user, name_users

NAMES = [name for name, count in (("ann", 7), ("bob", 1), ("cyd", 3), ("dan", 5)) for _ in range(count)]
RECORDS = [{"user": NAMES[(5 * k) % 16], "text": f"{k}"} for k in range(16)]  # in any order


def by_name(record: Any) -> Any:
    return record["user"]


@dataclass(frozen=True)
class Person:
    number: Any


# ---- whose the records are ------------------------------------------------------------------------------------------


def test_every_record_belongs_to_the_user_that_the_function_names() -> None:
    users = name_users(RECORDS, by_name, max_records_per_user=4)
    assert users.count == 4
    for user in range(4):
        (name,) = {RECORDS[record]["user"] for record in users.records_of(user)}
        assert len(users.records_of(user)) == NAMES.count(name)
        assert users.size_of(user) == min(4, NAMES.count(name))


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda names: torch.tensor([ord(name[0]) for name in names])])
def test_names_may_be_given_so_that_no_record_is_read(kind: Any) -> None:
    class Unreadable:
        def __len__(self) -> int:
            return len(RECORDS)

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("a record was read")

    expected = name_users(RECORDS, by_name, max_records_per_user=4)
    assert name_users(Unreadable(), kind([r["user"] for r in RECORDS]), max_records_per_user=4) == expected


def test_a_number_in_a_tensor_is_that_number_and_no_user_of_its_own() -> None:
    """Tensors are hashable, but each is equal to nothing but itself: every record would be a user."""
    records = [{"user": torch.tensor(k % 3)} for k in range(9)]
    assert name_users(records, by_name, max_records_per_user=4).count == 3
    assert name_users([np.int64(k % 3) for k in range(9)], lambda k: k, max_records_per_user=4).count == 3


@pytest.mark.parametrize(
    "name",
    [
        lambda site, person: (site, person),
        lambda site, person: ("site", (site, person)),
        lambda site, person: frozenset([("site", site), ("person", person)]),
        lambda site, person: (int(site), np.int64(int(person))),
    ],
)
def test_so_are_numbers_in_tensors_of_which_a_name_is_made(name: Any) -> None:
    """A name of several parts, as records of a TensorDataset give it."""
    records = TensorDataset(torch.arange(12) % 2, torch.arange(12) % 3)
    assert name_users(records, lambda record: name(*record), max_records_per_user=4).count == 6
    assert name_users(range(12), [name(*record) for record in records], max_records_per_user=4).count == 6


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (["a"], "a list, which cannot be hashed,"),
        (None, "None"),
        (math.nan, "nan"),
        (torch.zeros(2), r"a Tensor of shape \(2,\)"),
        (object(), "a object, which is equal to nothing but itself,"),
        ((1, math.nan), "nan in a tuple"),
        (Decimal("NaN"), "nan"),
        ((1, torch.zeros(2)), r"a Tensor of shape \(2,\) in a tuple"),
        (("a", object()), "a object, which is equal to nothing but itself, in a tuple"),
        (Person(torch.tensor(1)), "a Person, which is equal to nothing but itself,"),
    ],
)
def test_what_names_nobody_is_refused(name: Any, what: str) -> None:
    with pytest.raises(DataError, match=f"user has given {what} for record 2 of the training dataset; expected"):
        name_users(range(5), lambda record: name if record == 2 else 0, max_records_per_user=4)


def test_a_function_that_fails_is_named_with_its_record_and_does_not_show_it() -> None:
    with pytest.raises(DataError, match=r"failed for record 0 .* with a KeyError; expected .* type dict") as found:
        name_users([{"text": "my pin is 1234"}], lambda record: record[record["text"]], max_records_per_user=4)
    assert "1234" not in str(found.value)


@pytest.mark.parametrize("user", [3, None, "ann", {"a": 1}])
def test_what_is_neither_a_function_nor_names_is_refused(user: Any) -> None:
    with pytest.raises(ArgumentError, match=r"user is .*; expected a function that names the user of a record, or the"):
        name_users(RECORDS, user, max_records_per_user=4)


NOBODY = r"user is .*; expected a function that names the user of a record, or the names, one for each record. For ex"
NO_NAME = "; expected something that is equal for all records of a user and can be hashed, such as a text or a number"


class Missing:
    """As pandas' NA: whoever asks whether it is equal to something gets no answer."""

    def __ne__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __eq__ = __ne__

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ([], NOBODY),
        ((), NOBODY),
        (np.array([]), NOBODY),
        (torch.tensor([]), NOBODY),
        (np.array(3), NOBODY),
        (torch.tensor(3), NOBODY),
        (np.zeros((3, 2)), r"user is a ndarray of shape \(3, 2\); expected one name for each record, in one dimension"),
        (torch.zeros(2, 1, 1), r"user is a Tensor of shape \(2, 1, 1\); expected one name for each record"),
        ([None, None], r"user\[0\] is None" + NO_NAME),
        ([[1], [2]], r"user\[0\] is a list, which cannot be hashed," + NO_NAME),
        (["ann", math.nan], r"user\[1\] is nan" + NO_NAME),
        (np.array([1.0, np.nan]), r"user\[1\] is nan" + NO_NAME),
        (["ann", Missing()], r"user\[1\] is a Missing, which cannot be compared," + NO_NAME),
    ],
)
def test_lists_that_name_nobody_are_refused_before_there_is_a_dataset(user: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        check_user(user)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_column_of_names_is_one_list_of_them(kind: Any) -> None:
    column = kind([[1], [2], [1]])
    check_user(column)
    assert name_users(range(3), column, max_records_per_user=4).of_record.tolist() == [0, 1, 0]


def test_names_for_other_records_are_refused() -> None:
    with pytest.raises(DataError, match="user has 3 names, and the training dataset has 16 records; expected one"):
        name_users(RECORDS, ["ann", "bob", "cyd"], max_records_per_user=4)


def test_records_that_a_dataset_has_added_are_users_of_their_own() -> None:
    """As those of canaries are; a user's name may be the same, and the names are those of the user's own records."""

    class WithCanaries(list[str]):
        def user_at(self, record: int) -> str | None:
            return {4: "a", 5: "a", 6: "pin"}.get(record)

    records = WithCanaries(["a1", "b1", "a2", "b2", "x", "x", "x"])
    for user in (lambda record: record[0], ["a", "b", "a", "b"]):
        assert name_users(records, user, max_records_per_user=4).of_record.tolist() == [0, 1, 0, 1, 2, 2, 3]


# ---- batches ---------------------------------------------------------------------------------------------------------


def loader_of(users: Users | None, *, batch_size: int = 2, **options: Any) -> PoissonLoader:
    data: Any = DataLoader(range(16), batch_size=batch_size, shuffle=True)
    return PoissonLoader(data, users=users, **options)


USERS = name_users(RECORDS, by_name, max_records_per_user=4)


def passes(loader: PoissonLoader, count: int) -> list[tuple[Any, Any, list[int]]]:
    found = []
    for number in range(count):
        loader.bind(lambda number=number: generators(7, steps=number).sampling)  # type: ignore[misc]
        for batch in loader:
            found.append((loader.sizes.popleft(), loader.draws.popleft(), batch.tolist()))
    return found


def test_users_are_drawn_each_as_a_whole() -> None:
    loader = loader_of(USERS)
    assert (loader.unit, loader.units, loader.steps, loader.sample_rate, loader.batch_size) == ("user", 4, 2, 0.5, 2)
    often: Counter[int] = Counter()
    for size, draw, batch in passes(loader, 200):
        read = batch if size else []
        assert [record for records in draw.members for record in records] == read
        assert size.groups == tuple(len(records) for records in draw.members)
        for user, records in zip(draw.records, draw.members, strict=True):
            assert {USERS.of_record[record] for record in records} == {user}
            assert len(set(records)) == len(records) == USERS.size_of(user)
        often.update(draw.records)
    # 400 coins for each user, at 1/2.
    assert all(160 < count < 240 for count in often.values())


def test_all_records_of_a_user_with_too_many_have_their_turn_equally_often() -> None:
    often: Counter[int] = Counter()
    for _, draw, _ in passes(loader_of(USERS), 300):
        often.update(record for records in draw.members for record in records)
    many = next(user for user in range(4) if len(USERS.records_of(user)) == 7)
    counts = [often[record] for record in USERS.records_of(many)]
    assert min(counts) > 0.75 * max(counts)
    assert sum(counts) / 4 == pytest.approx(300, rel=0.15)  # four at a time


def test_a_user_is_never_with_two_processes() -> None:
    seen: list[set[int]] = []
    for rank in range(2):
        loader = loader_of(USERS, batch_size=1, rank=rank, world_size=2)
        batches = passes(loader, 30)
        seen.append({int(USERS.of_record[k]) for size, _, batch in batches if size for k in batch})
        for _, draw, _ in batches:
            UsersOfProcess(USERS, rank, 2).check_whole(draw.records, draw.members, [len(m) for m in draw.members])
    assert seen[0] & seen[1] == set()
    assert seen[0] | seen[1] == {0, 1, 2, 3}


def test_without_users_records_are_drawn_again() -> None:
    loader = loader_of(USERS)
    loader.protect(None)
    assert (loader.unit, loader.units, loader.steps) == ("record", 16, 8)
    assert next(iter(passes(loader, 1)))[1].members is None


def test_too_few_users_for_a_batch_are_refused() -> None:
    data: Any = DataLoader(range(16), batch_size=5, drop_last=True)
    with pytest.raises(DataError, match="train_dataloader has 4 users, which do not fill a batch of 5; expected"):
        PoissonLoader(data, users=USERS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=30), st.integers(5, 12))
def test_parts_of_a_batch_split_no_user(groups: list[int], most: int) -> None:
    parts: list[Any] = part_sizes(Grouped(groups), most)
    assert [size for part in parts for size in part.groups] == groups
    assert all(part <= most for part in parts)
    # Two neighbours would not fit into one.
    assert all(one + other.groups[0] > most for one, other in itertools.pairwise(parts))


# ---- the proof -------------------------------------------------------------------------------------------------------


def a_draw() -> Any:
    return next(draw for size, draw, _ in passes(loader_of(USERS), 20) if len(draw.records) == 3)


def test_a_batch_as_it_was_drawn_is_not_refused() -> None:
    for _, draw, _ in passes(loader_of(USERS), 20):
        process = UsersOfProcess(USERS)
        process.check_whole(draw.records, draw.members, [len(records) for records in draw.members])
        process.check_draw(draw.members, draw.state, sample_rate=0.5)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m[0].pop(), "is in a batch with . records; expected"),
        (
            lambda m: m[0].append(next(k for k in range(16) if k not in itertools.chain(*m))),
            "records; expected|another process",
        ),
        (lambda m: m[0].__setitem__(0, m[1][0]), "of another process, or of nobody"),
    ],
)
def test_a_user_who_is_split_or_has_too_much_is_noticed(change: Any, problem: str) -> None:
    draw = a_draw()
    members = copy.deepcopy(draw.members)
    change(members)
    with pytest.raises(FitError, match=problem):
        UsersOfProcess(USERS).check_whole(draw.records, members, [len(records) for records in members])


def test_users_that_are_not_clipped_as_one_are_noticed() -> None:
    draw = a_draw()
    sizes = [len(records) for records in draw.members]
    for groups in (None, [1] * sum(sizes), sizes[::-1] if sizes != sizes[::-1] else [sum(sizes)]):
        with pytest.raises(FitError, match="what is clipped together is not what a user has in it"):
            UsersOfProcess(USERS).check_whole(draw.records, draw.members, groups)
    with pytest.raises(FitError, match="A user is in the same batch twice"):
        UsersOfProcess(USERS).check_whole([0, 0], [draw.members[0]] * 2, [sizes[0]] * 2)


def test_other_users_and_other_records_than_the_coins_give_are_noticed() -> None:
    draw = a_draw()
    UsersOfProcess(USERS).check_draw(draw.members, draw.state, sample_rate=0.5)
    place = next(k for k, user in enumerate(draw.records) if len(USERS.records_of(user)) > USERS.most)
    others = list(draw.members)
    others[place] = USERS.records_of(draw.records[place])[-USERS.most :]
    assert others != draw.members
    for members in (draw.members[1:], others):
        with pytest.raises(FitError, match="not drawn by Poisson sampling of users"):
            UsersOfProcess(USERS).check_draw(members, draw.state, sample_rate=0.5)
