"""Failures: the inbox and the page of a cause, while it lasts and after its repair."""

from __future__ import annotations

import pytest

from support.app_tools import count_events
from support.dashboard_client import sign_in_with_key, text_of
from support.invoicing import Rates, declare_make_invoice

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def rates():
    return Rates()


@pytest.fixture
def make_invoice(app, rates):
    make_invoice = declare_make_invoice(app, rates)
    count_events(app)
    return make_invoice


@pytest.fixture
def client(app):
    with sign_in_with_key(app) as client:
        yield client


def die(app, make_invoice, jobs=3, owner="acme"):
    make_invoice.options(owner=owner).enqueue_many([{}] * jobs)
    app.run_inline()
    count_events(app)
    return app.failures.groups()[0].fingerprint


def hold(app, make_invoice):
    """Let the guard hold the kind, and discard the few jobs that died before."""
    die(app, make_invoice, 4)
    group = die(app, make_invoice, 10, owner="zenith")
    for job in app.jobs.list("state:dead"):
        app.jobs.discard(job.id, reason="not needed")
    return group


def test_an_operator_reads_the_exception_and_an_owner_the_sentence(app, client, make_invoice):
    group = die(app, make_invoice)
    for path in ("/", "/failures", f"/failures/{group}"):
        page = client.page(path)
        assert "KeyError: 'AT'" in page
        assert "make_invoice · invoicing.py:" in page
        assert "The job's code has an error." in page
    client.sign_in("acme")
    for path in ("/failures", f"/failures/{group}"):
        page = client.page(path)
        assert "The job's code has an error." in page
        assert "invoicing.py" not in page.partition('class="trace"')[0]
        assert "KeyError" not in page.partition('class="trace"')[0]


def test_a_repaired_cause_is_a_full_page_that_says_recovered(app, client, make_invoice, rates):
    group = die(app, make_invoice)
    rates.known = ("AT",)
    app.operations.start("retry", "state:dead", steps=["rest"], rate=1000)
    app.run_inline()
    count_events(app)
    page = text_of(client.page(f"/failures/{group}"))
    assert "KeyError: 'AT' recovered 3 of 3" in page
    assert "in make_invoice" in page
    assert "3 deaths so far" in page
    assert "Last 24 hours 3 dead" in page
    assert "Retry 1" not in page
    assert "Needs attention 0 Recovered 1" in text_of(client.page("/failures"))
    assert "KeyError" not in text_of(client.page("/failures"))
    assert "recovered 3 of 3" in text_of(client.page("/failures", tab="recovered"))


def test_a_cause_for_which_a_kind_is_held_is_in_the_inbox_and_can_be_released(
    app, client, make_invoice
):
    group = hold(app, make_invoice)
    waiting = app.jobs.count("state:queued")
    assert waiting > 0
    banner = client.page("/").partition('class="notices')[2].partition("</ul>")[0]
    assert f'href="/failures/{group}"' in banner
    inbox = text_of(client.page("/failures"))
    assert f"make_invoice is held , {waiting} wait Try one Release held" in inbox
    page = client.page(f"/failures/{group}")
    assert "make_invoice is held." in page
    assert f"{waiting} wait instead of dying" in page
    assert "in <strong>make_invoice</strong>" in page
    client.submit("/kinds/make_invoice/release", back=f"/failures/{group}")
    assert not app.kinds.get("make_invoice").held


def test_one_or_ten_jobs_of_a_cause_are_retried_by_a_button(app, client, make_invoice, rates):
    group = die(app, make_invoice, 15)
    rates.known = ("AT",)
    for jobs, left in (("1", 14), ("10", 4)):
        page = client.page(f"/failures/{group}")
        assert f">Retry {jobs}</button>" in page
        client.submit(f"/failures/{group}/retry", jobs=jobs)
        app.run_inline()
        assert app.jobs.count("state:dead") == left
    assert "Retry all 4 …" in client.page(f"/failures/{group}")
    client.submit(f"/failures/{group}/retry", jobs="999")
    app.run_inline()
    assert app.jobs.count("state:dead") == 4


