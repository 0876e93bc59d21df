"""`mulligan worker --reload`: a saved file restarts the worker, a mistake in it does not end it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from mulligan import State
from support.proc import is_alive
from support.waiting import until

pytestmark = pytest.mark.processes


def save(file: Path, text: str) -> None:
    """Save as editors do: write a new file and rename it."""
    draft = file.with_suffix(".tmp")
    draft.write_text(text)
    draft.rename(file)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    save(file, text.replace(old, new))


def started(program) -> int:
    return len(re.findall(r"concurrency \d+", program.output))


def test_a_saved_file_restarts_the_worker_with_the_new_code(start, folder, app):
    (folder / "sums.py").write_text("def plus(a, b):\n    return a + b\n")
    edit(folder / "jobs.py", "import time", "import time, sums")
    edit(folder / "jobs.py", "return a + b", "return sums.plus(a, b)")
    program = start("worker", "jobs:app", "--reload", "--concurrency", "3")
    program.wait_for_output("concurrency 3")
    job = app.enqueue("add", {"a": 1, "b": 2})
    assert app.jobs.wait(job.id, 20).result == 3
    edit(folder / "sums.py", "a + b", "100 * (a + b)")
    program.wait_for_output("sums.py has changed: restarting the worker")
    until(lambda: started(program) == 2, 20)
    job = app.enqueue("add", {"a": 1, "b": 2})
    assert app.jobs.wait(job.id, 20).result == 300
    assert program.stop().code == 0


def test_a_running_job_is_given_back_uncharged_and_runs_the_new_code(start, folder, app):
    program = start("worker", "jobs:app", "--reload")
    job = app.enqueue("wait_for", {"path": str(folder / "never")})
    until(lambda: job.refresh().state is State.RUNNING, 20)
    edit(folder / "jobs.py", "while not Path(path).exists():", "while False:")
    done = app.jobs.wait(job.id, 20)
    assert (done.result, done.failures, done.losses) == ("it came", 0, 0)
    assert program.stop().code == 0


@pytest.mark.any_store
@pytest.mark.parametrize("mistake", ["def broken(:\n", "1 / 0\n", "import not_written_yet\n"])
def test_a_mistake_is_printed_and_the_next_save_tries_again(start, folder, app, mistake):
    good = (folder / "jobs.py").read_text()
    program = start("worker", "jobs:app", "--reload")
    program.wait_for_output("concurrency")
    save(folder / "jobs.py", mistake + good)
    output = program.wait_for_output("The next change of a file tries again.")
    assert re.search(r"cannot load jobs:app: (Syntax|ZeroDivision|ModuleNotFound)Error", output)
    assert f'{folder}/jobs.py", line 1' in output  # the traceback
    if "not_written_yet" in mistake:
        (folder / "not_written_yet.py").write_text("")
    else:
        save(folder / "jobs.py", good)
    until(lambda: started(program) == 2, 20)
    job = app.enqueue("add", {"a": 1, "b": 2})
    assert app.jobs.wait(job.id, 20).result == 3
    assert program.stop().code == 0


@pytest.mark.any_store
def test_settings_in_the_code_and_in_the_file_are_read_again(start, folder, app):
    program = start("worker", "jobs:app", "--reload")
    program.wait_for_output("concurrency 10")
    edit(folder / "jobs.py", "Mulligan()", 'Mulligan(settings={"worker.concurrency": 4})')
    program.wait_for_output("concurrency 4")
    (folder / "mulligan.toml").write_text("[worker]\nconcurrency = 5\n")
    program.wait_for_output("concurrency 5")
    (folder / "mulligan.toml").write_text("[worker]\nconcurency = 5\n")
    program.wait_for_output("did you mean")
    (folder / "mulligan.toml").write_text("[worker]\nconcurrency = 6\n")
    program.wait_for_output("concurrency 6")
    assert program.stop().code == 0


@pytest.mark.any_store
def test_a_wrong_name_ends_it_at_once(start, folder, app):
    ended = start("worker", "jbos:app", "--reload").wait_for_exit()
    assert (ended.code, "No module named 'jbos'" in ended.err) == (2, True)


@pytest.mark.any_store
def test_the_worker_ends_with_the_process_that_restarts_it(start, folder, app):
    program = start("worker", "jobs:app", "--reload")
    program.wait_for_output("concurrency")
    (worker,) = children(program.process.pid)
    program.signal(signal.SIGKILL)
    until(lambda: not is_alive(worker), 20)


@pytest.mark.any_store
def test_watching_costs_little(start, folder, app):
    program = start("worker", "jobs:app", "--reload")
    program.wait_for_output("concurrency")
    before = cpu_seconds(program.process.pid)
    time.sleep(3)  # the time over which the cost is measured
    assert cpu_seconds(program.process.pid) - before < 0.1


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
