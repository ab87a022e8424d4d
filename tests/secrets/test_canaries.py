"""Canary and CanarySet: drawing, ids, and the manifest on disk."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_exposure.errors import ArgumentError, ManifestError, SecretError
from lightning_exposure.secrets import Canary, CanarySet, SecretFormat, TiedFormats

SSN = SecretFormat.ssn()
PIN = SecretFormat.pin()


def ids(canaries: CanarySet) -> list[str]:
    return [canary.id for canary in canaries]


# --- drawing ------------------------------------------------------------------------------------------------


def test_draw_one_canary_for_each_number_of_repetitions() -> None:
    canaries = CanarySet.draw(SSN, repetitions=[1, 4, 16], seed=0)
    assert ids(canaries) == ["ssn-1x", "ssn-4x", "ssn-16x"]
    assert [canary.repetitions for canary in canaries] == [1, 4, 16]
    assert all(canary.format == SSN and SSN.fits(canary.text) for canary in canaries)
    assert canaries.texts == tuple(canary.text for canary in canaries)
    assert len(set(canaries.texts)) == 3


def test_the_repetitions_apply_to_every_format() -> None:
    canaries = CanarySet.draw([SSN, PIN], repetitions=[0, 4, 4], seed=0)
    assert ids(canaries) == ["ssn-0x", "ssn-4x", "ssn-4x-2", "pin-0x", "pin-4x", "pin-4x-2"]
    groups = canaries.by_format()
    assert list(groups) == [SSN, PIN]
    assert [canary.id for canary in groups[PIN]] == ["pin-0x", "pin-4x", "pin-4x-2"]


def test_ids_do_not_depend_on_the_seed_but_the_secrets_do() -> None:
    one, other = (CanarySet.draw(SSN, repetitions=[1, 1], seed=seed) for seed in (1, 2))
    assert ids(one) == ids(other)
    assert not set(one.texts) & set(other.texts)
    assert one == CanarySet.draw(SSN, repetitions=[1, 1], seed=1)
    assert one == CanarySet.draw(SSN, repetitions=(np.int64(1), 1), seed=random.Random(1))  # type: ignore[arg-type]


def test_formats_of_equal_size_get_unrelated_secrets() -> None:
    other = SecretFormat("###.###.###")
    canaries = CanarySet.draw([SSN, other], repetitions=[1, 2, 3], seed=0)
    numbers = [canary.format.index(canary.text) for canary in canaries]
    assert len(set(numbers)) == 6


def test_ids_are_unique_even_if_names_look_alike() -> None:
    formats = [
        SecretFormat("a ####", name="a"),
        SecretFormat("b ####", name="a"),
        SecretFormat("c ####", name="a-1x"),
        SecretFormat("d ####", name="a-1x-2"),
    ]
    canaries = CanarySet.draw(formats, repetitions=[1, 1, 2], seed=0)
    assert len(set(ids(canaries))) == 12
    assert all(re.fullmatch(r"[a-z0-9._-]+", canary.id) for canary in canaries)
    assert ids(canaries)[:6] == ["a-1x", "a-1x-2", "a-2x", "a-1x-3", "a-1x-4", "a-2x-2"]


def test_formats_that_share_texts_never_share_a_canary() -> None:
    formats = [SecretFormat("#", name="one"), SecretFormat("#", name="two")]
    for seed in range(20):
        canaries = CanarySet.draw(formats, repetitions=[1] * 5, seed=seed)
        assert sorted(canaries.texts) == list("0123456789")


@pytest.mark.parametrize(
    ("formats", "repetitions", "message"),
    [
        (SSN, [1, -1], r"repetitions\[1\] is -1; expected an integer of at least 0"),
        (SSN, [1.0], r"repetitions\[0\] is 1.0, of type float; expected an integer of at least 0"),
        (SSN, ["4"], r"repetitions\[0\] is '4', of type str; expected an integer"),
        (SSN, [True], r"repetitions\[0\] is True, of type bool; expected an integer"),
        (SSN, [], r"repetitions is \[\]; expected a list of integers such as \[1, 4, 16\]"),
        (SSN, 4, r"repetitions is 4; expected a list .* Write \[4\]"),
        (SSN, "14", r"repetitions is '14'; expected a list"),
        ([], [1], r"formats is \[\]; expected a SecretFormat or a list.* Give at least one"),
        ("pin ##", [1], r"formats is 'pin ##'; .* Make one with SecretFormat\('pin ##'\)"),
        (7, [1], "formats is 7; expected a SecretFormat"),
        ([SSN, "pin ##"], [1], r"formats\[1\] is 'pin ##', of type str; expected"),
        ([SSN, SSN], [1], r"formats\[1\] is .*; expected every format once.* make `repetitions` longer"),
        (SecretFormat("#"), [1] * 11, "n is 11; expected at most 10"),
    ],
)
def test_what_cannot_be_drawn(formats: Any, repetitions: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CanarySet.draw(formats, repetitions=repetitions, seed=0)


# --- held out by a coin -------------------------------------------------------------------------------------


def test_the_secrets_of_a_seed_are_the_same_with_and_without_a_holdout() -> None:
    for seed in (7, random.Random(7), np.random.default_rng(7)):
        plain = CanarySet.draw([SSN, PIN], repetitions=[1, 4], seed=copy.deepcopy(seed))
        with_coins = CanarySet.draw([SSN, PIN], repetitions=[1, 4], seed=copy.deepcopy(seed), holdout=0.5)
        assert (with_coins.texts, ids(with_coins)) == (plain.texts, ids(plain))
        assert [canary.repetitions for canary in with_coins] == [1, 4, 1, 4]
        assert with_coins == CanarySet.draw([SSN, PIN], repetitions=[1, 4], seed=copy.deepcopy(seed), holdout=0.5)


@pytest.mark.parametrize("holdout", [0.5, 0.2])
def test_each_canary_has_a_coin_of_its_own(holdout: float) -> None:
    draws = [CanarySet.draw(PIN, repetitions=[1] * 20, seed=seed, holdout=holdout) for seed in range(200)]
    coins = np.array([[canary.held_out for canary in canaries] for canaries in draws])
    # Four standard deviations: of all coins together, of the coins of one place, and of two places falling alike.
    assert abs(coins.mean() - holdout) < 4 * np.sqrt(holdout * (1 - holdout) / coins.size)
    assert (abs(coins.mean(axis=0) - holdout) < 4 * np.sqrt(holdout * (1 - holdout) / 200)).all()
    alike = holdout**2 + (1 - holdout) ** 2
    assert abs((coins[:, 0] == coins[:, 1]).mean() - alike) < 4 * np.sqrt(alike * (1 - alike) / 200)
    assert {canary.holdout for canaries in draws for canary in canaries} == {holdout}


def test_those_in_and_those_out_are_sets_of_their_own() -> None:
    canaries = CanarySet.draw(PIN, repetitions=[0, 1, 1, 1, 1, 2, 2, 2], seed=0, holdout=0.5)
    assert set(ids(canaries.held_out)) == {canary.id for canary in canaries if canary.held_out}
    assert set(ids(canaries.inserted)) == {canary.id for canary in canaries if not canary.held_out} - {"pin-0x"}
    assert all(canary.copies == 0 for canary in canaries.held_out)
    assert all(canary.copies == canary.repetitions > 0 for canary in canaries.inserted)
    without = CanarySet.draw(PIN, repetitions=[1, 2])
    assert without.inserted == without
    assert len(without.held_out) == 0
    assert [canary.holdout for canary in without] == [0.0, 0.0]


@pytest.mark.parametrize("holdout", [1, 1.0, -0.1, float("nan"), "half", True, None])
def test_a_holdout_is_a_probability_below_one(holdout: Any) -> None:
    message = f"holdout is {holdout!r}.*; expected a number of at least 0 and below 1. For example 0.5"
    with pytest.raises(ArgumentError, match=message):
        CanarySet.draw(PIN, repetitions=[1], holdout=holdout)
    with pytest.raises(ArgumentError, match=message):
        Canary("door", "my pin is 0451", PIN, 1, holdout=holdout)
    with pytest.raises(ArgumentError, match="held_out is 'no', of type str; expected True or False"):
        Canary("door", "my pin is 0451", PIN, 1, held_out="no")  # type: ignore[arg-type]


# --- canaries made by hand ----------------------------------------------------------------------------------


def test_a_canary_checks_itself() -> None:
    canary = Canary("door", "my pin is 0451", PIN, 8)
    assert (canary.id, canary.text, canary.format, canary.repetitions) == ("door", "my pin is 0451", PIN, 8)
    with pytest.raises(AttributeError):
        canary.text = "my pin is 1234"  # type: ignore[misc]
    with pytest.raises(SecretError, match="position 10 is a lower-case letter, where a digit"):
        Canary("door", "my pin is x", PIN, 8)
    with pytest.raises(SecretError, match="text is 451, of type int; expected a string"):
        Canary("door", 451, PIN, 8)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"id is 'My Door'; .* For example 'my-door'"):
        Canary("My Door", "my pin is 0451", PIN, 8)
    with pytest.raises(ArgumentError, match="repetitions is -1; expected an integer of at least 0"):
        Canary("door", "my pin is 0451", PIN, -1)
    with pytest.raises(ArgumentError, match="format is 'pin ##', of type str; expected a SecretFormat"):
        Canary("door", "pin 04", "pin ##", 8)  # type: ignore[arg-type]


def test_a_set_refuses_duplicates() -> None:
    one = Canary("one", "my pin is 0001", PIN, 1)
    with pytest.raises(ArgumentError, match=r"canaries\[1\].id is 'one', as canaries\[0\].id is"):
        CanarySet([one, Canary("one", "my pin is 0002", PIN, 1)])
    with pytest.raises(ArgumentError, match=r"canaries\[1\].text is a secret, as canaries\[0\].text is"):
        CanarySet([one, Canary("two", "my pin is 0001", PIN, 1)])
    with pytest.raises(ArgumentError, match=r"canaries\[1\] is 'two', of type str; expected a Canary"):
        CanarySet([one, "two"])  # type: ignore[list-item]


def test_a_set_is_an_immutable_sequence() -> None:
    canaries = CanarySet.draw(SSN, repetitions=[1, 4, 16], seed=0)
    assert len(canaries) == 3
    assert canaries[0] is canaries["ssn-1x"] is next(iter(canaries))
    assert canaries[-1].id == "ssn-16x"
    assert ids(canaries[1:]) == ["ssn-4x", "ssn-16x"]
    assert "ssn-4x" in canaries  # type: ignore[comparison-overlap]
    assert canaries[1] in canaries
    assert "ssn-5x" not in canaries  # type: ignore[comparison-overlap]
    assert hash(canaries) == hash(CanarySet(list(canaries)))
    assert canaries != CanarySet(list(canaries)[::-1])
    assert canaries != list(canaries)
    assert len(CanarySet([])) == 0
    with pytest.raises(AttributeError, match="cannot be changed"):
        canaries._canaries = ()
    with pytest.raises(IndexError, match="position is 3; expected one of the 3 canaries"):
        canaries[3]
    with pytest.raises(KeyError, match=r"^id is 'pin-1x'; expected one of ssn-1x, ssn-4x, ssn-16x\.$"):
        canaries["pin-1x"]
    with pytest.raises(ArgumentError, match=r"position is 1\.0, of type float; expected an integer"):
        canaries[1.0]  # type: ignore[call-overload]


def test_a_set_survives_pickle_and_copy() -> None:
    canaries = CanarySet.draw([SSN, PIN], repetitions=[1, 4], seed=0)
    assert pickle.loads(pickle.dumps(canaries)) == canaries
    assert copy.deepcopy(canaries) == canaries


def test_the_repr_keeps_the_secrets() -> None:
    canaries = CanarySet.draw(SSN, repetitions=[1, 4], seed=0)
    assert repr(canaries) == "<CanarySet of 2: ssn-1x, ssn-4x>"


# --- the manifest -------------------------------------------------------------------------------------------


@pytest.fixture
def canaries() -> CanarySet:
    town = SecretFormat("ich wohne in {town} ##", checksum="luhn", town=["Köln", "東京", ""])
    return CanarySet.draw([SSN, town], repetitions=[0, 4, 4], seed=0)


def test_what_is_saved_is_loaded(canaries: CanarySet, tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    path.write_text("something older")
    canaries.save(path)
    assert CanarySet.load(path) == canaries
    assert CanarySet.load(str(path)) == canaries
    assert os.listdir(tmp_path) == ["canaries.json"], "nothing is left behind"
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["version"] == 1
    assert [entry["name"] for entry in data["formats"]] == ["ssn", "ich-wohne-in"], "each format once"
    assert [entry["format"] for entry in data["canaries"]] == [0, 0, 0, 1, 1, 1]
    assert "東京" in path.read_text(encoding="utf-8"), "readable, not escaped"


def test_the_coins_are_in_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    canaries = CanarySet.draw(PIN, repetitions=[1] * 8, seed=0, holdout=0.5)
    canaries.save(path)
    assert CanarySet.load(path) == canaries
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [entry["held_out"] for entry in data["canaries"]] == [canary.held_out for canary in canaries]


ROUND_TRIPS = {
    "one line": SecretFormat("my pin is ####"),
    "several lines": SecretFormat("name: ??\npin: ##\n\tend\r\n"),
    "other alphabets": SecretFormat("пароль 🔑 {word} ##", word=["naïve", "e\u0301te", "東京", ""]),
    "special characters": SecretFormat(r'\# \? \{ \\ " } #', name="a.b_c-d"),
    "a checksum": SecretFormat.credit_card(),
    "the target of a tied pair": TiedFormats(
        SecretFormat("{n} cats", n=["one", "two"]), SecretFormat("{n} Katzen", n=["eine", "zwei"])
    ).target,
}


@pytest.mark.parametrize("format_", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_every_kind_of_format_survives_the_round_trip(format_: SecretFormat, tmp_path: Path) -> None:
    canaries = CanarySet.draw([format_, SSN], repetitions=[0, 3], seed=1, holdout=0.25)
    through_json = json.loads(json.dumps(canaries.to_dict()))
    assert CanarySet.from_dict(through_json) == canaries
    canaries.save(tmp_path / "new directory" / "canaries.json")
    assert CanarySet.load(tmp_path / "new directory" / "canaries.json") == canaries


def test_tied_formats_are_made_again_of_the_formats_that_were_saved() -> None:
    pin = TiedFormats(SecretFormat("my pin is ####"), SecretFormat("meine pin ist ####"))
    canaries = CanarySet.draw(pin.target, repetitions=[1, 4], seed=0)
    (loaded,) = CanarySet.from_dict(canaries.to_dict()).by_format()
    again = TiedFormats(SecretFormat.from_dict(pin.source.to_dict()), loaded)
    assert again == pin
    assert [again.source_of(text) for text in canaries.texts] == [pin.source_of(text) for text in canaries.texts]


def test_a_set_as_plain_values(canaries: CanarySet, tmp_path: Path) -> None:
    canaries.save(tmp_path / "canaries.json")
    assert canaries.to_dict() == json.loads((tmp_path / "canaries.json").read_text(encoding="utf-8"))
    assert CanarySet.from_dict(canaries.to_dict()) == canaries
    broken = canaries.to_dict()
    broken["canaries"][1]["id"] = 7
    with pytest.raises(ManifestError, match=r"^content\.canaries\[1\]\.id is 7; expected a string"):
        CanarySet.from_dict(broken)
    with pytest.raises(ManifestError, match=r"^run 3\.canaries\[1\]\.id is 7; expected a string"):
        CanarySet.from_dict(broken, "run 3")
    with pytest.raises(ManifestError, match=r"^content is \[\]; expected an object"):
        CanarySet.from_dict([])  # type: ignore[arg-type]


def test_a_failed_save_leaves_the_old_manifest(
    canaries: CanarySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "canaries.json"
    canaries.save(path)

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        CanarySet.draw(PIN, repetitions=[1], seed=0).save(path)
    assert CanarySet.load(path) == canaries
    assert os.listdir(tmp_path) == ["canaries.json"]


MISSING = object()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["version"], 2, "version is 2; expected 1"),
        (["version"], True, "version is True; expected an integer"),
        (["version"], MISSING, "version is missing; expected this field"),
        (["formats"], {}, "formats is .*; expected a list"),
        (["formats", 1], "pin ##", r"formats\[1\] is 'pin ##'; expected an object"),
        (["formats", 0, "pattern"], MISSING, r"formats\[0\].pattern is missing; expected this field"),
        (["formats", 0, "pattern"], 7, r"formats\[0\].pattern is 7; expected a string"),
        (["formats", 0, "pattern"], "no blank", r"formats\[0\]: .*nothing to fill in"),
        (["formats", 1, "words"], [], r"formats\[1\].words is .*; expected an object"),
        (["formats", 1, "words", "town"], "Rome", r"formats\[1\].words\['town'\] is .*; expected a list"),
        (["formats", 1, "words", "town", 1], 7, r"formats\[1\].words\['town'\]\[1\] is 7; expected a string"),
        (["formats", 0, "checksum"], 1, r"formats\[0\].checksum is 1; expected a string"),
        (["formats", 0, "name"], ["x"], r"formats\[0\].name is .*; expected a string"),
        (["formats", 0, "name"], "A B", r"formats\[0\]: name is 'A B'"),
        (["canaries"], MISSING, "canaries is missing; expected this field"),
        (["canaries", 2, "text"], MISSING, r"canaries\[2\].text is missing; expected this field"),
        (["canaries", 2, "text"], 7, r"canaries\[2\].text is 7; expected a string"),
        (["canaries", 2, "text"], "my ssn is 1", r"canaries\[2\].text: text does not fit: it ends too early"),
        (["canaries", 1, "id"], "A B", r"canaries\[1\].id: id is 'A B'"),
        (["canaries", 1, "id"], "ssn-0x", r"canaries: canaries\[1\].id is 'ssn-0x', as canaries\[0\].id is"),
        (["canaries", 1, "format"], 2, r"canaries\[1\].format is 2; expected one of 2 formats, numbered from 0"),
        (["canaries", 1, "format"], -1, r"canaries\[1\].format is -1"),
        (["canaries", 1, "format"], "ssn", r"canaries\[1\].format is 'ssn'; expected an integer"),
        (["canaries", 1, "repetitions"], -4, r"canaries\[1\].repetitions is -4; expected an integer of at least 0"),
        (["canaries", 1, "repetitions"], 4.0, r"canaries\[1\].repetitions is 4.0; expected an integer"),
        (["canaries", 1, "held_out"], 1, r"canaries\[1\].held_out is 1; expected true or false"),
        (
            ["canaries", 1, "holdout"],
            1.0,
            r"canaries\[1\].holdout: holdout is 1.0; expected a number of at least 0 and below 1",
        ),
        (["canaries", 1, "holdout"], "half", r"canaries\[1\].holdout: holdout is .*; expected a number of at least 0"),
        (["canaries", 1], None, r"canaries\[1\] is None; expected an object"),
    ],
)
def test_a_damaged_manifest_names_the_file_and_the_field(
    canaries: CanarySet, tmp_path: Path, place: list[Any], value: object, message: str
) -> None:
    path = tmp_path / "canaries.json"
    canaries.save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    target = data
    for key in place[:-1]:
        target = target[key]
    if value is MISSING:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ManifestError, match=f"^{re.escape(str(path))}: {message}"):
        CanarySet.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is not JSON"),
        (b'{"version": 1,', "the file is not JSON"),
        (b'{"version": "\xff"}', "the file is not UTF-8"),
        (b"[]", r"the file is \[\]; expected an object"),
        (b"{}", "version is missing; expected this field"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "canaries.json"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=f"^{re.escape(str(path))}: {message}"):
        CanarySet.load(path)


def test_a_text_may_not_occur_twice_in_a_manifest(canaries: CanarySet, tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    canaries.save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["canaries"][2]["text"] = data["canaries"][0]["text"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ManifestError, match=r"canaries: canaries\[2\].text is .*, as canaries\[0\].text is"):
        CanarySet.load(path)


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CanarySet.load(tmp_path / "none.json")


# --- made for an audit --------------------------------------------------------------------------------------


def test_canaries_made_for_an_audit_stay_apart_in_the_set_and_in_the_file(tmp_path: Path) -> None:
    exposed = CanarySet.draw(PIN, repetitions=[1, 4], seed=0)
    made = CanarySet.draw(SSN, repetitions=[1] * 5, seed=0, holdout=0.5, purpose="audit")
    mixed = CanarySet([made[0], *exposed, *made[1:]])
    assert (mixed.for_exposure, mixed.for_audit) == (exposed, made)
    mixed.save(tmp_path / "canaries.json")
    assert CanarySet.load(tmp_path / "canaries.json") == mixed
    exposed.refuse_made_for_audits()
    with pytest.raises(ArgumentError, match=r"has ssn-1x, ssn-1x-2, ssn-1x-3 and 2 more, with purpose='audit'; expec"):
        mixed.refuse_made_for_audits()


def test_the_purpose_changes_neither_secrets_nor_coins() -> None:
    plain, made = (
        CanarySet.draw(SSN, repetitions=[1] * 9, seed=3, holdout=0.5, purpose=purpose)
        for purpose in ("exposure", "audit")  # type: ignore[arg-type]
    )
    assert plain.texts == made.texts
    assert [canary.held_out for canary in plain] == [canary.held_out for canary in made]
    assert plain != made


def test_a_file_from_before_there_were_purposes_is_read_and_an_unknown_purpose_is_not() -> None:
    canaries = CanarySet.draw(PIN, repetitions=[1], seed=0)
    content = canaries.to_dict()
    content["canaries"][0]["purpose"] = "fun"
    with pytest.raises(ManifestError, match=r"canaries\[0\]\.purpose.*'fun'; expected one of 'exposure', 'audit'"):
        CanarySet.from_dict(content)
    del content["canaries"][0]["purpose"]
    assert CanarySet.from_dict(content) == canaries
    with pytest.raises(ArgumentError, match="purpose is 'fun'; expected one of 'exposure', 'audit'"):
        CanarySet.draw(PIN, repetitions=[1], purpose="fun")  # type: ignore[arg-type]