def test_frames_of_libraries_are_folded_and_each_dead_job_can_be_the_sample(
    app, client, make_invoice
):
    group = die(app, make_invoice)
    newest, *_, oldest = app.jobs.list("state:dead")
    page = client.page(f"/failures/{group}")
    trace = page.partition('class="trace"')[2].partition("</section>")[0]
    folded, _, frame = trace.partition("</details>")
    assert "1 library frame</summary>" in folded
    assert "execute.py" in folded
    assert "in <strong>make_invoice</strong>" in frame
    assert f'href="/jobs/{newest.id}" title="{newest.id}">…{newest.id[-6:]}</a>' in page
    assert "1 of 3" in text_of(page)
    page = client.page(f"/failures/{group}", sample="3")
    assert f'href="/jobs/{oldest.id}" title="{oldest.id}">…{oldest.id[-6:]}</a>' in page
    assert 'aria-label="newer sample"' in page
    assert 'aria-label="older sample"' not in page


def test_a_cause_is_broken_down_by_kind_and_owner(app, client, make_invoice):
    die(app, make_invoice, 2, owner="acme")
    group = die(app, make_invoice, 1, owner="zenith")
    page = text_of(client.page(f"/failures/{group}"))
    assert "Owner acme 2 zenith 1" in page
    assert "2 owners" in page


def test_one_job_of_a_held_kind_is_tried_by_a_button_and_the_result_is_shown(
    app, client, make_invoice, rates
):
    group = hold(app, make_invoice)
    waiting = app.jobs.count("state:queued")
    client.submit("/kinds/make_invoice/try", back=f"/failures/{group}")
    assert "it waits for a worker" in client.page(f"/failures/{group}")
    app.run_inline()
    assert "it failed again (PROGRAMMING_ERROR)" in client.page("/failures")
    assert app.jobs.count("state:queued") == waiting - 1  # the kind allows no retries
    rates.known = ("AT",)
    client.submit("/kinds/make_invoice/try")
    app.run_inline()
    page = text_of(client.page(f"/failures/{group}"))
    assert "it succeeded" in page
    assert "tried one job of make_invoice" in page
    assert app.jobs.count("state:queued") == waiting - 2
    assert app.kinds.get("make_invoice").held


def test_selected_causes_are_muted_resolved_and_retried_together(app, client, make_invoice):
    group = die(app, make_invoice)
    client.submit("/failures", id=group, verb="mute", reason="known")
    assert "Needs attention 0 Recovered 0 Muted 1" in text_of(client.page("/failures"))
    client.submit("/failures", id=group, verb="reopen")
    assert "Preview" in client.submit("/failures", id=group, verb="retry")
    assert "nothing is selected" in client.submit("/failures", verb="mute")


def test_the_inbox_is_sorted_by_a_column_and_shows_owners(app, client, make_invoice):
    die(app, make_invoice, 2)
    die(app, make_invoice, 1, owner="zenith")
    page = client.page("/failures", sort="owners")
    assert 'aria-sort="descending"' in page
    assert "acme +1" in text_of(page)


def test_a_cause_shows_its_source_line_its_arguments_and_what_was_done(app, client, make_invoice):
    group = die(app, make_invoice)
    client.submit(f"/failures/{group}/mute", reason="known since May")
    page = client.page(f"/failures/{group}")
    assert "return dict.fromkeys(rates.known, 1)[country]</p>" in page
    text = text_of(page)
    assert "Worker …" in text
    assert "muted it: known since May" in text
    assert "first death" in text


def test_a_running_retry_is_shown_on_the_row_of_its_cause(app, client, make_invoice):
    group = die(app, make_invoice)
    operation = app.operations.start("retry", f"state:dead group:{group}")
    page = client.page("/failures")
    assert f'href="/operations/{operation.id}">retrying: 0 of 3' in page


def test_jobs_of_a_cause_are_selected_and_discarded_on_its_page(app, client, make_invoice):
    group = die(app, make_invoice, 3)
    page = client.page(f"/failures/{group}")
    assert page.count('name="id"') == 3
    jobs = [job.id for job in app.jobs.list("state:dead")]
    answer = client.submit(
        "/jobs", id=",".join(jobs[:2]), verb="discard", reason="old", back=f"/failures/{group}"
    )
    assert "KeyError: 'AT'" in answer
    assert [job.id for job in app.jobs.list("state:dead")] == jobs[2:]


def test_the_breakdown_shortens_the_ids_of_workers(app, client, make_invoice):
    group = die(app, make_invoice)
    worker = app.jobs.attempts(app.jobs.list("state:dead")[0].id)[0].worker
    breakdown = client.page(f"/failures/{group}").partition('class="card breakdown"')[2]
    assert worker not in breakdown
    assert f"…{worker[-6:]}" in breakdown
