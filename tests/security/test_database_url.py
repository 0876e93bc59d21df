"""A password in a database URL is never shown, even if the URL is malformed."""

from __future__ import annotations

import pytest

from mulligan import Mulligan
from mulligan.cli import main
from mulligan.core.errors import ConfigError
from mulligan.core.format import mask_password

MALFORMED = (
    "postgresql://ann:hunter2@127.0.0.1:1/db",
    "postgresql://ann:hun ter2@127.0.0.1:1/db",
    "postgresql://ann:hunter%2@127.0.0.1:1/db",
    "postgresql://ann:hun#ter2@127.0.0.1:1/db",
    "postgresql://ann:hun?ter2@127.0.0.1:1/db",
    "postgresql://ann:hun/ter2@127.0.0.1:1/db",
    "postgresql://ann:hun@ter2@127.0.0.1:1/db",
    "postgresql://ann:hun:ter2@127.0.0.1:1/db",
    "postgresql://ann:hun[ter2]@127.0.0.1:1/db",
    "postgresql://ann:hunter2@127.0.0.1:port/db",
    "postgresql://127.0.0.1:1/db?user=ann&password=hunter2&sslpassword=hunter2",
    "postgres:/ann:hunter2@127.0.0.1/db",
    "postgres:ann:hunter2@127.0.0.1/db",
    "mysql://ann:hun ter2@127.0.0.1/db",
)


def leaked_parts(text: str) -> list[str]:
    return [part for part in ("hun", "ter2") if part in text]


@pytest.mark.security("S46")
@pytest.mark.parametrize("url", MALFORMED)
def test_doctor_prints_no_password_of_a_malformed_url(
    url, capsys, tmp_path, monkeypatch, impatient
):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--database", url]) != 0
    captured = capsys.readouterr()
    assert leaked_parts(captured.out + captured.err) == []
    assert leaked_parts(mask_password(url)) == []


@pytest.mark.security("S46")
@pytest.mark.parametrize("url", [url for url in MALFORMED if not url.startswith("postgresql:")])
def test_an_app_with_a_wrong_url_is_refused_without_its_password(url):
    with pytest.raises(ConfigError) as refused:
        Mulligan(url).open()
    assert leaked_parts(str(refused.value)) == []


def test_a_url_without_a_password_is_shown_unchanged():
    for url in (
        "sqlite:////var/lib/a:b@c.db",
        "postgresql://ann@db/x",
        "postgresql:///x?host=/run/pg",
    ):
        assert mask_password(url) == url
