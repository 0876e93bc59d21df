"""The types users meet: a wrong call is an error before it is run, a right one passes under --strict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CALLS = Path(__file__).with_name("calls.py")


def test_wrong_calls_are_errors_and_right_ones_are_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    said = re.findall(r"calls\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    found = {(int(line), code) for line, code in said}
    wanted = {
        (number, match[1])
        for number, line in enumerate(CALLS.read_text().splitlines(), 1)
        if (match := re.search(r"# wrong: ([\w-]+)$", line))
    }
    assert found == wanted, done.stdout + done.stderr
    assert len(wanted) > 20
