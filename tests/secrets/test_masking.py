"""Secrets where they must not be read: every blank hidden, equal ones recognizable, the key at home."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_exposure.secrets import Mask, SecretFormat
from lightning_exposure.secrets.masking import HOME_VARIABLE, key_path

NAME = SecretFormat("{who} has pin ####", who=["Al", "Beatrice"], name="door")


@pytest.mark.parametrize(
    ("format", "text", "shown"),
    [
        (SecretFormat.ssn(), "my ssn is 536-90-4399", "my ssn is •••-••-••••"),
        (NAME, "Al has pin 1234", "•••• has pin ••••"),
        (NAME, "Beatrice has pin 1234", "•••• has pin ••••"),
        (SecretFormat.regex("password: [a-z0-9]{2,8}"), "password: ab", "password: ••••"),
        (SecretFormat.regex("password: [a-z0-9]{2,8}"), "password: abcdefgh", "password: ••••"),
        (SecretFormat("?#"), "a1", "••"),
    ],
)
def test_every_blank_is_hidden_and_so_is_how_long_it_is(format: SecretFormat, text: str, shown: str) -> None:
    masked = Mask().text(text, format)
    assert masked.startswith(f"{shown} ({format.name}-")
    assert len(masked) == len(shown) + len(f" ({format.name}-)") + 10


def test_equal_secrets_have_equal_names_and_different_ones_have_not() -> None:
    texts = [NAME.render(index) for index in range(0, NAME.size, 97)]
    assert len({Mask().text(text, NAME) for text in texts}) == len(texts)
    assert [Mask().text(text, NAME) for text in texts] == [Mask().text(text, NAME) for text in texts]


def test_another_key_gives_other_names() -> None:
    assert Mask(b"one").name("pin", "1234") != Mask(b"two").name("pin", "1234")


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    code = "from lightning_exposure.secrets import Mask; print(Mask().name('pin', '1234'))"
    names = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert names == {f"{Mask().name('pin', '1234')}\n"}
    assert [path.name for path in (tmp_path / "home").iterdir()] == [key_path().name]
    assert stat.S_IMODE(os.stat(key_path()).st_mode) == 0o600


def test_without_a_place_for_the_key_names_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "file" / "home"))
    assert Mask().name("pin", "1234") == Mask().name("pin", "1234")


def test_the_key_is_not_in_what_is_printed() -> None:
    assert repr(Mask(b"a key")) == "Mask()"
