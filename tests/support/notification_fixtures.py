"""Receivers on this host, and settings that let messages reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mulligan.config import Settings
from mulligan.notifications.channels import Sending
from support.receiving import Answer, HttpReceiver, Mailbox, mail_server


@pytest.fixture
def receiver() -> Iterator[Callable[..., HttpReceiver]]:
    made: list[HttpReceiver] = []

    def make(*answers: Answer, **options: Any) -> HttpReceiver:
        made.append(HttpReceiver(*answers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as box:
        yield box


@pytest.fixture
def local() -> Sending:
    """Loopback is allowed, and nothing else that is private."""
    return Sending(Settings.model_validate({"notify": {"allow_private": "127.0.0.0/8"}}))


@pytest.fixture
def strict() -> Sending:
    return Sending(Settings())


@pytest.fixture
def by_mail(mailbox: Mailbox) -> Sending:
    mail = {
        "host": "127.0.0.1",
        "port": mailbox.port,
        "tls": "none",
        "sender": "Jobs <jobs@mulligan.example>",
    }
    return Sending(Settings.model_validate({"mail": mail}))
