"""Public types: mypy and pyright accept correct calls and report each wrong one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = Path(__file__).with_name("calls.py")
WRONG = {
    number: match[1]
    for number, line in enumerate(CALLS.read_text().splitlines(), 1)
    if (match := re.search(r"# wrong: ([\w-]+)$", line))
}


def run_checker(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=folder
    )
    # Exit code 1: type errors were found. 2 would be an error of the checker itself.
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_the_examples_contain_wrong_calls():
    assert len(WRONG) > 30


def test_mypy_finds_each_wrong_call_and_nothing_else(tmp_path):
    output = run_checker(
        tmp_path, "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(CALLS)
    )
    found = re.findall(r"calls\.py:(\d+): error: .*\[([\w-]+)\]$", output, re.MULTILINE)
    assert {(int(line), code) for line, code in found} == set(WRONG.items()), output


@pytest.mark.slow
def test_pyright_finds_each_wrong_call_and_nothing_else(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS.read_text())
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"include": ["calls.py"], "typeCheckingMode": "strict"})
    )
    output = run_checker(
        tmp_path,
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    )
    found = json.loads(output)["generalDiagnostics"]
    lines = [diagnostic["range"]["start"]["line"] + 1 for diagnostic in found]
    assert sorted(set(lines)) == sorted(WRONG), "\n".join(
        f"{line}: {each['message']}" for line, each in zip(lines, found, strict=True)
    )
