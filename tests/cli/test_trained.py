"""`measure`, `extract` and `report`: what is done with a run that exists."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import CanarySet, Extraction, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.cli import main
from lightning_exposure.cli.models import load_any_model
from lightning_exposure.exposure import PoorFitWarning
from lightning_exposure.report import RunRecord
from tests.cli.conftest import TINY, Run
from tests.cli.test_program import assert_error


@pytest.fixture
def canaries(run_dir: Path) -> CanarySet:
    return CanarySet.load(run_dir / "canaries.json")


@pytest.fixture
def tree(run_dir: Path) -> SecretTree:
    trained = load_any_model(str(run_dir / "model.ckpt"))
    return trained.tree(SecretFormat.pin())


# ---- measure ----------------------------------------------------------------------------------------------------


def test_measure_prints_a_line_per_canary(run: Run, run_dir: Path, canaries: CanarySet) -> None:
    code, out, err = run("measure", "--model", run_dir / "model.ckpt")
    assert (code, err) == (0, "")
    heading, _, *rows = out.splitlines()
    assert heading.split()[:4] == ["canary", "secret", "exposure", "interval"]
    for row, canary in zip(rows, canaries, strict=True):
        assert row.startswith(canary.id)
        assert canary.text in row
        assert row.endswith("exact")


def test_measure_says_how_many_guesses_find_a_secret(run: Run, run_dir: Path, tree: SecretTree) -> None:
    first, *_, last = extract(tree, "brute_force", top_k=10_000).candidates
    secrets = ["--secret", first.text, last.text]
    heading, _, *rows = run("measure", "--model", run_dir, *secrets).out.splitlines()
    assert "guesses" in heading.split()
    assert "1st (proven)" in rows[0]
    assert "not within 1,000 (proven)" in rows[1]
    found = json.loads(run("measure", "--model", run_dir, "--json", *secrets).out)
    assert [one["guesses"]["proven_guesses"] for one in found] == [[1, 1], [10_000, 10_000]]
    assert [one["guesses"]["mood"] for one in found] == ["leaks", "holds"]


def test_measure_says_what_the_training_said(run: Run, run_dir: Path) -> None:
    record = RunRecord.load(run_dir)
    found = json.loads(run("measure", "--model", run_dir, "--json").out)
    assert record.final is not None
    assert {one["canary"]: one["rank"] for one in found} == {
        name: estimate.rank for name, estimate in record.final.estimates.items()
    }


def test_measure_with_options(run: Run, run_dir: Path, tree: SecretTree, canaries: CanarySet) -> None:
    options = ["--method=sampling", "--samples=50", "--seed=3", "--confidence=0.8", "--budget=7"]
    found = json.loads(run("measure", "--model", run_dir, "--json", *options).out)
    wanted = measure_exposure(tree, canaries.texts, "sampling", 7, 50, 3, confidence=0.8)
    assert [one["bits"] for one in found] == [estimate.bits for estimate in wanted]
    assert {one["confidence"] for one in found} == {0.8}


def test_measure_other_secrets(run: Run, run_dir: Path, canaries: CanarySet, tree: SecretTree) -> None:
    secret = "my pin is 0000"
    wanted = measure_exposure(tree, [secret])[0]
    for options in ([], ["--format=pin"], ["--format=my pin is ####"]):
        found = json.loads(
            run("measure", "--model", run_dir, "--json", *options, "--secret", secret, canaries.texts[0]).out
        )
        assert [one["canary"] for one in found] == [None, canaries[0].id]
        assert found[0]["rank"] == wanted.rank
    code, out, _ = run("measure", "--model", run_dir, "--format=the pin is #", "--secret", "the pin is 5", "--reveal")
    assert code == 0
    assert out.splitlines()[2].startswith("-       the pin is 5")


def test_measure_warns_in_one_line(run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(fit: object) -> None:
        warnings.warn("the fit\nis poor", PoorFitWarning, stacklevel=1)
        warnings.warn("the weather is poor", UserWarning, stacklevel=1)

    monkeypatch.setattr("lightning_exposure.exposure.methods._skewnormal.warn_if_poor", warn)
    code, out, err = run("measure", "--model", run_dir, "--method=skewnormal")
    assert (code, err) == (0, "lightning-exposure: warning: the fit is poor\n")
    assert out.splitlines()[-1].endswith("skewnormal")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--secret", "my pin is 12"], ["--secret (number 1 of 1, not shown)", "'my pin is ####'", "ends too early"]),
        (["--format", "pin"], ["--secret"]),
        (["--method", "exact", "--budget", "1"], ["budget"]),
        (["--samples", "0", "--method", "importance"], ["samples"]),
        (["--canaries", "nowhere.json"], ["nowhere.json", "--canaries"]),
        (["--tokenizer", "nowhere.json"], ["nowhere.json", "--tokenizer"]),
        (["--device", "abacus"], ["--device is 'abacus'"]),
        (["--secret", "my \u20ac is 1", "--format", "my \u20ac is #"], ["\u20ac"]),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_measure_errors(run: Run, run_dir: Path, arguments: list[str], parts: list[str]) -> None:
    assert_error(run("measure", "--model", run_dir, *arguments), *parts)


# ---- measure --reference -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> dict[str, Path]:
    """Runs with other canaries: on the same text, and on one with another alphabet."""
    folder = tmp_path_factory.mktemp("references")
    other = folder / "other.txt"
    other.write_text(text_file.read_text(encoding="utf-8")[:4000] + "\u00e4\u00f6\u00fc", encoding="utf-8")
    runs = {"same": (text_file, folder / "same"), "other": (other, folder / "other")}
    for text, path in runs.values():
        fit = ["fit", *TINY, f"--data.text_or_path={text}", f"--run_dir={path}", "--trainer.max_epochs=1", "--seed=5"]
        assert main(fit) == 0
    return {name: path for name, (_, path) in runs.items()}


@pytest.mark.parametrize("kind", ["same", "other"])
def test_measure_against_a_reference(
    run: Run, run_dir: Path, references: dict[str, Path], tree: SecretTree, canaries: CanarySet, kind: str
) -> None:
    reference = load_any_model(str(references[kind]))
    assert (reference.tokenizer.vocab_size == tree.tokenizer.vocab_size) == (kind == "same")
    theirs = reference.tree(SecretFormat.pin())
    code, out, err = run("measure", "--model", run_dir, "--reference", references[kind], "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    # -log2 of what the reference expects, renormalised among the digits: measured by hand on its own tree.
    itself = measure_exposure(theirs, canaries.texts, prior=theirs)
    assert [one["prior_bits"] for one in found] == pytest.approx([estimate.prior_bits for estimate in itself], abs=1e-6)
    assert [one["rank"] for one in found] == [estimate.rank for estimate in measure_exposure(tree, canaries.texts)]
    if kind == "same":
        wanted = measure_exposure(tree, canaries.texts, prior=theirs)
        assert [one["bits"] for one in found] == [estimate.bits for estimate in wanted]
    heading, _, *rows = run(
        "measure", "--model", run_dir, "--reference", references[kind] / "model.ckpt"
    ).out.splitlines()
    for row, one in zip(rows, found, strict=True):
        cells = dict(zip(re.split(r"\s{2,}", heading), re.split(r"\s{2,}", row), strict=True))
        assert cells["of at most"] == f"{one['prior_bits']:.2f}"
        assert cells["exposure"] == f"{one['bits']:.2f}"


def test_measure_shows_by_how_much_the_first_is_ahead(run: Run, run_dir: Path, tree: SecretTree) -> None:
    first, second = extract(tree, top_k=2).candidates
    found = json.loads(run("measure", "--model", run_dir, "--json", "--secret", first.text, second.text).out)
    assert found[0]["margin_bits"] == pytest.approx(second.bits - first.bits, abs=1e-6)
    assert found[1]["margin_bits"] is None
    rows = run("measure", "--model", run_dir, "--secret", first.text, second.text).out.splitlines()[2:]
    assert f" 1 (+{second.bits - first.bits:.1f} bits) " in rows[0]
    assert "bits)" not in rows[1]


def test_a_reference_that_is_not_there(run: Run, run_dir: Path) -> None:
    assert_error(run("measure", "--model", run_dir, "--reference", "nowhere"), "nowhere", "does not exist")


# ---- files that are missing or broken ------------------------------------------------------------------------------


@pytest.fixture
def broken(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be broken."""
    return Path(shutil.copytree(run_dir, tmp_path / "broken"))


