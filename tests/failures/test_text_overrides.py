"""Errors that say one thing by their type, code or status, and mean another."""

from __future__ import annotations

import pytest

from mulligan import classify


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (
            "Error when retrieving credentials from container-role: Connect timeout on endpoint URL",
            {"exception_type": "botocore.exceptions.CredentialRetrievalError"},
        ),
        (
            "('Failed to retrieve the token from the metadata service. Status: 500')",
            {"exception_type": "google.auth.exceptions.RefreshError"},
        ),
        (
            "(454, b'4.7.0 Temporary authentication failure')",
            {"exception_type": "smtplib.SMTPAuthenticationError"},
        ),
        ("authentication request timed out", {"http_status": 401}),
    ],
)
def test_a_service_of_credentials_that_is_down_refused_nobody(text, given):
    assert classify(text, **given).retryable


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (
            "SSL handshake failed: certificate verify failed",
            {"exception_type": "ServerSelectionTimeoutError"},
        ),
        (
            "Getting metadata from plugin failed with error: invalid_grant",
            {"provider_code": "UNAVAILABLE"},
        ),
        ("invalid username-password pair", {"exception_type": "redis.exceptions.ConnectionError"}),
        (
            "Tunnel connection failed: 400 Bad Request",
            {"exception_type": "requests.exceptions.ProxyError"},
        ),
    ],
)
def test_a_connection_that_fails_because_of_who_we_are_fails_again(text, given):
    assert not classify(text, **given).retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("connection refused: invalid credentials", False),
        ("upload timed out: file is corrupted", False),
        ("invalid configuration: connection refused", True),
        ("Connection could not be established: unknown driver 'x'", False),
    ],
)
def test_where_a_line_says_both_the_reason_at_its_end_counts(text, retryable):
    assert classify(text).retryable is retryable


def test_what_a_program_wrote_is_read_line_by_line_also_when_shown_as_bytes():
    text = r"tool: b'warning: connection reset, retrying\nExit with code 1 due to network error: ProtocolUnknownError\n'"
    assert not classify(text).retryable


@pytest.mark.parametrize(
    "reason", ["KEY_TOO_SMALL", "NO_SHARED_CIPHER", "CERTIFICATE_VERIFY_FAILED"]
)
def test_tls_refuses_for_good(reason):
    assert not classify(
        f"[SSL: {reason}] it says (_ssl.c:1006)", exception_type="ssl.SSLError"
    ).retryable


def test_unless_the_link_broke():
    text = "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed (_ssl.c:2580)"
    assert classify(text, exception_type="ssl.SSLError").retryable
    assert classify(
        "EOF occurred in violation of protocol", exception_type="ssl.SSLEOFError"
    ).retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("Please verify the URL and try again.", False),
        ("Please shorten the prompt and retry.", False),
        ("Please check your internet connection and try again.", True),
        ("Please wait a moment and try again.", True),
    ],
)
def test_to_correct_something_and_try_again_is_for_a_person(text, retryable):
    assert classify(text).retryable is retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("554 delivery error: this mailbox does not take mail", False),
        ("450 The recipient is receiving mail too quickly", True),
        ("USER_DEACTIVATED_BAN", False),
        ("redirect_uri_mismatch", False),
        ("Error: /VMerror in --showpage--\nUnrecoverable error, exit code 1", True),
        ("Error: /undefined in obj\nUnrecoverable error, exit code 1", False),
    ],
)
def test_replies_and_codes_without_a_frame_are_read_too(text, retryable):
    assert classify(text).retryable is retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("TypeError: Failed to fetch", True),
        ("TypeError: Cannot read properties of undefined (reading 'fetch')", False),
    ],
)
def test_a_browser_calls_a_network_that_is_away_a_type_error(text, retryable):
    assert classify(text).retryable is retryable


@pytest.mark.parametrize(
    ("state", "retryable"), [("57P01", True), ("57P04", False), ("08006", True), ("58P01", False)]
)
def test_a_database_that_was_dropped_does_not_come_back(state, retryable):
    assert classify("x", provider_code=state).retryable is retryable
