"""Whatever is raised ends as a stored failure, with the same code on both stores."""

from __future__ import annotations

import json

from mulligan import Policy, State
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import FACTS_KEY
from support.app_tools import assert_other_jobs_run, error_code, load_attempts
from support.hostile import HOSTILE


def handler(make):
    def run():
        raise make()

    return run


def test_a_hundred_hostile_failures_are_classified_correctly(app):
    """The expected code comes from the rules alone, without a store: so it is the same on each."""
    assert len(HOSTILE) >= 100
    once = Policy(max_retries=0)
    kinds = [
        app.job(name=str(number), policy=once)(handler(make))
        for number, make in enumerate(HOSTILE.values())
    ]
    jobs = {name: kind.enqueue() for name, kind in zip(HOSTILE, kinds, strict=True)}
    app.run_inline()
    for name, job in jobs.items():
        expected = classify_facts(capture(HOSTILE[name]()))
        done = job.refresh()
        (attempt,) = load_attempts(app, done)
        assert (name, done.state, error_code(done)) == (name, State.DEAD, expected.code)
        assert attempt.fingerprint.startswith("v2-")
        stored = json.loads(attempt.private)
        assert "\0" not in json.dumps(stored.pop(FACTS_KEY, {}), ensure_ascii=False)
        assert all(
            isinstance(text, str) and len(text) <= 8192 and "\0" not in text
            for text in stored.values()
        )
        assert json.loads(attempt.evidence).items() <= dict(expected.evidence).items()
    assert_other_jobs_run(app)


def test_text_from_an_attacker_does_not_override_structural_facts(app):
    shouted = "404 timeout permission denied 503 quota exceeded out of memory"

    @app.job(policy=Policy(max_retries=0))
    def shouts():
        raise KeyError(shouted)

    job = shouts.enqueue()
    app.run_inline()
    assert error_code(job.refresh()) == "PROGRAMMING_ERROR"
