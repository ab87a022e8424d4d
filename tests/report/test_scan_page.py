"""The page of a scan says what is proven, what is not calibrated, and no secret."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.leakage import LeakEstimate
from lightning_exposure.report.scan import Scan, ScannedSecret

pytest.importorskip("jinja2")

from lightning_exposure.report.pages.scan import render, write_scan


def scan(*, calibrated: bool = True) -> Scan:
    def row(text: str, bits: float | None) -> ScannedSecret:
        estimate = leak = None
        if bits is not None:
            estimate = ExposureEstimate(text, bits, bits, bits, "exact", 1, 3.0, 29.9, False, 0.95, 9, prior_bits=20.0)
            leak = LeakEstimate(text, low=0.01, high=0.02, share=0.1, expansions=3)
        trouble = "" if bits is not None else f"the tokenizer cannot spell '{text}'"
        return ScannedSecret("ssn", text, text, 2, (("a<b>.txt", 7),), 1, estimate, leak, True, trouble, "my ssn is ")

    rows = (row("219-09-9991", 2.0), row("536-90-4399", 19.0), row("457-55-5462", None))
    return Scan(rows, calibrated=calibrated, alpha=0.05, confidence=0.95, settings={"alpha": 0.05})


def cells(page: str, name: str) -> list[str]:
    (row,) = [part for part in re.findall("<tr>(.*?)</tr>", page, re.DOTALL) if name in part]
    return [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)]


def test_the_page_names_no_secret_and_says_what_is_proven() -> None:
    made = scan()
    page = render(made)
    assert "1 of 3 secrets are memorized" in page
    assert not re.search("219-09|536-90|4399|457-55|my ssn is", page)
    first = cells(page, made.name(made.rows[0]))
    assert first[1:9] == ["2", "19.0", "exact", "20.0", "0.01 to 0.02", "35 to 69", "yes", "memorized"]
    assert first[9] == ["a&lt;b&gt;.txt:7", " a&lt;b&gt;.txt:7"][0], "file names are escaped"
    assert "not measured: the tokenizer cannot spell &#39;…&#39;" in page
    assert "not calibrated" not in page.lower()


def test_without_a_reference_the_page_says_not_calibrated() -> None:
    page = render(scan(calibrated=False))
    assert "Not calibrated" in page
    assert "secrets are memorized" not in page
    assert "1 of 3 secrets are above the threshold" in page


def test_a_page_with_secrets_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = write_scan(scan(), tmp_path / "page.html", reveal=True)
    assert "536-90-4399" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    masked = write_scan(scan(), tmp_path)
    assert masked.name == "report.html"
    assert "536-90-4399" not in masked.read_text()


def test_nothing_found() -> None:
    page = render(Scan((), calibrated=True, alpha=0.05, confidence=0.95))
    assert "No secret was found in the texts" in page