@pytest.mark.parametrize("command", ["measure", "extract"])
@pytest.mark.parametrize("name", ["canaries.json", "tokenizer.json", "model.ckpt"])
def test_a_missing_or_broken_file(run: Run, broken: Path, command: str, name: str) -> None:
    for content in (b"", b"nonsense", b"[]", b"{}"):
        (broken / name).write_bytes(content)
        assert_error(run(command, "--model", broken), name)
    (broken / name).unlink()
    assert_error(run(command, "--model", broken), name, "does not exist")


def test_a_checkpoint_of_something_else(run: Run, broken: Path) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": {}, "pytorch-lightning_version": "2.5.0"}, broken / "model.ckpt")
    assert_error(run("measure", "--model", broken), "expected a checkpoint of a LanguageModel")


def test_a_checkpoint_runs_no_code(run: Run, broken: Path) -> None:
    marker = broken / "marker"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    torch.save({"state_dict": Evil()}, broken / "model.ckpt")
    assert_error(run("measure", "--model", broken), "expected a checkpoint")
    assert not marker.exists()


def test_secrets_without_canaries(run: Run, broken: Path) -> None:
    (broken / "canaries.json").unlink()
    assert run("measure", "--model", broken, "--secret", "my pin is 0000", "--format", "pin").code == 0
    assert run("extract", "--model", broken, "--format", "pin").code == 0
    assert_error(run("measure", "--model", broken, "--secret", "my pin is 0000"), "--format")


