"""Private training by user, in a real Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lightning_exposure import CanaryDataModule, CanarySet, DifferentialPrivacy, SecretFormat
from lightning_exposure.callbacks.private import _units
from lightning_exposure.errors import ArgumentError, DataError, FitError, MixingError
from lightning_exposure.privacy import PoissonLoader, epsilon, generators
from lightning_exposure.privacy.steps.poisson import draw
from tests.callbacks.privacy_setups import (
    DATA,
    OPTIMIZERS,
    RECORDS,
    Data,
    Module,
    loss_of,
    privacy,
    same,
    trainer,
    weights,
)

CAP, BATCH = 3, 4
OWNERS = [int(user) for user in np.random.default_rng(0).choice(17, RECORDS, p=np.arange(1, 18) / 153)]
"""Users with 1 to 10 records."""
USERS = len(set(OWNERS))
STEPS = -(-USERS // BATCH)


def by_user(**settings: Any) -> DifferentialPrivacy:
    return privacy(**({"unit": "user", "user": OWNERS, "max_records_per_user": CAP} | settings))


def users_by_hand(kind: str, optimizer: str, *, seed: int = 3, epochs: int = 2, norm: float = 0.5) -> dict[str, Tensor]:
    """DP-SGD by user as it is written down: one user after the other, by plain autograd, clipped, summed, noised."""
    module = Module(kind, optimizer)
    parameters = list(module.parameters())
    stepping = OPTIMIZERS[optimizer](parameters)
    order = list(dict.fromkeys(OWNERS))
    records = [[k for k, owner in enumerate(OWNERS) if owner == user] for user in order]
    for epoch in range(epochs):
        randomness = generators(seed, steps=epoch * STEPS)
        for _ in range(STEPS):
            sums = [torch.zeros_like(value) for value in parameters]
            drawn = draw(len(order), 1 / STEPS, randomness.sampling)
            for user in drawn:
                mine = records[user]
                if len(mine) > CAP:
                    places = torch.randperm(len(mine), generator=randomness.sampling)[:CAP].tolist()
                    mine = [mine[place] for place in sorted(places)]
                loss = sum(loss_of(module.net, DATA[[record]]) for record in mine)
                found = torch.autograd.grad(loss, parameters)
                length = torch.cat([part.flatten() for part in found]).norm()
                for total, part in zip(sums, found, strict=True):
                    total += part * (norm / (length + 1e-6)).clamp(max=1)
            for value, total in zip(parameters, sums, strict=True):
                noise = 0.7 * norm * torch.randn(value.shape, generator=randomness.noise)
                value.grad = (total + noise) / BATCH
            stepping.step()
    return weights(module)


@pytest.mark.parametrize(("kind", "optimizer"), [("lstm", "sgd"), ("transformer", "adam"), ("layers", "rmsprop")])
def test_the_weights_are_those_of_clipping_user_by_user(kind: str, optimizer: str, tmp_path: Path) -> None:
    module, callback = Module(kind, optimizer), by_user(verify_steps=100)
    trainer(tmp_path, callback).fit(module, Data(batch_size=BATCH))
    for name, value in users_by_hand(kind, optimizer).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=2e-4, atol=2e-4)
    assert callback.history == [(0.7, 1 / STEPS, 2 * STEPS)]
    assert callback.epsilon == epsilon(callback.history, 1e-5, "rdp")


def test_parts_of_a_batch_lead_to_the_same_weights(tmp_path: Path) -> None:
    found, seen = [], []
    for most in (None, CAP, 5):
        module = Module("gru", "sgd")
        trainer(tmp_path, by_user(max_physical_batch_size=most, verify_steps=100)).fit(module, Data(batch_size=BATCH))
        found.append(weights(module))
        seen.append(module.seen)
    for other in found[1:]:
        for name, value in found[0].items():
            torch.testing.assert_close(other[name], value, rtol=2e-6, atol=2e-6)
    assert max(seen[1]) <= CAP
    assert max(seen[2]) <= 5 < max(seen[0])


@pytest.mark.parametrize(
    "settings",
    [{"secure": True, "seed": None}, {"clipping": "per_layer"}, {"clipping": "adaptive", "max_physical_batch_size": 5}],
)
def test_users_go_with_every_way_to_clip_and_to_draw(settings: dict[str, Any], tmp_path: Path) -> None:
    """Every step is proven, so that what is clipped, and what the norm follows, are users."""
    callback = by_user(verify_steps=100, **settings)
    trainer(tmp_path, callback).fit(Module("gru", "sgd"), Data(batch_size=BATCH))
    assert callback.steps == 2 * STEPS


def test_a_function_is_asked_once_for_every_record(tmp_path: Path) -> None:
    asked = []

    def user(record: Any) -> int:
        asked.append(int(record[1]))
        return OWNERS[asked[-1]]

    class Numbered(Data):
        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(DATA, torch.arange(RECORDS)), batch_size=self.batch_size)

    modules = [Module(), Module()]
    trainer(tmp_path, by_user(user=user)).fit(modules[0], Numbered(batch_size=BATCH))
    assert asked == list(range(RECORDS))
    trainer(tmp_path, by_user()).fit(modules[1], Data(batch_size=BATCH))
    assert same(*map(weights, modules))


def test_asking_many_records_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def status(trainer: Any, title: str) -> Iterator[Any]:
        yield lambda text: shown.append(f"{title} {text}")

    monkeypatch.setattr(_units, "status", status)
    monkeypatch.setattr(_units, "_EVERY", -1.0)
    trainer(tmp_path, by_user(), max_epochs=1).fit(Module(), Data(batch_size=BATCH))
    assert shown[30] == f"users of the records 30 of {RECORDS}"


def test_a_loader_that_is_given_to_fit_draws_users_too(tmp_path: Path) -> None:
    loader = PoissonLoader(DataLoader(TensorDataset(DATA), batch_size=BATCH))
    first, second, third = Module(), Module(), Module()
    trainer(tmp_path, by_user()).fit(first, loader)
    trainer(tmp_path, by_user()).fit(second, Data(batch_size=BATCH))
    assert same(weights(first), weights(second))
    records = privacy()
    trainer(tmp_path, records, max_epochs=1).fit(third, loader)  # and records again, if those are asked for
    assert records.history == [(0.7, 1 / 15, 15)]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_run_resumed_between_epochs_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole, resumed, again = Module("lstm", "sgd"), Module("lstm", "sgd"), by_user()
    saving = L.pytorch.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    first = by_user()
    trainer(tmp_path, first, saving, max_epochs=3, enable_checkpointing=True).fit(whole, Data(batch_size=BATCH))
    trainer(tmp_path, again, max_epochs=3).fit(resumed, Data(batch_size=BATCH), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert same(weights(whole), weights(resumed))
    assert first.history == again.history == [(0.7, 1 / STEPS, 3 * STEPS)]


def test_many_batches_without_anybody(tmp_path: Path) -> None:
    """Two users, one at a time: half of the draws are empty."""
    callback = by_user(user=["ann"] * 2 + ["bob"], verify_steps=100)
    module = Module()
    trainer(tmp_path, callback, max_epochs=8).fit(module, Data(records=3, batch_size=1))
    assert callback.history == [(0.7, 0.5, 16)]
    assert all(value.isfinite().all() for value in weights(module).values())


# ---- whom epsilon is about ---------------------------------------------------------------------------------------


def test_what_is_printed_logged_and_recorded_says_whom_epsilon_is_about(tmp_path: Path, capsys: Any) -> None:
    callback = by_user()
    trainer(tmp_path, callback, max_epochs=1).fit(Module(), Data(batch_size=BATCH))
    printed = capsys.readouterr().err
    assert f"(about 3.4 of {USERS} users a step, each with at most 3 records)" in printed
    assert f"Epsilon is per user, with all records that are his, of {RECORDS};" in printed
    assert "per record" not in printed


@pytest.mark.parametrize("first", ["record", "user"])
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_history_of_one_unit_does_not_go_on_with_the_other(first: str, tmp_path: Path) -> None:
    made = {"record": privacy, "user": by_user}
    other = {"record": "user", "user": "record"}[first]
    refused = f"unit is '{other}', and {STEPS if first == 'user' else 15} private steps behind these weights were made "
    module, data = Module(), Data(batch_size=BATCH)
    run = trainer(tmp_path, made[first](), max_epochs=1)
    run.fit(module, data)
    run.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(FitError, match=refused):  # the same module
        trainer(tmp_path, made[other]()).fit(module, data)
    with pytest.raises(FitError, match=refused):  # resumed
        trainer(tmp_path, made[other]()).fit(Module(), data, ckpt_path=tmp_path / "last.ckpt")
    with pytest.raises(FitError, match=refused):  # the history of a checkpoint
        made[other](history=tmp_path / "last.ckpt")
    again = made[first](history=tmp_path / "last.ckpt")
    trainer(tmp_path, again, max_epochs=1).fit(module, data)
    assert again.steps == 2 * (STEPS if first == "user" else 15)


def test_the_state_of_a_callback_alone_says_it_too() -> None:
    state = {"history": [[0.7, 0.2, 5]], "noise_multiplier": 0.7, "unit": "user"}
    callback = by_user()
    callback.load_state_dict(state)
    assert callback._account.record.units == {"user"}
    assert callback.state_dict() == state
    assert "unit" not in privacy().state_dict()


# ---- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"unit": "person"}, "unit is 'person'; expected one of 'record', 'user'"),
        ({"user": None}, "user is None.*; expected a function that names the user of a record"),
        ({"user": "author"}, "user is 'author'.*; expected a function that names the user of a record"),
        ({"max_records_per_user": None}, "max_records_per_user is None; expected how many"),
        ({"max_records_per_user": 0}, "max_records_per_user is 0; expected"),
        ({"unit": "record"}, "user is .*; expected None with unit='record'"),
        ({"unit": "record", "user": None}, "max_records_per_user is 3; expected None with unit='record'"),
        ({"max_physical_batch_size": 2}, "max_records_per_user is 3; expected at most max_physical_batch_size, 2"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        by_user(**given)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(DATA)


class Unnamed(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(Stream(), batch_size=4)


@pytest.mark.parametrize(
    ("user", "data", "problem"),
    [
        (lambda record: record["author"], Data(), "user has failed for record 0 .* with a (Type|Index)Error"),
        (lambda record: [1], Data(), "user has given a list, which cannot be hashed, for record 0"),
        (["ann", "bob"], Data(), "user has 2 names, and the training dataset has 60 records"),
        (OWNERS, Unnamed(), "train_dataloader has the dataset Stream, which has no length or no index"),
    ],
)
def test_users_that_cannot_be_named_are_refused_before_training(
    user: Any, data: Any, problem: str, tmp_path: Path
) -> None:
    module = Module()
    with pytest.raises(DataError, match=problem):
        trainer(tmp_path, by_user(user=user)).fit(module, data)
    assert not module.seen


def test_users_that_change_while_it_trains_are_refused(tmp_path: Path) -> None:
    class Changing(Data):
        asked = 0

        def train_dataloader(self) -> Any:
            self.asked += 1
            owners = torch.tensor(OWNERS)
            return DataLoader(TensorDataset(DATA, owners if self.asked < 2 else owners.flip(0)), batch_size=BATCH)

    run = trainer(tmp_path, by_user(user=lambda record: record[1]), reload_dataloaders_every_n_epochs=1)
    with pytest.raises(FitError, match=r"The training loader changed .* or return data .* of the same users"):
        run.fit(Module(), Changing())


class Mixing(Module):  # type: ignore[misc, valid-type]
    """Sees the other users of its batch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        logits = self.net(batch[0][:, :-1])
        logits = logits - logits.mean(0, keepdim=True)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())


class SaysSum(Module):  # type: ignore[misc, valid-type]
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return loss_of(self.net, batch[0]) * len(batch[0])


def test_users_that_mix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MixingError, match="depends on the other examples of its batch"):
        trainer(tmp_path, by_user()).fit(Mixing(), Data(batch_size=BATCH))
    with pytest.raises(MixingError, match="loss_reduction is 'mean', but the loss is the sum"):
        trainer(tmp_path, by_user()).fit(SaysSum(), Data(batch_size=BATCH))
    with pytest.raises(MixingError, match="loss_reduction is 'sum', but the loss is the mean"):
        trainer(tmp_path, by_user(loss_reduction="sum")).fit(Module(), Data(batch_size=BATCH))


def stacked(records: Any) -> list[Tensor]:
    return [torch.stack([record[0] for record in records])]


def by_size(records: Any) -> list[Tensor]:
    return stacked(sorted(records, key=lambda record: -int(record[0].sum())))


def shuffled(records: Any) -> list[Tensor]:
    return [stacked(records)[0][torch.randperm(len(records))]]


@pytest.mark.parametrize("collate", [by_size, shuffled, lambda records: stacked(records[::-1])])
@pytest.mark.parametrize("settings", [{}, {"max_physical_batch_size": 5}])
def test_records_that_are_not_where_they_were_put_are_refused(
    collate: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Single records may be anywhere in a batch. Those of a user would be clipped with those of others."""
    trainer(tmp_path, privacy(), max_epochs=1).fit(Module(), Data(collate_fn=collate))
    with pytest.raises(MixingError, match=r"not in the order .* records of a user are clipped together"):
        trainer(tmp_path, by_user(**settings)).fit(Module(), Data(batch_size=BATCH, collate_fn=collate))


class Shuffling(Data):
    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        return [batch[0][torch.randperm(len(batch[0]))]]


def test_a_hook_that_moves_the_records_of_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MixingError, match="on_after_batch_transfer"):
        trainer(tmp_path, by_user()).fit(Module(), Shuffling(batch_size=BATCH))


class Stored(TensorDataset):
    """Gives many records at once, in the order in which it has them."""

    def __init__(self, moves: bool) -> None:
        super().__init__(DATA)
        self.moves = moves

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in (sorted(numbers, reverse=True) if self.moves else numbers)]


class OfStored(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(Stored(**self.options), batch_size=BATCH, shuffle=True)


def test_a_dataset_that_moves_the_records_of_a_batch_is_refused(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(MixingError, match="__getitems__ of the dataset"):
        trainer(tmp_path, by_user()).fit(Module(), OfStored(moves=True))
    trainer(tmp_path, by_user()).fit(Module(), OfStored(moves=False))
    assert "could not be" not in capsys.readouterr().err


def masked(records: Any) -> list[Tensor]:
    """With random numbers for each place, and padding for the longest."""
    rows = [record[0][: 3 + int(record[0][0]) % 3] for record in records]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return [tokens.masked_fill(torch.rand(tokens.shape) < 0.15, 1)]


def test_records_that_are_padded_and_masked_where_they_are_are_not(tmp_path: Path, capsys: Any) -> None:
    trainer(tmp_path, by_user(verify_steps=100)).fit(Module(), Data(batch_size=BATCH, collate_fn=masked))
    assert "could not be" not in capsys.readouterr().err


def test_a_loss_that_is_a_sum_leads_to_the_sum_over_users(tmp_path: Path) -> None:
    mean, total = Module("layers", "sgd"), SaysSum("layers", "sgd")
    trainer(tmp_path, by_user(), max_epochs=1).fit(mean, Data(batch_size=BATCH))
    # A sum is not divided by the number of users.
    total.configure_optimizers = lambda: torch.optim.SGD(total.parameters(), lr=0.5 / BATCH, momentum=0.9)
    trainer(tmp_path, by_user(loss_reduction="sum"), max_epochs=1).fit(total, Data(batch_size=BATCH))
    for name, value in weights(mean).items():
        torch.testing.assert_close(weights(total)[name], value, rtol=1e-4, atol=1e-5)


# ---- canaries ----------------------------------------------------------------------------------------------------


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return (DATA[index],)


def test_every_canary_is_a_user_of_its_own(tmp_path: Path) -> None:
    canaries = CanarySet.draw(SecretFormat("######"), repetitions=[1, 5], seed=0)
    plain = DataLoader(Texts(), batch_size=BATCH, shuffle=True)
    data = CanaryDataModule(plain, canaries, lambda text: (torch.tensor([int(digit) % 9 for digit in text]),))
    callback = by_user()
    trainer(tmp_path, callback, max_epochs=3).fit(Module(), data)
    steps = -(-(USERS + 2) // BATCH)
    assert callback.history == [(0.7, 1 / steps, 3 * steps)]
    # The second canary has more records than a user may have in a batch.
    assert data.ledger.total[canaries[1].id] % CAP == 0
