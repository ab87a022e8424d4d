"""`check`: an exit code for continuous integration, and why."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from lightning_exposure import Canary, CanarySet, SecretFormat
from lightning_exposure.cli.commands.check import make_parser
from lightning_exposure.report import RunRecord
from lightning_exposure.report.limits.check import CheckedPart, CheckResult
from tests.cli.conftest import Run


@pytest.fixture
def own(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(run_dir, tmp_path / "run"))


@pytest.fixture
def harmless(own: Path) -> Path:
    """The same without the canary that is extracted."""
    record = RunRecord.load(own)
    record.canaries = CanarySet([canary for canary in record.canaries if canary.id == "pin-1x"])
    record.baseline = {"pin-1x": record.baseline["pin-1x"]}
    record.history = [replace(m, estimates={"pin-1x": m.estimates["pin-1x"]}) for m in record.history]
    record.save(own)
    record.canaries.save(own / "canaries.json")
    return own


def lowest_and_highest(run_dir: Path) -> tuple[float, float]:
    final = RunRecord.load(run_dir).final
    assert final is not None
    return max(e.low for e in final.estimates.values()), max(e.high for e in final.estimates.values())


def test_within_is_0_and_exceeded_is_1(run: Run, run_dir: Path, harmless: Path) -> None:
    low, high = lowest_and_highest(harmless)
    done = run("check", harmless, "--max_exposure", max(high, 5.0) + 0.1)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{harmless}: within: the most exposed canary, 'pin-1x', has at most ")
    done = run("check", run_dir, "--max_exposure", low - 1.0)
    assert done.code == 1
    assert done.out.startswith(f"{run_dir}: exceeded: 'pin-30x' has an exposure of ")


def test_a_record_that_decides_needs_no_model(run: Run, harmless: Path) -> None:
    (harmless / "model.ckpt").unlink()
    assert run("check", harmless, "--max_exposure", lowest_and_highest(harmless)[1] + 0.1).code == 0


def test_what_the_record_leaves_open_is_measured_further(run: Run, harmless: Path) -> None:
    record = RunRecord.load(harmless)
    assert record.final is not None
    _, high = lowest_and_highest(harmless)
    open_ones = {
        key: replace(estimate, low=0.0, high=13.0, method="importance")
        for key, estimate in record.final.estimates.items()
    }
    record.history[-1] = replace(record.final, estimates=open_ones)
    record.save(harmless)
    done = run("check", harmless, "--max_exposure", high + 0.1, "--json")
    said = json.loads(done.out)
    assert (done.code, said["answer"], said["passed"]) == (0, "within", True)
    assert {part["answer"] for part in said["parts"]} == {"within"}
    (harmless / "model.ckpt").unlink()
    done = run("check", harmless, "--max_exposure", high + 0.1)
    assert done.code == 2
    assert "model.ckpt does not exist" in done.err


def test_undecided_fails(run: Run, harmless: Path) -> None:
    limit = lowest_and_highest(harmless)[1]
    few = ["--samples", 16, "--budget", 20, "--max_effort", 1]
    done = run(
        "check", harmless / "model.ckpt", "--canaries", harmless / "canaries.json", "--max_exposure", limit, *few
    )
    assert done.code == 1
    assert ": undecided: 'pin-1x' has between " in done.out


def test_weights_that_were_trained_on_since_are_measured_anew(run: Run, own: Path) -> None:
    record = RunRecord.load(own)
    assert record.final is not None
    _, high = lowest_and_highest(own)
    lies = {key: replace(e, bits=0.0, low=0.0, high=0.0) for key, e in record.final.estimates.items()}
    record.history[-1] = replace(record.final, estimates=lies)
    record.save(own)
    assert run("check", own, "--max_exposure", high - 1.0).code == 0  # the record is believed
    record.steps = record.history[-1].step + 1
    record.save(own)
    assert run("check", own, "--max_exposure", high - 1.0).code == 1  # it is about other weights


def test_files_for_continuous_integration(run: Run, run_dir: Path, tmp_path: Path) -> None:
    low, _ = lowest_and_highest(run_dir)
    junit, summary = tmp_path / "deep" / "junit.xml", tmp_path / "summary.md"
    summary.write_text("### Before\n", encoding="utf-8")
    arguments = ["check", run_dir, "--max_exposure", low - 1.0, "--junit", junit, "--summary", summary]
    assert run(*arguments).code == 1
    root = ET.parse(junit).getroot()
    assert (root.tag, root.attrib["failures"]) == ("testsuites", "1")
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert cases["pin-30x"].find("failure") is not None
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("### Before\n\n### ❌ ")
    assert "| pin-30x | 30 | " in text
    assert run(*arguments).code == 1
    assert summary.read_text(encoding="utf-8").count("### ❌") == 2  # it is added to, as GitHub expects
    for canary in CanarySet.load(run_dir / "canaries.json"):
        assert canary.text not in text + junit.read_text(encoding="utf-8")


def test_any_model(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    done = run(
        "check", hf_dir, "--max_exposure", 12, "--format", "my pin is ####", "--secret", "my pin is 4711", "--json"
    )
    said = json.loads(done.out)
    assert done.code == (0 if said["answer"] == "within" else 1)
    assert said["parts"][0]["name"] == "secret-1"
    assert "4711" not in done.out + done.err
    canaries = CanarySet([Canary("in", "my pin is 4711", SecretFormat("my pin is ####"), 4),
                          Canary("out", "my pin is 0815", SecretFormat("my pin is ####"), 0)])  # fmt: skip
    canaries.save(tmp_path / "canaries.json")
    done = run("check", hf_dir, "--max_exposure", 13, "--canaries", tmp_path / "canaries.json", "--json")
    assert {part["name"]: part["answer"] for part in json.loads(done.out)["parts"]} == {
        "in": "within", "out": "never inserted",
    }  # fmt: skip


def test_epsilon(run: Run, harmless: Path) -> None:
    done = run("check", harmless, "--max_epsilon", 8)
    assert done.code == 1
    assert "trained without differential privacy" in done.out
    record = RunRecord.load(harmless)
    for epsilon, code in ((3.0, 0), (8.5, 1), (float("inf"), 1)):
        record.privacy = {"epsilon": epsilon, "delta": 1e-5}
        record.save(harmless)
        assert run("check", harmless, "--max_epsilon", 8).code == code
    record.privacy = {"epsilon": 3.0}
    record.save(harmless)
    low, high = lowest_and_highest(harmless)
    assert run("check", harmless, "--max_epsilon", 8, "--max_exposure", high + 0.1).code == 0
    assert run("check", harmless, "--max_epsilon", 8, "--max_exposure", low - 1.0).code == 1
    assert run("check", harmless, "--max_epsilon", 2, "--max_exposure", high + 0.1).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--max_exposure and --max_epsilon are not given; expected at least one limit"),
        (["--max_exposure", "ten"], "--max_exposure: invalid float value"),
        (["--max_exposure", "-1"], "--max_exposure is -1.0; expected"),
        (["--max_exposure", "40"], "--max_exposure is 40.0; expected less than 13.29"),
        (["--max_exposure", "10", "--format", "pin"], "--format is given without --secret"),
        (["--max_exposure", "10", "--secret", "my pin is 1234"], "--secret is given without --format"),
        (["--max_exposure", "10", "--max_effort", "0"], "--max_effort is 0; expected"),
        (["--max_exposure", "10", "--confidence", "95"], "confidence is 95.0; expected"),
        (["--max_exposure", "10", "--canaries", "nowhere.json"], "nowhere.json"),
    ],
)
def test_usage_errors_are_2(run: Run, run_dir: Path, arguments: list[str], message: str) -> None:
    done = run("check", run_dir, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_model_alone_needs_to_be_told_what_to_look_for(run: Run, hf_dir: Path, tmp_path: Path) -> None:
    done = run("check", hf_dir, "--max_exposure", 10)
    assert (done.code, "Add --canaries FILE, or --format FORMAT --secret TEXT" in done.err) == (2, True)
    assert run("check", hf_dir, "--max_epsilon", 10).code == 2
    done = run("check", tmp_path / "nowhere", "--max_exposure", 10, "--canaries", "x")
    assert done.code == 2


def test_luck_is_warned_of(run: Run, run_dir: Path) -> None:
    done = run("check", run_dir, "--max_exposure", 3)
    assert "warning: check: --max_exposure is 3, which luck exceeds" in done.err


def test_markup_in_a_name_stays_text() -> None:
    part = CheckedPart("a", "2.00 bits", "undecided", 1)
    result = CheckResult("runs/<b>|\x01", "undecided", "'a' is *open*", {"max_exposure": 1.0}, 0.95, [part])
    assert "&lt;b>\\|" in result.to_markdown()
    assert "\\*open\\*" in result.to_markdown()
    assert ET.fromstring(result.to_junit()).find("testsuite/testcase/failure") is not None


def test_the_fixture_of_the_page_fails_a_model_that_is_too_exposed(
    run_dir: Path, harmless: Path, tmp_path: Path
) -> None:
    """As a user has it: in a test file of their own, in a process of its own."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
    code = next(block for block in page.split("```python\n") if "def within_limits" in block).partition("```")[0]
    limit = max(lowest_and_highest(harmless)[1], 5.0) + 0.1
    code = code.replace("max_exposure=10", f"max_exposure={limit}")
    good, bad = (code.replace("runs/release", str(path)).replace("test_no", name)
                 for name, path in (("test_good", harmless), ("test_bad", run_dir)))  # fmt: skip
    (tmp_path / "test_models.py").write_text(f"{good}\n\n{bad}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "exceeded: 'pin-30x' has an exposure of" in done.stdout


def test_the_workflow_of_the_page_calls_what_there_is() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    steps = [step.get("run", "") for step in workflow["jobs"]["check"]["steps"]]
    program, command, *arguments = shlex.split(next(step for step in steps if "check" in step))
    assert (program, command) == ("lightning-exposure", "check")
    options = make_parser().parse_args(arguments)
    assert (options.max_exposure, options.max_epsilon, options.summary) == (10.0, 8.0, "$GITHUB_STEP_SUMMARY")
