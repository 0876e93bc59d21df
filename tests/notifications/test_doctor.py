"""What `mulligan doctor` says about messages."""

from __future__ import annotations

import pytest

from mulligan.config import Settings, read_settings
from mulligan.doctor import in_force
from mulligan.doctor.settings import mail_checks, message_checks

WELL = {"host": "mail.example", "sender": "Jobs <jobs@mail.example>"}


def found(**mail):
    return [
        (check.status, check.found)
        for check in mail_checks(Settings.model_validate({"mail": mail}))
    ]


def test_without_a_server_it_says_what_happens_to_mails():
    assert found() == [
        ("ok", "mail.host is not set: deliveries by e-mail are skipped, nothing else changes")
    ]


def test_a_server_that_can_work():
    assert found(**WELL) == [("ok", "mail.example:587, starttls")]


@pytest.mark.parametrize(
    ("mail", "status", "said"),
    [
        ({"sender": ""}, "warn", "mail.sender is not set"),
        ({"sender": "jobs"}, "fail", "mail.sender is no address"),
        ({"username": "jobs"}, "warn", "a username and no password"),
        ({"password": "x"}, "warn", "a password and no username"),
        (
            {"username": "jobs", "password_file": "/nowhere"},
            "fail",
            "mail.password_file cannot be read",
        ),
        ({"tls": "none"}, "warn", "unencrypted"),
    ],
)
def test_what_cannot_work_is_said(mail, status, said):
    [(told, sentence)] = found(**(WELL | mail))
    assert (told, said in sentence) == (status, True)


@pytest.mark.parametrize(
    ("networks", "warned"), [("", False), ("10.0.0.0/8", False), ("0.0.0.0/0", True)]
)
def test_a_setting_that_opens_a_clouds_metadata_is_said(networks, warned):
    settings = Settings.model_validate({"notify": {"allow_private": networks}})
    assert any(check.check == "webhooks" for check in message_checks(settings)) is warned


def test_the_password_is_never_shown():
    settings = read_settings(
        environ={"MULLIGAN_MAIL__PASSWORD": "hunter2", "MULLIGAN_MAIL__USERNAME": "jobs"}
    )
    told = {row["name"]: row["value"] for row in in_force(settings)}
    assert (told["mail.password"], told["mail.username"]) == ("[set, not shown]", "jobs")
    assert "hunter2" not in repr(settings)
    assert {row["name"]: row["value"] for row in in_force(Settings())}["mail.password"] == ""