def test_several_formats(run: Run, broken: Path) -> None:
    formats = [SecretFormat.pin(), SecretFormat("the code is #", name="code")]
    CanarySet.draw(formats, repetitions=[1]).save(broken / "canaries.json")
    assert len(json.loads(run("measure", "--model", broken, "--json").out)) == 2
    assert set(json.loads(run("extract", "--model", broken, "--json").out)) == {"pin", "code"}
    assert set(json.loads(run("extract", "--model", broken, "--json", "--known=the co").out)) == {"code"}
    assert_error(
        run("extract", "--model", broken, "--known=xyz"),
        "--known (not shown) is no beginning of 'my pin is ####' or 'the code is #'",
    )
    assert_error(run("measure", "--model", broken, "--secret=xyz"), "'my pin is ####' or 'the code is #'", "--format")


# ---- extract ----------------------------------------------------------------------------------------------------


def test_extract_prints_candidates_and_the_proof(run: Run, run_dir: Path, tree: SecretTree) -> None:
    code, out, err = run("extract", "--model", run_dir, "--reveal")
    assert (code, err) == (0, "")
    wanted = extract(tree, top_k=2)
    lines = out.splitlines()
    for line, candidate in zip(lines[2:4], wanted.candidates, strict=True):
        assert candidate.text in line
        assert "proven" in line
    assert "pin-30x" in lines[2], "the canary that is inserted most often is the most likely secret"
    assert lines[-1] == "pin: proven optimal: no other secret of this format is more likely."


def test_extract_says_of_every_canary_what_its_list_says(run: Run, run_dir: Path, tree: SecretTree) -> None:
    """Of one that is not in the list, no more than that; a list that is long enough has it."""
    rank = int(measure_exposure(tree, [CanarySet.load(run_dir / "canaries.json")["pin-1x"].text])[0].rank)
    assert rank > 1
    lines = run("extract", "--model", run_dir, "--top_k=1").out.splitlines()
    assert "pin-1x   not the 1st guess, proven; beyond that unknown" in lines
    assert "pin-30x  1st guess, proven" in lines
    found = json.loads(run("extract", "--model", run_dir, "--json", f"--top_k={rank}").out)["pin"]["canaries"]
    assert found["pin-1x"]["proven_guesses"] == [rank, rank]
    unproven = json.loads(
        run("extract", "--model", run_dir, "--json", "--algorithm=beam", "--width=1", "--top_k=1").out
    )
    assert unproven["pin"]["canaries"]["pin-1x"]["mood"] == "unknown"


