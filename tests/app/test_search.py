"""The search box: anything a person types or pastes finds the jobs that are meant."""

from __future__ import annotations

import pytest

from mulligan.app.search import complete_search, interpret_search
from mulligan.core.ids import shorten_id


@pytest.fixture
def job(app):
    @app.job(name="send_mail", index="customer", queue="mail")
    def send_mail(customer: int, city: str = "") -> None: ...

    found = send_mail.options(owner="acme@example.com").enqueue(customer=23)
    app.enqueue("refuse")
    app.run_inline()
    return found


def test_a_pasted_id_finds_the_job(app, job):
    for text in (job.id, f" {job.id} ", job.id[:20], shorten_id(job.id), job.id[-7:]):
        assert interpret_search(app, text).job_id == job.id


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", ""),
        ("state:dead kind:send_mail", "state:dead kind:send_mail"),
        ("send_mail", "kind:send_mail"),
        ("mail", "queue:mail"),
        ("acme@example.com", "owner:acme@example.com"),
        ("customer:23", "arg.customer:23"),
        ("colour:red", '"colour:red"'),
        ("city:Graz", "kind:send_mail since:7d arg.city:Graz"),
        ("CONNECTION", "code:CONNECTION"),
        ("v2-0123456789ab", "group:v2-0123456789ab"),
        ("refused", '"refused"'),
        ("send_mail refused", 'kind:send_mail "refused"'),
        ('"moov atom"', '"moov atom"'),
        ('an open "quote', '"an" "open" "quote"'),
        ("http://example.com/a?b=c", '"http://example.com/a?b=c"'),
        ("zzzzzzzz", '"zzzzzzzz"'),
    ],
)
def test_a_word_becomes_the_filter_that_it_most_likely_means(app, job, text, meant):
    found = interpret_search(app, text)
    assert found.filter == meant
    app.jobs.list(found.filter)


def test_an_owner_does_not_find_the_job_of_another_by_its_id(app, job):
    assert interpret_search(app, job.id, owner="orbit").job_id == ""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("kind:se", "kind:send_mail "),
        ("state:dead ki", "state:dead kind:"),
        ("state:de", "state:dead "),
        ("send", "kind:send_mail "),
        ("state:dead owner:ac", "state:dead owner:acme@example.com "),
        ("acme", "owner:acme@example.com "),
        ("queue:m", "queue:mail "),
        ("phase:back", "phase:backing_off "),
        ("BAD", "code:BAD_FILE "),
    ],
)
def test_the_last_word_of_a_search_is_completed_by_fields_and_known_values(app, job, text, first):
    assert complete_search(app, text)[0].text == first


def test_an_owner_is_not_told_the_names_of_other_owners(app, job):
    assert complete_search(app, "owner:ac", "zenith") == []
    assert complete_search(app, "nothing-like-this") == []
