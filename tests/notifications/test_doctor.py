"""Checks of `mulligan doctor` about mail and webhook settings."""

from __future__ import annotations

import pytest

from mulligan.config import Settings, read_settings
from mulligan.doctor import effective_settings
from mulligan.doctor.settings import mail_checks, notification_checks

VALID = {"host": "mail.example", "sender": "Jobs <jobs@mail.example>"}


def found(**mail):
    return [
        (check.status, check.found)
        for check in mail_checks(Settings.model_validate({"mail": mail}))
    ]


def test_doctor_reports_a_missing_mail_server():
    assert found() == [("ok", "mail.host is not set: no mail is sent")]


def test_doctor_accepts_valid_mail_settings():
    assert found(**VALID) == [("ok", "mail.example:587, starttls")]


@pytest.mark.parametrize(
    ("mail", "status", "expected"),
    [
        ({"sender": ""}, "warn", "mail.sender is not set"),
        ({"sender": "jobs"}, "fail", "mail.sender is not a valid address"),
        ({"username": "jobs"}, "warn", "a username but no password"),
        ({"password": "x"}, "warn", "a password but no username"),
        (
            {"username": "jobs", "password_file": "/nowhere"},
            "fail",
            "mail.password_file cannot be read",
        ),
        ({"tls": "none"}, "warn", "unencrypted"),
    ],
)
def test_doctor_reports_invalid_mail_settings(mail, status, expected):
    [(found_status, sentence)] = found(**(VALID | mail))
    assert (found_status, expected in sentence) == (status, True)


@pytest.mark.parametrize(
    ("networks", "warned"), [("", False), ("10.0.0.0/8", False), ("0.0.0.0/0", True)]
)
def test_doctor_reports_a_setting_that_allows_a_metadata_service(networks, warned):
    settings = Settings.model_validate({"notify": {"allow_private": networks}})
    assert any(check.check == "webhooks" for check in notification_checks(settings)) is warned


def test_the_password_is_never_shown():
    settings = read_settings(
        environ={"MULLIGAN_MAIL__PASSWORD": "hunter2", "MULLIGAN_MAIL__USERNAME": "jobs"}
    )
    values = {row["name"]: row["value"] for row in effective_settings(settings)}
    assert (values["mail.password"], values["mail.username"]) == ("[set, not shown]", "jobs")
    assert "hunter2" not in repr(settings)
    assert {row["name"]: row["value"] for row in effective_settings(Settings())}[
        "mail.password"
    ] == ""
