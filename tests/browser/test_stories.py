"""Three users, a real browser, a real server, real workers: what they came for, from the first look to the last."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.about_processes]


def test_the_operator_finds_the_one_cause_of_400_dead_jobs_tries_one_and_then_all(site, visit):
    site.enqueue("convert", [{"clip": clip} for clip in range(400)])
    page = visit().page
    expect(page.locator(".groups .count")).to_have_text("400", timeout=60_000)
    page.get_by_role("link", name="The clip could not be read.").click()
    expect(page.locator(".lead")).to_contain_text("400 dead jobs")
    site.happens("mended")

    group = page.url
    page.locator(".jobs tbody tr").first.get_by_role("link").click()
    expect(page.locator(".acts")).to_contain_text("generation 2")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("h1 .badge")).to_contain_text("succeeded")

    page.goto(group)
    page.get_by_role("link", name="Retry these 399").click()
    expect(page.locator("h1")).to_contain_text("nothing is done yet")
    expect(page.locator(".lead")).to_contain_text("399 jobs")
    page.get_by_label("Type 399").fill("399")
    page.get_by_label("Why").fill("the disk is back")
    page.get_by_role("button", name="Retry 399 jobs").click()
    expect(page.locator("h1 .badge")).to_contain_text("finished", timeout=60_000)
    expect(page.locator(".lead")).to_contain_text("399")
    page.goto(f"{site.home}/failures")
    expect(page.get_by_role("heading", name="No failures")).to_be_visible()
    assert site.app.jobs.count("state:succeeded kind:convert") == 400


def test_a_parked_job_is_decided(site, visit):
    job = site.app.enqueue("publish", {"post": "spring"})
    page = visit().page
    page.get_by_role("link", name="publish").click()
    expect(page.locator(".lead")).to_contain_text("somebody must approve this post")
    page.get_by_label("Choice").select_option("drop")
    page.get_by_role("button", name="Release").click()
    expect(page.locator("h1 .badge")).to_contain_text("succeeded")
    assert site.app.jobs.get(job.id).result == "drop"


def test_a_breaker_is_opened_and_closed_by_hand_and_the_jobs_it_held_go_on(site, visit):
    page = visit().go("/dependencies")
    page.get_by_text("Open …").click()
    page.get_by_label("Why: Open").fill("they told us")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("tbody .badge")).to_contain_text("open")
    site.enqueue("charge", [{"order": order} for order in range(5)])
    expect(page.locator("td[data-name=wait]")).to_have_text("5")
    page.get_by_text("Close …").click()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("td[data-name=wait]")).to_have_text("0")
    page.goto(f"{site.home}/jobs?filter=kind:charge")
    expect(page.locator(".badge", has_text="succeeded")).to_have_count(5)


def test_an_owner_reads_one_sentence_mends_what_may_be_mended_and_tries_again(site, visit):
    job = site.app.enqueue("draw", {"page": 0}, owner="acme")
    site.app.jobs.wait(job.id, timeout=20)
    page = visit(signed_in=False).go(site.app.status.link(job))
    expect(page.locator(".lead")).to_have_text("This page does not exist.")
    page.get_by_label("page").fill("7")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("h1 .badge")).to_contain_text("succeeded")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    assert site.app.jobs.get(job.id).result == "page 7"


def test_a_row_changes_by_itself_and_what_was_chosen_stays_chosen(site, visit):
    job = site.app.enqueue("encode", {"clip": 1})
    other = site.app.enqueue("publish", {"post": "spring"})
    page = visit().go("/jobs")
    row = page.locator("tr", has=page.get_by_role("link", name="encode"))
    expect(row.locator(".badge")).to_contain_text("running")
    chosen = page.locator(f"input[value='{other.id}']")
    chosen.check()
    page.evaluate("window.witness = 1")
    site.happens("encoded-1")
    expect(row.locator(".badge")).to_contain_text("succeeded", timeout=5_000)
    expect(chosen).to_be_checked()
    assert page.evaluate("window.witness") == 1, "the page was loaded again"
    assert site.app.jobs.get(job.id).result == "encoded"


def test_a_link_signs_in_once_and_who_signs_out_is_out(site, visit):
    link, person = site.link(), visit(signed_in=False)
    page = person.enter(link)
    expect(page.get_by_text("admin · *")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    person.forgiven = ("401",)
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    person.go("/jobs")
    assert "/sign-in" in page.url
