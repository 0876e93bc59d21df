"""A character that cannot be encoded breaks no list, page, event or audit, whoever wrote it."""

from __future__ import annotations

import json

import pytest

from mulligan import Cancel, Context, Fail, Park
from mulligan.manifest.declared import publish_manifest
from support.app_tools import run_job

BAD = "a\ud800b\x00c\udfff"


@pytest.fixture
def jobs(app):
    """Jobs with such a text in every place where a handler or a caller can leave one."""

    @app.job(name="echo")
    def echo(ctx: Context, text: str) -> dict[str, str]:
        ctx.progress(0.5, text)
        ctx.checkpoint("seen", text)
        return {text: text}

    @app.job(name="ends")
    def ends(how: str, text: str = BAD) -> object:
        ends_by = {
            "fail": lambda: Fail("BAD_FILE", text, public=text, detail=text, final=True),
            "park": lambda: Park(text, choices=(text,)),
            "cancel": lambda: Cancel(text),
        }
        return ends_by[how]()

    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("site:app"))
    made = [run_job(app, echo.enqueue(text=BAD))]
    made += [run_job(app, ends.enqueue(how)) for how in ("fail", "park", "cancel")]
    queued = echo.options(delay=1000).enqueue(text=BAD)
    app.jobs.cancel(queued.id, reason=BAD)
    app.jobs.retry(made[1].id, reason=BAD)
    app.queues.pause("default", reason=BAD)
    app.queues.resume("default", reason=BAD)
    return [*made, queued]


def test_a_strange_character_breaks_no_api_call(app, client, key, jobs):
    paths = ["/jobs", "/failures", "/audit", "/queues", "/kinds", "/insight"]
    for job in jobs:
        paths += [f"/jobs/{job.id}{part}" for part in ("", "/attempts", "/events", "/explain")]
    for headers in (key(), key("*", "viewer")):
        for path in paths:
            answer = client.get(f"/api/v1{path}", headers=headers)
            assert answer.status_code == 200, (path, answer.text)
            json.loads(answer.content.decode()) if answer.content else None
    assert (
        "a\ufffdb"
        in json.loads(client.get(f"/api/v1/jobs/{jobs[0].id}", headers=key()).text)["payload"][
            "text"
        ]
    )


def test_a_strange_character_breaks_no_page(app, client, key, jobs):
    client.post("/sign-in", data={"key": key()["Authorization"].split()[1]})
    for path in (
        "/",
        "/jobs",
        "/failures",
        "/audit",
        "/queues",
        *(f"/jobs/{job.id}" for job in jobs),
    ):
        assert client.get(path).status_code in {200, 404}, path


def test_a_strange_character_breaks_no_python_list(app, jobs):
    assert len(app.jobs.list("kind:echo,ends")) == len(jobs)
    for job in jobs:
        app.jobs.explain(job.id, private=True)
        app.jobs.history(job.id)
    assert app.events.list()
