"""The mixed failures and mixed jobs of the benchmark, and the options that change them."""

from __future__ import annotations

import importlib
import json
import traceback
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from bench.peers import cases, command
from bench.peers.contenders import BY_NAME, OURS
from bench.peers.run import Plan
from bench.peers.sandbox import AGENTS

from mulligan import Mulligan
from mulligan.config import read_settings
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts

JOBS = 600


@pytest.fixture
def agent_module(monkeypatch):
    """Import modules that run in the environment of an agent."""
    monkeypatch.syspath_prepend(str(AGENTS))
    return importlib.import_module


def failures_of(mix, seed: int) -> list[Exception]:
    failures = []
    for i in range(JOBS):
        with pytest.raises(Exception) as caught:
            mix.fail(i, seed)
        failures.append(caught.value)
    return failures


def chain_length(error: BaseException | None) -> int:
    return 0 if error is None else 1 + chain_length(error.__cause__ or error.__context__)


def test_every_mixed_failure_differs_and_the_seed_determines_all_of_them(agent_module):
    mix = agent_module("failure_mix")
    texts = ["".join(traceback.format_exception(error)) for error in failures_of(mix, 1)]
    assert len(set(texts)) == JOBS
    again = [str(error) for error in failures_of(mix, 1)]
    assert again == [str(error) for error in failures_of(mix, 1)]
    others = {str(error) for error in failures_of(mix, 2)}
    assert len(others & set(again)) < JOBS / 5


def test_mixed_failures_have_many_types_long_chains_and_deep_traces(agent_module):
    failures = failures_of(agent_module("failure_mix"), 3)
    assert len({type(error) for error in failures}) >= 18
    assert max(map(chain_length, failures)) >= 4
    assert sum(chain_length(error) >= 3 for error in failures) > JOBS / 10
    frames = [len(traceback.extract_tb(error.__traceback__)) for error in failures]
    assert sum(count >= 25 for count in frames) > JOBS / 4
    assert any(not str(error).isascii() for error in failures)


def test_mulligan_retries_every_mixed_failure_without_a_wait_that_a_server_asks_for(agent_module):
    for error in failures_of(agent_module("failure_mix"), 4):
        failure = classify_facts(capture(error))
        assert (failure.retryable, failure.retry_after) == (True, None), error


def test_mixed_jobs_have_all_kinds_and_the_seed_determines_them(agent_module):
    mix = agent_module("job_mix")
    calls = list(mix.draw_calls(10_000, 5))
    assert calls == list(mix.draw_calls(10_000, 5))
    assert calls != list(mix.draw_calls(10_000, 6))
    payloads = [payload for call in calls for payload in call.payloads]
    assert [payload["i"] for payload in payloads] == list(range(10_000))
    assert len({call.kind for call in calls}) == mix.KINDS
    assert len({call.owner for call in calls}) == mix.OWNERS
    sizes = [len(json.dumps(payload, ensure_ascii=False).encode()) for payload in payloads]
    assert sum(sizes) / len(sizes) == pytest.approx(1000, rel=0.15)
    memberships = Counter(call.membership for call in calls)
    assert memberships[mix.Membership.UNIQUE] == memberships[mix.Membership.BATCH] == 200


def test_mixed_jobs_are_enqueued_with_their_options(agent_module, ready_sqlite_url, tmp_path):
    environ = {"MULLIGAN_DATABASE_URL": ready_sqlite_url}
    app = Mulligan(settings=read_settings(environ=environ, file=tmp_path / "none.toml"))
    mix = agent_module("job_mix")
    with closing(app):
        mix.enqueue(app, mix.declare_kinds(app), 300, 1)
        jobs = app.jobs.list(limit=300)
    assert len(jobs) == 300
    assert len({job.queue for job in jobs}) == mix.QUEUES
    assert sum(job.unique_key is not None for job in jobs) == 60
    assert sum(job.batch_id is not None for job in jobs) == 60


def test_the_cost_of_a_job_does_not_contain_the_start_of_the_worker(monkeypatch):
    class TimedSandbox:
        """A worker whose start takes 2 s and whose jobs take 150 µs each."""

        def __init__(self, *_):
            self.jobs = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def create_marks(self, n):
            self.jobs = n

        def cpu_seconds(self):
            return 2 + self.jobs * 150e-6

    monkeypatch.setattr(cases, "Sandbox", TimedSandbox)
    monkeypatch.setattr(cases, "_measure_drain", lambda *_: {"jobs/s": 1000.0})
    figures = cases.mixed_failures(BY_NAME["huey"], 1.0)
    assert figures["CPU, µs/job"] == pytest.approx(150)


def test_options_of_a_run_reach_its_agents_and_workers():
    parse = command._arguments
    assert command._run_environ(parse(["mixed"])) == {"BENCH_SEED": "1"}
    environ = command._run_environ(parse(["--seed", "7", "--mix", "mix.py", "--no-fast"]))
    assert environ == {
        "BENCH_SEED": "7",
        "BENCH_MIX": str(Path("mix.py").resolve()),
        "MULLIGAN_WORKER__FAST": "false",
    }


def test_another_mix_replaces_ours(agent_module, tmp_path):
    path = tmp_path / "other.py"
    path.write_text("def fail(i, seed):\n    raise LookupError(f'{seed}: {i}')\n")
    bodies = agent_module("bodies")
    with pytest.raises(LookupError, match="7: 3"):
        bodies._load_mix(str(path)).fail(3, 7)
    assert bodies._load_mix("") is agent_module("failure_mix")


def test_only_mulligan_runs_mixed_jobs():
    plan = Plan([cases.CASES["mixed jobs"]], list(BY_NAME.values()), 1, 1.0, {})
    names = [one.name for _, _, contenders, _ in plan.turns() for one in contenders]
    assert sorted(names) == sorted(OURS.values())
