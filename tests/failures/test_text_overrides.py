"""Errors whose text contradicts their type, code or status."""

from __future__ import annotations

import pytest

from mulligan import classify


@pytest.mark.parametrize(
    ("text", "facts"),
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
def test_an_unavailable_credential_service_is_retryable(text, facts):
    assert classify(text, **facts).retryable


@pytest.mark.parametrize(
    ("text", "facts"),
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
def test_a_connection_refused_for_its_credentials_is_not_retryable(text, facts):
    assert not classify(text, **facts).retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("connection refused: invalid credentials", False),
        ("upload timed out: file is corrupted", False),
        ("invalid configuration: connection refused", True),
        ("Connection could not be established: unknown driver 'x'", False),
    ],
)
def test_the_reason_at_the_end_of_a_line_decides(text, retryable):
    assert classify(text).retryable is retryable


def test_program_output_shown_as_bytes_is_read_line_by_line():
    text = r"tool: b'warning: connection reset, retrying\nExit with code 1 due to network error: ProtocolUnknownError\n'"
    assert not classify(text).retryable


@pytest.mark.parametrize(
    "reason", ["KEY_TOO_SMALL", "NO_SHARED_CIPHER", "CERTIFICATE_VERIFY_FAILED"]
)
def test_a_tls_refusal_is_not_retryable(reason):
    assert not classify(
        f"[SSL: {reason}] it says (_ssl.c:1006)", exception_type="ssl.SSLError"
    ).retryable


def test_a_broken_tls_connection_is_retryable():
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
def test_an_instruction_to_correct_something_is_not_retryable(text, retryable):
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
def test_mail_replies_and_bare_codes_are_classified(text, retryable):
    assert classify(text).retryable is retryable


@pytest.mark.parametrize(
    ("text", "retryable"),
    [
        ("TypeError: Failed to fetch", True),
        ("TypeError: Cannot read properties of undefined (reading 'fetch')", False),
    ],
)
def test_a_network_error_of_a_browser_is_not_a_programming_error(text, retryable):
    assert classify(text).retryable is retryable


@pytest.mark.parametrize(
    ("state", "retryable"), [("57P01", True), ("57P04", False), ("08006", True), ("58P01", False)]
)
def test_a_dropped_database_is_not_retryable(state, retryable):
    assert classify("x", provider_code=state).retryable is retryable
