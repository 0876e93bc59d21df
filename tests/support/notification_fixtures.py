"""Receivers on this host, and send contexts with settings that reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mulligan.config import Settings
from mulligan.notifications.channels import SendContext
from support.raw_receivers import HttpReceiver, Mailbox, Response, mail_server


@pytest.fixture
def receiver() -> Iterator[Callable[..., HttpReceiver]]:
    created: list[HttpReceiver] = []

    def make(*responses: Response, **options: Any) -> HttpReceiver:
        created.append(HttpReceiver(*responses, **options))
        return created[-1]

    yield make
    for one in created:
        one.close()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as box:
        yield box


@pytest.fixture
def loopback_context() -> SendContext:
    """Allow loopback and no other private address."""
    return SendContext(Settings.model_validate({"notify": {"allow_private": "127.0.0.0/8"}}))


@pytest.fixture
def strict_context() -> SendContext:
    return SendContext(Settings())


@pytest.fixture
def mail_context(mailbox: Mailbox) -> SendContext:
    mail = {
        "host": "127.0.0.1",
        "port": mailbox.port,
        "tls": "none",
        "sender": "Jobs <jobs@mulligan.example>",
    }
    return SendContext(Settings.model_validate({"mail": mail}))
