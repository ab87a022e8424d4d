"""Every block of code on every page is run, and prints what the page says.

How to write a page that passes:

- The `python` blocks of a page are run in one namespace, from top to bottom, in an empty directory. Let a reader copy
  them: start with whatever makes the model. What would only be in the way can go into a comment, which is run too:
  `<!-- set-up` on a line of its own, then the code, then `-->`. `tests.docs.small_models` has models to share.
- `bash` blocks are run line by line in the same directory. `lightning-exposure ...` runs in this process; it can be
  fed with `echo ... |`, and can end in `> file`. If the last line is meant to fail, say `<!-- exit code 1 -->` before.
- A `text` block is what the block before it printed, for `bash` with standard error. A line `...` stands for lines
  that are left out. Times, dates and the names of masked secrets may differ; numbers may not, unless a comment before
  the block says `<!-- numbers within 10%: trained -->`, or `10% or 0.5` (another processor adds up in another order).
- What would take too long is made smaller, in the test alone: `<!-- smaller: epochs=15 -> epochs=1 -->`; one line for
  each change.
- `<!-- file: badge.py -->` before a `python` block also writes it to that file, for `bash` blocks that use it.
- `diff` blocks are compared with two files: `<!-- diff: examples/old.py examples/new.py -->`. `yaml` and `json` are
  parsed.
- What is not run says why, right before it, where a reader of the source sees it: `<!-- not run: takes three minutes;
  tests/cli/test_demo.py runs it -->`. This goes for a `text` block that nobody printed, too. Files that it names exist.

`python -m tests.docs docs/page.md` runs a page; with `--write` it puts what was printed into its `text` blocks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.running import ROOT, Page
from tests.docs.surroundings import untouched

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WITH_CODE = [page for page in PAGES if blocks_of(page)]
# More than a few seconds each.
SLOW = {
    "README.md",
    "docs/command-line.md",
    "docs/ddp.md",
    "docs/gallery.md",
    "docs/tutorial.md",
    "docs/defences.md",
    "docs/extending.md",
    "docs/gate.md",
    "docs/other-trainers.md",
    "docs/priors.md",
    "docs/translation.md",
}


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=named(page), marks=[pytest.mark.slow] * (named(page) in SLOW)) for page in WITH_CODE],
)
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    with untouched(tmp_path):
        Page(page, tmp_path).run()


def test_there_are_pages() -> None:
    assert {"README.md", "docs/index.md", "docs/concepts.md", "docs/api/measuring.md"} <= set(map(named, WITH_CODE))
