"""The page about extending the library: its code runs, from top to bottom, and it shows every registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs_in_order(tmp_path: Path) -> None:
    """In a process of its own, with every warning an error, so that nothing of ours helps and nothing stays behind."""
    # Blank lines keep the numbers of the lines: an error is found in the page where Python says it is.
    text = PAGE.read_text(encoding="utf-8")
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            line = ""
        lines.append(line if inside else "")
    code = tmp_path / "extending.py"
    code.write_text("\n".join(lines), encoding="utf-8")
    environment = [sys.executable, "-c", f"import runpy; runpy.run_path({str(code)!r}, run_name='page')"]
    done = subprocess.run(environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "registry", ["NAMED_FORMATS", "ADAPTERS", "ATTACKS", "METHODS"], ids=["format", "adapter", "attack", "method"]
)
def test_every_registry_has_a_worked_example(registry: str) -> None:
    """One block registers something, another one uses and checks it."""
    (registering,) = [block for block in BLOCKS if f"@{registry}.register(" in block]
    name = re.search(rf'@{registry}\.register\("(\w+)"\)', registering)
    assert name is not None
    later = BLOCKS[BLOCKS.index(registering) + 1 :]
    assert any("assert" in block for block in later)
    assert any(f'{registry}.unregister("{name[1]}")' in block for block in later)