@pytest.mark.parametrize(
    "options",
    [
        ["--algorithm=shortest_path", "--budget=3", "--top_k=1"],
        ["--algorithm=shortest_path", "--stop=paper", "--seconds=60"],
        ["--algorithm=brute_force", "--top_k=4"],
        ["--algorithm=beam", "--width=5"],
        ["--algorithm=sampling", "--samples=100", "--temperature=2.0", "--seed=5"],
    ],
    ids=lambda options: " ".join(options[:2]),
)
def test_extract_with_options(
    run: Run, run_dir: Path, tree: SecretTree, canaries: CanarySet, options: list[str]
) -> None:
    result = run("extract", "--model", run_dir, "--json", "--reveal", *options)
    assert (result.code, result.err) == (0, "")
    (found,) = json.loads(result.out).values()
    given = dict(option.removeprefix("--").split("=") for option in options)
    settings = {name: text if name in ("algorithm", "stop") else json.loads(text) for name, text in given.items()}
    wanted = extract(tree, **{"top_k": 2, **settings})
    ids = {canary.text: canary.id for canary in canaries}
    assert [candidate.pop("canary") for candidate in found["candidates"]] == [
        ids.get(candidate.text) for candidate in wanted.candidates
    ]
    assert Extraction.from_dict(found).candidates == wanted.candidates
    assert found["ended_by"] == wanted.ended_by


def test_extract_with_a_known_beginning(run: Run, run_dir: Path) -> None:
    found = json.loads(
        run("extract", "--model", run_dir, "--json", "--reveal", "--known=my pin is 12", "--top_k=3").out
    )
    assert all(candidate["text"].startswith("my pin is 12") for candidate in found["pin"]["candidates"])


def test_extract_without_a_proof_says_so(run: Run, run_dir: Path) -> None:
    assert (
        "pin: not proven (ended by samples): there may be more likely secrets."
        in run("extract", "--model", run_dir, "--algorithm=sampling", "--samples=10").out
    )


def test_an_interrupted_attack_shows_what_it_found(run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(update: object) -> Any:
        def progress(*_: object) -> None:
            raise KeyboardInterrupt

        return progress

    monkeypatch.setattr("lightning_exposure.cli.commands.extract.search_progress", interrupt)
    code, out, _ = run("extract", "--model", run_dir, "--algorithm=brute_force")
    assert code == 130
    assert "ended by interrupt" in out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--top_k", "0"], ["top_k"]),
        (["--width", "5"], ["width", "budget"]),
        (["--known", "your pin"], ["--known (not shown)", "'my pin is ####'"]),
        (["--algorithm", "beam", "--width", "0"], ["width"]),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_extract_errors(run: Run, run_dir: Path, arguments: list[str], parts: list[str]) -> None:
    assert_error(run("extract", "--model", run_dir, *arguments), *parts)


# ---- report -----------------------------------------------------------------------------------------------------


def test_report(run: Run, broken: Path, tmp_path: Path) -> None:
    (broken / "report.html").unlink()
    assert run("report", broken) == (0, f"Report: {broken / 'report.html'}\n", "")
    assert "<html" in (broken / "report.html").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    assert run("report", broken / "exposure.json", f"--path={page}") == (0, f"Report: {page}\n", "")


def test_report_errors(run: Run, broken: Path) -> None:
    (broken / "exposure.json").write_text("{}", encoding="utf-8")
    assert_error(run("report", broken), "exposure.json", "version")
    (broken / "exposure.json").unlink()
    assert_error(run("report", broken), "exposure.json")
