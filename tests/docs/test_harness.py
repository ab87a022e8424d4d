"""The harness itself: what it lets through, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.__main__ import written
from tests.docs.blocks import PageError, parse
from tests.docs.printed import difference
from tests.docs.running import Page
from tests.docs.surroundings import untouched


def run(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    with untouched(folder):
        Page(page, folder).run()


GOOD = {
    "one namespace": "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n2\n```\n",
    "set-up": "<!-- set-up\nx = 1\n-->\n\n```python\nprint(x)\n```\nIt prints\n```text\n1\n```\n",
    "indented": "- a list\n\n    ```python\n    print(1)\n    ```\n\n    ```text\n    1\n    ```\n",
    "shell": "```bash\necho a > file\ncat file  # what is in it\n```\n\n```text\na\n```\n",
    "our command": "```bash\nlightning-exposure --version\n```\n\n```text\nlightning-exposure 0.1.0\n```\n",
    "a file": "```bash\nlightning-exposure --version > file\ncat file\n```\n\n```text\nlightning-exposure 0.1.0\n```\n",
    "fails on purpose": "<!-- exit code 2 -->\n```bash\nlightning-exposure demo --nothing\n```\n",
    "not run": "<!-- not run: takes three minutes; tests/cli/test_demo.py runs it -->\n```bash\nfalse\n```\n",
    "pickles": "```python\nimport pickle\n\n\nclass A:\n    pass\n\n\npickle.loads(pickle.dumps(A()))\n```\n",
    "smaller": "<!-- smaller: 10**9 -> 3\nin full -> in small -->\n"
    "```python\nx = 10**9\nprint(x, 'in full')\n```\n\n```text\n3 in small\n```\n",
    "file": "<!-- file: a.py -->\n```python\nx = 1\n```\n\n```bash\ncat a.py\n```\n\n```text\nx = 1\n```\n",
    "trained": "```python\nprint(0.1)\n```\n<!-- numbers within 10% or 1: trained -->\n```text\n0.9\n```\n",
    "yaml": "```yaml\na: [1]\n```\n",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=list(GOOD))
def test_a_good_page(tmp_path: Path, text: str) -> None:
    run(tmp_path, text)


BAD = {
    "other output": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "line 6.*the page says"),
    "output of nobody": ("```text\n2\n```\n", "nothing was run"),
    "output twice": ("```python\nprint(1)\n```\n```text\n1\n```\n```text\n1\n```\n", "nothing was run"),
    "output of what was not run": (
        "```python\nprint(1)\n```\n<!-- not run: takes too long -->\n```bash\nx\n```\n```text\n1\n```\n",
        "nothing was run",
    ),
    "no language": ("```\nx\n```\n", "the language is ''"),
    "another language": ("```ruby\nx\n```\n", "the language is 'ruby'"),
    "a command fails": ("```bash\nfalse\n```\n", "ends with 1"),
    "a command does not fail": ("<!-- exit code 1 -->\n```bash\ntrue\n```\n", "ends with 0"),
    "no reason": ("<!-- not run: slow -->\n```bash\nfalse\n```\n", "no reason"),
    "a reason for another block": ("<!-- not run: takes too long -->\n\nHere:\n\n```bash\nfalse\n```\n", "ends with 1"),
    "a test that is not there": (
        "<!-- not run: slow; tests/cli/test_nobody.py runs it -->\n```bash\nfalse\n```\n",
        "no tests/cli/test_nobody",
    ),
    "nothing to make smaller": ("<!-- smaller: y -> 1 -->\n```python\nx = 1\n```\n", "no 'y' to make smaller"),
    "a diff of nothing": ("```diff\n+x\n```\n", "between which files"),
    "a line that is not new": (
        "<!-- diff: examples/existing_script.py examples/existing_script_with_exposure.py -->\n"
        "```diff\n+import torch\n```\n",
        "not so in",
    ),
    "never closed": ("```python\nx = 1\n", "never closed"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=list(BAD))
def test_a_bad_page(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PageError, match=f"(?s){message}"):
        run(tmp_path, text)


def test_an_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(tmp_path, "# A page\n\n```python\nx = 1\nx / 0\n```\n")
    last = caught.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("page.md", 5)


@pytest.mark.parametrize(
    ("said", "printed", "percent"),
    [
        ("in 3 s\n", "in 250.1 s\n", 0),
        ("on 2025-01-02 10:00\n", "on 2031-10-11 23:59\n", 0),
        ("ssn-0123456789  1\n", "ssn-abcdefabcd   1\n", 0),
        ("a\n...\nd\n", "a\nb\nc\nd\n", 0),
        ("a\n...\nd\n", "a\nd\n", 0),
        ("...\nd\n...\n", "a\nd\nc\n", 0),
        ("1.23 bits of 100\n", "1.24 bits of 104\n", 5),
    ],
)
def test_may_differ(said: str, printed: str, percent: float) -> None:
    assert difference(said, printed, percent) is None


@pytest.mark.parametrize(
    ("said", "printed", "percent"),
    [
        ("3 bits\n", "4 bits\n", 0),
        ("3.10 bits\n", "3.11 bits\n", 0),
        ("3.10 bits\n", "3.50 bits\n", 5),
        ("100 nodes\n", "120 nodes\n", 5),
        ("3.1 bits\n", "3.1 nats\n", 5),
        ("a\n", "a\nb\n", 0),
        ("a\nb\n", "a\n", 0),
        ("a\n...\nd\n", "a\nd\nc\n", 0),
        ("a\n...\nd\n...\n", "a\nc\n", 0),
        ("...\na\na\n", "b\na\n", 0),
    ],
)
def test_may_not_differ(said: str, printed: str, percent: float) -> None:
    assert difference(said, printed, percent) is not None


def test_what_was_printed_can_be_written_down() -> None:
    text = "```python\nprint(1)\n```\n\n```text\nold\n```\n\nand\n\n```text\nother\n```\n"
    _, first, second = parse(text)
    assert written(text, {first.line: "1\n2\n", second.line: "3\n"}) == (
        "```python\nprint(1)\n```\n\n```text\n1\n2\n```\n\nand\n\n```text\n3\n```\n"
    )
