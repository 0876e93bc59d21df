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
    assert "This link is no longer valid." in owner.get(link[:-1]).text
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
    assert "It is paused on our side and continues by itself." in page
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


def test_the_owner_reads_a_title_a_reference_and_the_state_in_plain_words(shop, owner):
    @shop.job(name="make_invoice", title="Invoice {order}", uses="gateway")
    def make_invoice(order: int):
        return {"public_url": "https://shop.example/invoices/7.pdf", "path": f"/srv/{SECRET}"}

    with shop.store.begin() as tx:
        publish_manifest(tx, shop.manifest("here"))
    job = shop.enqueue("make_invoice", {"order": 7}, owner="acme")
    link = shop.status.link(job)
    shop.dependencies.open("gateway", reason="maintenance")
    paused = owner.get(link).text
    shop.dependencies.close("gateway")
    shop.run_inline()
    done = owner.get(link).text

    assert "<h1>Invoice 7</h1>" in paused
    assert "paused by us" in paused
    assert f"<code>{job.id[-6:]}</code>" in done
    assert "It is done." in done
    assert "tried again" not in done
    assert 'href="https://shop.example/invoices/7.pdf"' in done
    assert SECRET not in done
    for ours in ('id="theme"', 'id="pulse"', ">Mulligan<", "make_invoice"):
        assert ours not in done


def test_status_pages_carry_the_brand_of_the_app(shop, tmp_path):
    logo = tmp_path / "logo.svg"
    logo.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    brand = {"web.brand.name": "Acme", "web.brand.color": "#0a6847", "web.brand.logo": str(logo)}
    settings = shop.settings.with_values(brand, "test")
    link = shop.status.link(shop.enqueue("convert", {"page": 1}))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert "Acme</span>" in client.get(link).text
        assert client.get("/brand/style.css").text == ":root { --brand: #0a6847; }\n"
        assert client.get("/brand/logo").headers["content-type"] == "image/svg+xml"
        assert client.get("/brand/passwd").status_code == 404


def test_the_owner_asks_for_an_email_when_the_job_is_done(shop):
    job = shop.enqueue("convert", {"page": 1}, owner="acme")
    link = shop.status.link(job)
    with TestClient(create_app(shop.settings), base_url="http://localhost") as client:
        assert "Tell me when it is done" not in client.get(link).text
        assert client.post(f"{link}/notify", data={"email": "a@b.example"}).status_code == 404
    settings = shop.settings.with_values({"mail.host": "smtp.example"}, "test")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert "Tell me when it is done" in client.get(link).text
        for address in ("first@example.com", "second@example.com"):
            page = client.post(f"{link}/notify", data={"email": address}).text
            assert "You will get an e-mail when it is done." in page
        assert "not an e-mail address" in client.post(f"{link}/notify", data={"email": "x"}).text

    found = [one for one in shop.subscriptions.list() if one.name.startswith("status page")]
    assert [(one.owner, one.filter) for one in found] == [("acme", f"job:{job.id}")]


def test_the_state_the_sentence_and_the_bar_of_a_batch_agree(shop, owner):
    with shop.batch("autumn") as batch:
        for page in (1, 2, 0):
            shop.enqueue("convert", {"page": page}, batch=batch)
    link = shop.status.link(batch)
    page = owner.get(link).text
    assert "0 of 3 are done." in page
    assert "working" in page
    shop.run_inline()
    page = owner.get(link).text
    assert "2 of 3 succeeded, 1 failed." in page
    assert "partly failed" in page
    assert "<progress" not in page  # one bar


def test_a_batch_that_may_grow_is_as_far_as_its_parts(shop, owner):
    batch = shop.batch("open")
    for page in (1, 0):
        shop.enqueue("convert", {"page": page}, batch=batch)
    shop.run_inline()
    assert shop.batches.get(batch.id).finished_at is None
    page = owner.get(shop.status.link(batch)).text
    assert "1 of 2 succeeded, 1 failed." in page
    assert "working" not in page
