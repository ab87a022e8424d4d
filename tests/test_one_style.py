"""Wrong arguments of every public entry point are refused in one style: "name is given; expected ... . Remedy."."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from lightning_exposure import (
    AuditCallback,
    CanarySet,
    CharTokenizer,
    Decoder,
    DifferentialPrivacy,
    ExposureCallback,
    ExtractionCallback,
    ScanCallback,
    SecretFormat,
    SecretTree,
    WordTokenizer,
    extract,
    leak_probability,
    measure_exposure,
)
from lightning_exposure import __file__ as package
from lightning_exposure.adapters import StatelessAdapter
from lightning_exposure.defences import redact, redact_data, sanitize
from lightning_exposure.errors import ExposureError
from lightning_exposure.synthetic import audit_synthetic

PIN = SecretFormat.pin()
CHARS = CharTokenizer.from_text("my pin is 0123456789")
MODEL = nn.Sequential(nn.Embedding(CHARS.vocab_size, 4), nn.Linear(4, CHARS.vocab_size))
TREE = SecretTree(MODEL, PIN, CHARS)
SECRET = "my pin is 1234"
CANARIES = CanarySet.draw(PIN, repetitions=[1, 4], seed=0)
HELD_OUT = CanarySet.draw(PIN, repetitions=[1] * 20, seed=0, holdout=0.5)
BUDGET = {"max_grad_norm": 1.0, "delta": 1e-6}

SHARED: list[dict[str, Any]] = [
    {"every_n_epochs": -1},
    {"every_n_epochs": None},
    {"name": ""},
    {"name": 3},
    {"model": "network"},
    {"model": MODEL},
    {"context": 0},
    {"batch_size": 0},
]


def test_a_class_of_adapters_picks_a_model_too() -> None:
    assert ExposureCallback(CANARIES, model=StatelessAdapter).model is StatelessAdapter


def refused(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ExposureError) as found:
        call()
    message = str(found.value)
    assert re.match(rf"{name} (is|has) .+; expected .+\.", message), message
    assert "\n" not in message


@pytest.mark.parametrize("options", SHARED, ids=repr)
@pytest.mark.parametrize(
    ("kind", "given"),
    [(ExposureCallback, CANARIES), (ExtractionCallback, CANARIES), (AuditCallback, HELD_OUT), (ScanCallback, [SECRET])],
)
def test_what_all_callbacks_take(kind: Any, given: Any, options: dict[str, Any]) -> None:
    refused(*options, lambda: kind(given, **options))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("seed", lambda: ExposureCallback(CANARIES, seed="a")),  # type: ignore[arg-type]
        ("baseline", lambda: ExposureCallback(CANARIES, baseline=3)),  # type: ignore[arg-type]
        ("baseline", lambda: AuditCallback(HELD_OUT, baseline=None)),  # type: ignore[arg-type]
        ("raise_on_alarm", lambda: AuditCallback(HELD_OUT, raise_on_alarm="yes")),  # type: ignore[arg-type]
        ("top_k", lambda: ExtractionCallback(CANARIES, top_k=0)),
        ("verbose", lambda: ExtractionCallback(CANARIES, verbose=2)),  # type: ignore[arg-type]
        ("reference", lambda: ScanCallback([SECRET], reference="befor_training")),
        ("unit", lambda: DifferentialPrivacy(noise_multiplier=1.0, unit="x", **BUDGET)),  # type: ignore[arg-type]
        ("user", lambda: DifferentialPrivacy(noise_multiplier=1.0, user=len, **BUDGET)),
        ("user", lambda: DifferentialPrivacy(noise_multiplier=1.0, unit="user", **BUDGET)),
        ("max_records_per_user", lambda: DifferentialPrivacy(noise_multiplier=1.0, unit="user", user=len, **BUDGET)),
        ("accountant", lambda: DifferentialPrivacy(noise_multiplier=1.0, accountant="x", **BUDGET)),  # type: ignore[arg-type]
    ],
)
def test_callbacks(name: str, call: Callable[[], Any]) -> None:
    refused(name, call)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("tree", lambda: measure_exposure(MODEL, [SECRET])),  # type: ignore[arg-type]
        ("secrets", lambda: measure_exposure(TREE, SECRET)),
        ("seed", lambda: measure_exposure(TREE, [SECRET], seed=-1)),
        ("prior", lambda: measure_exposure(TREE, [SECRET], prior=3)),  # type: ignore[arg-type]
        ("tree", lambda: extract(MODEL)),  # type: ignore[arg-type]
        ("algorithm", lambda: extract(TREE, "greedy")),  # type: ignore[arg-type]
        ("tree", lambda: leak_probability(MODEL, [SECRET])),  # type: ignore[arg-type]
        ("decoder", lambda: leak_probability(TREE, [SECRET], 3)),  # type: ignore[arg-type]
        ("tolerance", lambda: leak_probability(TREE, [SECRET], tolerance=-1)),
        ("budget", lambda: leak_probability(TREE, [SECRET], budget=0)),
        ("top_p", lambda: Decoder(top_p=2)),
        ("model", lambda: SecretTree(3, PIN, CHARS)),  # type: ignore[arg-type]
        ("format", lambda: SecretTree(MODEL, "pin ####", CHARS)),  # type: ignore[arg-type]
        ("tokenizer", lambda: SecretTree(MODEL, PIN, 3)),
    ],
)
def test_measurements(name: str, call: Callable[[], Any]) -> None:
    refused(name, call)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("folds", lambda: sanitize(["a"] * 9, lambda samples: None, folds=1)),
        ("train", lambda: sanitize(["a"] * 9, 3)),  # type: ignore[arg-type]
        ("dataset_or_texts", lambda: sanitize(3)),
        ("how", lambda: redact("a", how="hash")),  # type: ignore[call-overload]
        ("scanner", lambda: redact("a", 3)),  # type: ignore[call-overload]
        ("text", lambda: redact(3)),  # type: ignore[call-overload]
        ("data", lambda: redact_data(3)),
    ],
)
def test_defences(name: str, call: Callable[[], Any]) -> None:
    refused(name, call)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("texts", lambda: audit_synthetic(3, HELD_OUT)),  # type: ignore[arg-type]
        ("texts", lambda: audit_synthetic("a text", HELD_OUT)),
        ("canaries", lambda: audit_synthetic(["a" * 999], [SECRET])),  # type: ignore[arg-type]
        ("canaries", lambda: audit_synthetic(["a" * 999], CANARIES)),
        ("scorers", lambda: audit_synthetic(["a" * 999], HELD_OUT, scorers=3)),  # type: ignore[arg-type]
        ("held_out", lambda: audit_synthetic(["a" * 999], HELD_OUT, held_out=["a"])),
    ],
)
def test_generated_texts(name: str, call: Callable[[], Any]) -> None:
    refused(name, call)


@pytest.mark.parametrize("kind", [CharTokenizer, WordTokenizer])
def test_tokenizers(kind: Any) -> None:
    tokenizer = kind.from_text("one two")
    refused("vocabulary", lambda: kind(3))
    refused("vocabulary", lambda: kind([]))
    refused("texts", lambda: kind.from_text(["one", "two"]))  # each would be a symbol
    refused("text", lambda: tokenizer.encode("three"))
    refused("ids", lambda: tokenizer.decode([0, 99]))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("pattern", lambda: SecretFormat(5)),  # type: ignore[arg-type]
        ("formats", lambda: CanarySet.draw("pin ##", repetitions=[1])),  # type: ignore[arg-type]
        ("repetitions", lambda: CanarySet.draw(PIN, repetitions="1")),  # type: ignore[arg-type]
        ("seed", lambda: CanarySet.draw(PIN, repetitions=[1], seed="a")),  # type: ignore[arg-type]
        ("content", lambda: CanarySet.from_dict(3)),  # type: ignore[arg-type]
    ],
)
def test_secrets(name: str, call: Callable[[], Any]) -> None:
    refused(name, call)


def test_progress_has_one_signature() -> None:
    seen: list[tuple[int, int, float]] = []
    leaks = leak_probability(TREE, [SECRET, "my pin is 4321"], progress=lambda *arguments: seen.append(arguments))
    assert [expansions for expansions, _, _ in seen] == [leaks[0].expansions, sum(leak.expansions for leak in leaks)]
    assert seen[-1][2] == pytest.approx(-math.log2(max(leak.low for leak in leaks)))
    for path in Path(package).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg) and node.arg == "progress" and node.annotation is not None:
                assert "Callable" not in ast.unparse(node.annotation), f"{path}:{node.lineno}"  # but `Progress`
