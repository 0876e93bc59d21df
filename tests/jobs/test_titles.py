"""Titles: what lists and pages call a job."""

from __future__ import annotations

import pytest

from mulligan import Mulligan
from mulligan.core.errors import ConfigError
from mulligan.core.ids import shorten_id
from mulligan.jobs.view import MAX_TITLE, describe_arguments, make_title


@pytest.mark.parametrize(
    ("template", "payload", "title"),
    [
        ("Invoice {order} for {customer}", {"order": 7, "customer": "Ada"}, "Invoice 7 for Ada"),
        ("To {address.city}", {"address": {"city": "Graz"}}, "To Graz"),
        ("Invoice {order}", {}, "Invoice …"),
        ("Invoice {order}", {"order": [1, 2]}, "Invoice …"),
        ("Key {api_key}", {"api_key": "sk-1234567890abcdef"}, "Key [redacted]"),
        ("Film {name}", {"name": "a\nb\x1b[31m"}, "Film a b�[31m"),
        ("Film {name}", {"name": "{name}"}, "Film {name}"),
    ],
)
def test_a_title_shows_the_arguments_of_the_job(template, payload, title):
    assert make_title(template, payload) == title


def test_a_long_title_is_cut_with_a_mark():
    title = make_title("{a}{b}{c}{d}", dict.fromkeys("abcd", "x" * 500))
    assert len(title) == MAX_TITLE
    assert title.endswith("…")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"customer": 23, "order": 7023, "sum": 5}, "customer 23 · order 7023"),
        ({"items": [1], "customer": 23}, "customer 23"),
        ({"clip": 4396, "seconds": 13.84512460864411}, "clip 4396 · seconds 13.85"),
        ({"price": 12.5, "version": "3.11.7"}, "price 12.5 · version 3.11.7"),
        ({"password": "hunter2"}, "password [redacted]"),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_job_without_title_is_called_by_its_first_arguments(payload, text):
    assert describe_arguments(payload) == text


def test_the_title_of_a_kind_names_its_jobs(app):
    @app.job(title="Invoice {order} for {customer}")
    def make_invoice(order: int, customer: str = "nobody") -> None: ...

    @app.job
    def send_mail(customer: int) -> None: ...

    jobs = [make_invoice.enqueue(order=7), send_mail.enqueue(customer=23)]
    assert app.jobs.titles(jobs) == ["Invoice 7 for nobody", "customer 23"]


def test_a_process_without_the_app_reads_titles_from_the_stored_manifest(app):
    @app.job(title="Invoice {order}")
    def make_invoice(order: int) -> None: ...

    job = make_invoice.enqueue(order=7)
    app.run_inline()
    other = Mulligan(app.settings.database_url)
    try:
        assert other.jobs.titles([job]) == ["Invoice 7"]
    finally:
        other.close()


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("Invoice {nr}", "title names 'nr', which is not an argument"),
        ("Invoice {}", "has braces without an argument"),
        ("Invoice {order", "has braces without an argument"),
        ("two\nlines", "one line of at most 120 characters"),
        ("x" * 121, "one line of at most 120 characters"),
        (7, "one line of at most 120 characters"),
    ],
)
def test_a_wrong_title_is_refused_when_it_is_declared(app, title, message):
    with pytest.raises(ConfigError, match=message):

        @app.job(title=title)
        def make_invoice(order: int) -> None: ...


def test_a_job_is_found_by_the_end_of_its_id(app):
    @app.job
    def send_mail(customer: int) -> None: ...

    jobs = [send_mail.enqueue(customer=one) for one in range(3)]
    for job in jobs:
        assert app.jobs.resolve(shorten_id(job.id)) == job.id
        assert app.jobs.resolve(job.id[-8:]) == job.id
