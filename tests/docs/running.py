"""Runs the code of a page, from top to bottom, and compares what it prints."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from lightning_exposure.cli import main
from tests.docs.blocks import Block, PageError, blocks_of
from tests.docs.printed import difference

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "lightning-exposure"
# What a file of one's own registers stays registered: that takes a process of its own.
_IN_PROCESS = re.compile(
    r"^(?:(?P<before>(?:echo|printf|cat) [^|]*)\| *)?"
    rf"(?P<command>{PROGRAM}\b(?! --import)[^|&;<>]*)(?:> *(?P<file>\S+))?$"
)


class Page:
    """One page, while it is run.

    Args:
        path: The page.
        folder: An empty directory, which is the current one: paths in it are shown relative to it.
        on_text: Called with each `text` block and what was printed before it; by default the two are compared.
    """

    def __init__(self, path: Path, folder: Path, on_text: Callable[[Block, str], None] | None = None) -> None:
        self.path = path
        self.folder = folder
        self.on_text = on_text or self._compare
        self.printed: str | None = None
        # Classes and functions of a page say which module they are of, and pickle looks there.
        self.module = types.ModuleType("page")

    def run(self) -> None:
        """Run all of it.

        Raises:
            PageError: A block cannot be run and does not say why, or does not print what the page says.
        """
        kinds: dict[str, Callable[[Block], None]] = {
            "set-up": self._python, "python": self._python, "bash": self._bash, "text": self._text, "diff": self._diff,
            "yaml": lambda block: yaml.safe_load(block.code), "json": lambda block: json.loads(block.code),
        }  # fmt: skip
        sys.modules["page"] = self.module
        try:
            for block in blocks_of(self.path):
                if self._left_out(block):
                    self.printed = None if block.language != "text" else self.printed
                elif block.language not in kinds:
                    raise self._error(block, f"the language is {block.language!r}; expected one of {sorted(kinds)}")
                else:
                    kinds[block.language](block)
        finally:
            del sys.modules["page"]

    def _left_out(self, block: Block) -> bool:
        """Whether the page says why a block is not run. What the reason points at has to exist."""
        reason = block.said.get("not run")
        if reason is None:
            return False
        if len(reason.split()) < 3:
            raise self._error(block, f"'not run: {reason}' is no reason")
        for name in re.findall(r"\b(?:tests|examples|benchmarks|docs)/[\w./-]+\w", reason):
            if not (ROOT / name).exists():
                raise self._error(block, f"there is no {name}")
        return True

    def _python(self, block: Block) -> None:
        if "file" in block.said:
            (self.folder / block.said["file"]).write_text(block.code, encoding="utf-8")
        # Empty lines before it: an error names the line of the page.
        code = compile("\n" * (block.line - 1) + self._smaller(block), str(self.path), "exec", dont_inherit=True)
        out = io.StringIO()
        with redirect_stdout(out):
            exec(code, self.module.__dict__)
        if block.language == "python":
            self.printed = out.getvalue()

    def _bash(self, block: Block) -> None:
        self.printed = ""
        lines = [line for line in self._smaller(block).replace("\\\n", " ").splitlines() if line.strip()]
        wanted = int(block.said.get("exit code", 0))
        for line in lines:
            if line.lstrip().startswith("#"):
                continue
            command = _IN_PROCESS.match(line.partition("  #")[0].strip())
            code, out = _shell(line, self.folder) if command is None else _in_process(command, self.folder)
            self.printed += out
            if code != (wanted if line is lines[-1] else 0):
                raise self._error(block, f"{line!r} ends with {code}:\n{out}")

    def _smaller(self, block: Block) -> str:
        """The code, with what the page says is smaller in the test."""
        code = block.code
        for line in block.said.get("smaller", "").splitlines():
            large, _, small = line.strip().partition(" -> ")
            if large not in code:
                raise self._error(block, f"there is no {large!r} to make smaller")
            code = code.replace(large, small)
        return code

    def _text(self, block: Block) -> None:
        if self.printed is None:
            raise self._error(block, "nothing was run that could have printed this; say '<!-- not run: why -->'")
        self.on_text(block, self.printed.replace(f"{self.folder}/", ""))
        self.printed = None

    def _compare(self, block: Block, printed: str) -> None:
        percent, _, bits = block.said.get("numbers within", "0%").partition("% or ")
        found = difference(block.code, printed, float(percent.rstrip("%")), float(bits or 0))
        if found is not None:
            raise self._error(block, found)

    def _diff(self, block: Block) -> None:
        """What is added is new, and the rest was there before."""
        files = block.said.get("diff", "").split()
        if len(files) != 2:
            raise self._error(block, "between which files? Say '<!-- diff: OLD NEW -->'")
        old, new = ((ROOT / name).read_text(encoding="utf-8").splitlines() for name in files)
        for line in block.code.splitlines():
            text = line[1:]
            if text.strip() in {"", "..."}:
                continue
            if (line[0] != "-") != (text in new) or (line[0] != "+") != (text in old):
                raise self._error(block, f"not so in {files[0]} and {files[1]}: {line!r}")

    def _error(self, block: Block, what: str) -> PageError:
        return PageError(f"{self.path.name}, line {block.line}: {what}")


def _in_process(command: re.Match[str], folder: Path) -> tuple[int, str]:
    """Our own command without the seconds that a new process needs to load PyTorch."""
    given = _shell(command["before"], folder)[1] if command["before"] else ""
    out = io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(out),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode()))),
    ):
        try:
            code = main(shlex.split(command["command"], comments=True)[1:])
        except SystemExit as exit_:  # --help and --version
            code = int(exit_.code or 0)
    if command["file"]:
        (folder / command["file"]).write_text(out.getvalue(), encoding="utf-8")
        return code, ""
    return code, out.getvalue()


def _shell(line: str, folder: Path) -> tuple[int, str]:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    # `python examples/...`, as it is typed in a checkout.
    line = re.sub(r"\bpython (?=examples/)", f"{shlex.quote(sys.executable)} {ROOT}/", line)
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, text=True, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout
