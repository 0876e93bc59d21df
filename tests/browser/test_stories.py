"""Typical tasks in a real browser with a real server and real workers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from support.waiting import until

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]


def cause_row(page, sentence):
    """Return the row of the cause of which owners read this sentence."""
    return page.locator(".groups tbody tr", has=page.locator(f"a[title*='{sentence}']"))


def test_an_operator_retries_one_ten_and_all_of_400_jobs_with_one_cause(site, open_browser):
    site.fills("upper", 400)
    page = open_browser().page
    cause = cause_row(page, "The upper shelf could not be read.")
    expect(cause.locator(".count")).to_have_text("400", timeout=60_000)
    cause.locator("th").get_by_role("link").click()
    expect(page.locator(".facts-line")).to_contain_text("400 dead jobs")
    site.happens("fixed-upper")

    group = page.url
    page.locator(".jobs tbody tr").first.get_by_role("link").click()
    expect(page.locator("main")).to_contain_text("A retry runs it as soon as a worker is free")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("h1 .badge")).to_contain_text("succeeded")

    page.goto(group)
    page.get_by_role("button", name="Retry 10").click()
    until(lambda: site.app.jobs.count("code:UPPER_GONE") == 389, 60, "ten were retried")
    page.goto(group)
    expect(page.locator(".activity")).to_contain_text("retried 10 jobs: 10 recovered")
    page.get_by_role("link", name="Retry all 389").click()
    expect(page.locator("h1")).to_contain_text("nothing is changed yet")
    expect(page.locator(".lead")).to_contain_text("389 jobs")
    page.get_by_label("Type 389").fill("389")
    page.get_by_label("Rate limit").fill("100/s")
    page.get_by_label("Reason").fill("the disk is back")
    page.get_by_role("button", name="Retry 389 jobs").click()
    expect(page.locator("h1 .badge")).to_contain_text("finished", timeout=60_000)
    expect(page.locator(".lead")).to_contain_text("389")
    page.goto(f"{site.home}/failures?filter=code:UPPER_GONE")
    expect(page.locator(".groups")).to_have_count(0)
    assert site.app.jobs.count("state:succeeded kind:convert") >= 400


def test_a_parked_job_is_released_with_a_choice(site, open_browser):
    job = site.app.enqueue("publish", {"post": "spring"})
    page = open_browser().page
    page.locator(f"a[href$='{job.id}']").click()
    expect(page.locator(".verdict")).to_contain_text("Somebody must approve this post")
    page.get_by_text("Release …").click()
    page.get_by_label("Choice").select_option("drop")
    page.get_by_role("button", name="Release").click()
    expect(page.locator("h1 .badge")).to_contain_text("succeeded")
    assert site.app.jobs.get(job.id).result == "drop"


def test_a_breaker_is_opened_and_closed_manually_and_held_jobs_continue(site, open_browser):
    person = open_browser()
    page = person.go("/dependencies")
    page.get_by_text("Open …").click()
    page.get_by_label("Reason: Open").fill("they told us")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("tbody .badge")).to_contain_text("down")
    for order in range(5):
        site.app.enqueue("charge", {"order": order})
    expect(page.locator("td[data-name=held]")).to_have_text("5")
    page.get_by_text("Close …").click()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("td[data-name=held]")).to_have_text("0")
    person.go("/jobs?filter=kind:charge")
    expect(page.locator(".badge", has_text="succeeded")).to_have_count(5)


def test_an_owner_edits_a_field_on_the_status_page_and_retries(site, open_browser):
    job = site.app.enqueue("draw", {"page": 0}, owner="acme")
    site.app.jobs.wait(job.id, timeout=20)
    page = open_browser(signed_in=False).go(site.app.status.link(job))
    expect(page.locator(".lead")).to_have_text("This page does not exist.")
    page.get_by_label("page").fill("7")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("main .badge")).to_contain_text("done")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    assert site.app.jobs.get(job.id).result == "page 7"


def test_a_live_update_keeps_the_selection(site, open_browser):
    job = site.app.enqueue("encode", {"clip": 1})
    other = site.app.enqueue("publish", {"post": "spring"})
    page = open_browser().go("/jobs")
    row = page.locator("tr", has=page.get_by_role("link", name="encode"))
    expect(row.locator(".badge")).to_contain_text("running")
    selected = page.locator(f"input[value='{other.id}']")
    selected.check()
    page.evaluate("window.witness = 1")
    site.happens("encoded-1")
    expect(row.locator(".badge")).to_contain_text("succeeded", timeout=5_000)
    expect(selected).to_be_checked()
    assert page.evaluate("window.witness") == 1, "the page was loaded again"
    assert site.app.jobs.get(job.id).result == "encoded"


def test_an_event_during_a_live_update_is_not_missed(site, open_browser):
    site.app.enqueue("encode", {"clip": 2})
    page = open_browser().go("/jobs?filter=kind:encode")
    badge = page.locator("tbody tr").first.locator(".badge")
    expect(badge).to_contain_text("running")
    page.evaluate(
        "(new EventSource('/live')).addEventListener('job.succeeded', () => { window.heard = true; })"
    )
    statuses = []

    def slow(route):
        """Let the job succeed after the server has read its page, before the browser gets it."""
        answer = route.fetch()
        if not statuses:
            statuses.append(answer.status)
            site.happens("encoded-2")
            until(lambda: page.evaluate("window.heard"), 8, "the event in the browser")
        route.fulfill(response=answer)

    page.route("**/jobs?filter=kind:encode", slow)
    site.app.enqueue("charge", {"order": 77})  # an event, so that the page reloads itself
    expect(badge).to_contain_text("succeeded", timeout=8_000)
    page.unroute_all(behavior="ignoreErrors")
    assert statuses == [200]


def test_a_link_signs_in_once_and_signing_out_ends_the_session(site, open_browser):
    link = site.link()
    person = open_browser(signed_in=False)
    page = person.sign_in(link)
    page.locator("#account summary").click()
    expect(page.get_by_text("admin · *")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    person.expected_errors = ("401",)
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    person.go("/jobs")
    assert "/sign-in" in page.url


def test_rows_are_selected_and_retried_with_the_keyboard(site, open_browser):
    site.fills("lower", 3)
    until(lambda: site.app.jobs.count("code:LOWER_GONE") == 3, 20, "three dead jobs")
    person = open_browser()
    page = person.go("/jobs?filter=code:LOWER_GONE")
    keys = page.keyboard
    keys.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    for key in "jjk":
        keys.press(key)
    expect(page.locator("tbody tr").first).to_have_attribute("data-at", "")
    keys.press("x")
    expect(page.locator("tbody tr").first.get_by_role("checkbox")).to_be_checked()
    keys.press("r")
    expect(page.get_by_text("1 of 1 done")).to_be_visible()
    until(
        lambda: [job.generation for job in site.app.jobs.list("code:LOWER_GONE")] == [2, 1, 1],
        20,
        "one was retried",
    )
    expect(page.locator("#pulse")).to_contain_text("live")  # the new page listens
    keys.press("/")
    page.keyboard.type("state:succeeded")
    keys.press("Enter")
    page.wait_for_url("**/jobs?filter=state%3Asucceeded")


def test_keys_work_as_soon_as_the_help_is_closed(site, open_browser):
    """The browser moves the focus out of a closed dialog only with the next frame."""
    person = open_browser()
    page = person.go("/queues")
    person.page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("""() => {
        document.getElementById("keys").close();
        const key = new KeyboardEvent("keydown", { key: "j", bubbles: true });
        document.activeElement.dispatchEvent(key);
    }""")
    expect(page.locator("table[data-rows] tbody tr").first).to_have_attribute("data-at", "")


def test_everything_works_without_javascript(site, open_browser):
    site.fills("middle", 3)
    parked = site.app.enqueue("publish", {"post": "spring"})
    until(lambda: site.app.jobs.count("code:MIDDLE_GONE") == 3, 20, "three dead jobs")
    until(lambda: site.app.jobs.get(parked.id).state == "parked", 20, "a question")
    site.happens("fixed-middle")
    page = open_browser(scripts=False).go("/")
    cause = cause_row(page, "The middle shelf could not be read.")
    cause.locator("th").get_by_role("link").click()
    page.get_by_role("link", name="Retry all 3").click()
    page.get_by_label("Reason").fill("the disk is back")
    page.get_by_role("button", name="Retry 3 jobs").click()
    until(lambda: site.app.operations.list()[0].state == "finished", 30, "a finished operation")
    page.reload()
    expect(page.locator("h1 .badge")).to_contain_text("finished")
    page.goto(f"{site.home}/jobs/{parked.id}")
    page.get_by_text("Release …").click()
    page.get_by_label("Choice").select_option("publish")
    page.get_by_role("button", name="Release").click()
    assert until(lambda: site.app.jobs.get(parked.id).result, 20, "a decision") == "publish"
    page.goto(f"{site.home}/queues")
    for verb, paused in (("Pause", True), ("Resume", False)):
        page.get_by_text(f"{verb} …").first.click()
        page.get_by_label(f"Reason: {verb}").first.fill("lunch")
        page.get_by_role("button", name=verb).first.click()
        assert site.app.queues.get("default").paused == paused
    page.get_by_role("searchbox").fill("code:MIDDLE_GONE state:dead")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No matching jobs")).to_be_visible()
    page.locator("#account summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def wait_for_refresh(site, page):
    """Cause an event, and wait until the page has read its content again."""
    with page.expect_response(lambda answer: "x-mulligan-live" in answer.request.headers):
        site.app.enqueue("charge", {"order": 1})
    expect(page.locator("#pulse")).to_have_class("live")


def test_the_answer_of_a_form_stays_after_live_refreshes(site, open_browser):
    job = site.app.enqueue("publish", {"post": "autumn"})
    page = open_browser().go(f"/jobs/{job.id}")
    page.get_by_text("Share …").click()
    page.get_by_role("button", name="Link for its owner").click()
    link = page.locator(".flash a")
    expect(link).to_have_attribute("href", re.compile(r"^http://.*/status/"))
    for _ in range(2):
        wait_for_refresh(site, page)
    expect(page.locator(".flash")).to_contain_text("Status page for its owner")
    link.click()
    expect(page.locator("main")).not_to_contain_text("not found")


def test_the_table_of_a_chart_stays_open_after_live_refreshes(site, open_browser):
    site.app.jobs.wait(site.app.enqueue("charge", {"order": 1}).id, timeout=20)
    page = open_browser().go("/")
    summary = page.get_by_text("As a table").first
    until(lambda: page.reload() and summary.count(), 20, "a chart")
    summary.click()
    for _ in range(2):
        wait_for_refresh(site, page)
    expect(page.locator("details:has-text('As a table')").first).to_have_attribute("open", "")


def test_the_key_r_retries_the_marked_row(site, open_browser):
    site.happens("fixed-lower")
    job = site.app.enqueue("draw", {"page": 0})
    site.app.jobs.wait(job.id, timeout=20)
    page = open_browser().go("/jobs?filter=state:dead+kind:draw")
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.locator(".flash")).to_contain_text("1 of 1 done")


def test_anything_that_is_pasted_into_the_search_box_finds_the_job(site, open_browser):
    job = site.app.enqueue("draw", {"page": 0}, owner="acme")
    site.app.jobs.wait(job.id, timeout=20)
    page = open_browser().page
    for pasted in (job.id, job.id[-6:], "draw", "acme", "page:0"):
        page.get_by_label("Find jobs").fill(pasted)
        page.keyboard.press("Enter")
        found = page.locator(f"a[href$='{job.id}'], code:has-text('{job.id}')")
        expect(found.first).to_be_visible()


def test_dead_jobs_cannot_be_cancelled_all_at_once(site, open_browser):
    job = site.app.enqueue("draw", {"page": 0})
    site.app.jobs.wait(job.id, timeout=20)
    page = open_browser().go("/jobs?filter=state:dead")
    expect(page.get_by_role("link", name="Retry all")).to_be_visible()
    expect(page.get_by_role("link", name="Cancel all")).to_have_count(0)


def test_the_search_box_completes_fields_and_values_with_the_keyboard(site, open_browser):
    site.app.jobs.wait(site.app.enqueue("charge", {"order": 1}).id, timeout=20)
    page = open_browser().go("/queues")
    page.keyboard.press("Control+k")
    page.keyboard.type("kind:cha")
    option = page.get_by_role("option", name="charge")
    expect(option).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(option).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Find jobs")).to_have_value("kind:charge ")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?filter=kind%3Acharge*")
    page.get_by_role("button", name="Save this view").click()
    page.goto(f"{site.home}/jobs")
    page.get_by_role("link", name="kind:charge", exact=True).click()
    page.wait_for_url("**/jobs?filter=kind%3Acharge*")


def test_all_rows_of_a_page_are_selected_by_one_box_and_stay_selected(site, open_browser):
    jobs = [site.app.enqueue("draw", {"page": 0}) for _ in range(2)]
    for job in jobs:
        site.app.jobs.wait(job.id, timeout=20)
    page = open_browser().go("/jobs?filter=state:dead+kind:draw")
    bar = page.locator(".selected-bar")
    expect(bar).to_be_hidden()
    page.get_by_label("select all rows").check()
    expect(bar).to_be_visible()
    boxes = page.locator("input[name=id]")
    expect(page.locator("[data-selected]")).to_have_text(f"{boxes.count()} selected:")
    wait_for_refresh(site, page)
    expect(page.locator("input[name=id]:checked")).to_have_count(boxes.count())
