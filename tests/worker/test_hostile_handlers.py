"""Whatever is raised ends as a stored failure, with the same code on both stores."""

from __future__ import annotations

import json

from mulligan import Policy, State
from mulligan.failures.capture import capture
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import FACTS
from support.app_tools import attempts_of, code_of, works
from support.hostile import HOSTILE


def handler(make):
    def run():
        raise make()

    return run


def test_a_hundred_kinds_of_hostile_failures_end_as_what_they_are(app):
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
        (attempt,) = attempts_of(app, done)
        assert (name, done.state, code_of(done)) == (name, State.DEAD, expected.code)
        assert attempt.fingerprint.startswith("v2-")
        stored = json.loads(attempt.private)
        assert "\0" not in json.dumps(stored.pop(FACTS, {}), ensure_ascii=False)
        assert all(
            isinstance(text, str) and len(text) <= 8192 and "\0" not in text
            for text in stored.values()
        )
        assert json.loads(attempt.evidence).items() <= dict(expected.evidence).items()
    works(app)


def test_a_text_of_an_attacker_does_not_steer_what_structure_says(app):
    shouted = "404 timeout permission denied 503 quota exceeded out of memory"

    @app.job(policy=Policy(max_retries=0))
    def shouts():
        raise KeyError(shouted)

    job = shouts.enqueue()
    app.run_inline()
    assert code_of(job.refresh()) == "PROGRAMMING_ERROR"
