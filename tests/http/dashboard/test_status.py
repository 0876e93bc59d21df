"""The status page of one job or batch, opened by a signed link."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan import Fail, Mulligan
from mulligan.core.durations import SECOND
from mulligan.core.errors import NotFound
from mulligan.http.app import create_app
from mulligan.manifest.declared import publish_manifest

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

SECRET = "s3cret-place"


@pytest.fixture
def shop(app):
    """An app with one kind that fails for an invalid page number."""

    @app.job(name="convert", editable="page")
    def convert(page: int):
        if page < 1:
            return Fail(
                "BAD_PAGE",
                f"no page at /srv/{SECRET}",
                public="This page does not exist.",
                final=True,
            )
        return page

    app.store.prepare()
    return app


@pytest.fixture
def owner(shop):
    with TestClient(
        create_app(shop.settings), base_url="http://localhost", follow_redirects=False
    ) as client:
        yield client


def test_the_status_page_shows_one_sentence_and_nothing_internal(shop, owner):
    job = shop.enqueue("convert", {"page": 0}, owner="acme")
    link = shop.status.link(job)
    assert "It is waiting to start." in owner.get(link).text
    shop.run_inline()
    page = owner.get(link).text
    assert "This page does not exist." in page
    assert "Try again" in page
    for private in (
        SECRET,
        "BAD_PAGE",
        "Traceback",
        "/failures",
        job.id + "/retry",
        shop.settings.database_url,
    ):
        assert private not in page


def test_the_owner_edits_allowed_fields_and_retries_once(shop, owner):
    job = shop.enqueue("convert", {"page": 0})
    shop.run_inline()
    link = shop.status.link(job)
    owner.post(link, data={"page": "7", "kind": "other"})
    assert (shop.jobs.get(job.id).generation, shop.jobs.get(job.id).payload) == (2, {"page": 7})
    shop.run_inline()
    page = owner.get(link).text
    assert "It is done." in page
    assert "Try again" not in page
    assert (
        "cannot be tried again"
        in owner.get(owner.post(link, data={"again": "1"}).headers["location"]).text
    )


@pytest.mark.security("A27")
def test_a_status_link_opens_one_object_until_it_expires(shop, owner):
    job = shop.enqueue("convert", {"page": 0})
    other = shop.enqueue("convert", {"page": 0})
    shop.run_inline()
    link = shop.status.link(job)
    for wrong in (
        link.replace(job.id, other.id),
        link[:-1],
        link + "x",
        "/status/",
        "/status/j--r-.x",
        "/status/%00",
    ):
        assert owner.get(wrong).status_code == 404
    read_only = shop.status.link(job, retry=False)
    assert "Try again" not in owner.get(read_only).text
    owner.post(read_only, data={"again": "1"})
    assert (
        owner.post(link, data={"again": "1"}, headers={"origin": "http://evil.example"}).status_code
        == 403
    )
    assert shop.jobs.get(job.id).generation == 1
    short = shop.status.link(job, expires=60)
    assert owner.get(short).status_code == 200
    shop.store.shift_clock(61 * SECOND)
    assert owner.get(short).status_code == 404
    assert owner.get(link).status_code == 200


@pytest.mark.security("A27")
def test_retries_by_status_links_share_the_owners_limit(shop):
    limits = shop.settings.limits.model_copy(update={"retries_by_hand": "1/h"})
    settings = shop.settings.model_copy(update={"limits": limits})
    jobs = [
        shop.enqueue("convert", {"page": 0}, owner=owner) for owner in ("acme", "acme", "globex")
    ]
    shop.run_inline()
    with TestClient(
        create_app(settings), base_url="http://localhost", follow_redirects=False
    ) as client:
        for job in jobs:
            client.post(shop.status.link(job), data={"page": "7"})
    assert [shop.jobs.get(job.id).generation for job in jobs] == [2, 1, 2]


def test_a_batch_has_a_status_page(shop, owner):
    with shop.batch("spring", owner="acme") as batch:
        for page in (0, 1, 2):
            shop.enqueue("convert", {"page": page}, batch=batch)
    link = shop.status.link(batch.refresh())
    assert "0 of 3 are done." in owner.get(link).text
    shop.run_inline()
    assert "2 of 3 succeeded, 1 failed." in owner.get(link).text
    assert owner.post(link, data={"again": "1"}).status_code == 303
    assert shop.batches.get(batch.id).generation == 2


def test_a_status_link_is_invalid_in_another_database(shop, tmp_path):
    job = shop.enqueue("convert", {"page": 1})
    other = Mulligan(f"sqlite:///{tmp_path}/other.db")
    other.open()
    with pytest.raises(NotFound):
        other.status.verify(shop.status.link(job).rpartition("/")[2])
    other.close()


def test_the_status_page_explains_waits_without_internal_names(shop, owner):
    shop.job(name="call", uses="gateway")(lambda: None)
    link = shop.status.link(shop.enqueue("call"))
    assert "It is waiting to start." in owner.get(link).text
    assert "no worker" not in owner.get(link).text
    assert "It starts in 2 h." in owner.get(shop.status.link(shop.enqueue("call", delay=7200))).text
    shop.dependencies.open("gateway", reason=SECRET)
    page = owner.get(link).text
    assert "a service it needs is not available" in page
    assert SECRET not in page
    assert "gateway" not in page


def test_the_retry_form_parses_json_and_hides_secret_fields(shop, owner):
    @shop.job(name="draw", editable=("title", "sizes", "token"))
    def draw(title: str, sizes: list[int], token: str) -> Fail:
        return Fail("NO", "no", final=True)

    with shop.store.begin() as tx:
        publish_manifest(tx, shop.manifest("here"))
    job = shop.enqueue("draw", {"title": "7", "sizes": [1, 2], "token": "s3cret"})
    shop.run_inline()
    link = shop.status.link(job)
    page = owner.get(link).text
    assert 'name="title" value="7"' in page
    assert 'name="sizes" value="[1, 2]"' in page
    assert "token" not in page
    owner.post(link, data={"title": "8", "sizes": "[3]", "token": "x"})
    assert shop.jobs.get(job.id).payload == {"title": "8", "sizes": [3], "token": "s3cret"}
