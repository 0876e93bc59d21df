"""Secrets are removed from texts and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.format import TEXT_LIMIT, safe_text
from mulligan.failures.redact import (
    redact,
    remove_secrets,
    scrub,
    scrub_public,
)

anything = st.text(
    st.characters(codec=None, exclude_categories=[]) | st.sampled_from("\0\ud800\n\t\r\x1b\x7f")
)


@given(anything, st.integers(0, 200))
def test_safe_text_can_be_stored_and_shown_and_is_bounded(text, limit):
    out = safe_text(text, limit)
    out.encode("utf-8")
    assert len(out) <= limit
    assert all(char in "\n\t" or (char >= " " and char != "\x7f") for char in out)


@given(st.text("abc äöü€", max_size=100))
def test_an_ordinary_text_is_unchanged(text):
    assert safe_text(text) == text


def test_line_ends_are_normalised():
    assert safe_text("a\r\nb\rc") == "a\nb\nc"


def test_a_huge_text_keeps_head_and_tail_and_reports_the_cut():
    out = safe_text("H" * 1000 + "x" * 20_000_000 + "T" * 1000)
    assert len(out) <= 8192
    assert out.startswith("H" * 1000)
    assert out.endswith("T" * 1000)
    kept = out.count("H") + out.count("x") + out.count("T")
    assert f"[{20_002_000 - kept} characters cut]" in out


KEY = "0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
SECRETS = [
    ("postgres://ann:hunter2@db.host/x", "hunter2", "@db.host/x"),
    ("postgres://ann:hun@ter2@db.host/x", "ter2", "@db.host/x"),
    ("https://ann:hun/ter2@host/x", "hun/ter2", "@host/x"),
    ("redis://:hunter2@cache:6379/0", "hunter2", "@cache:6379/0"),
    ("https://0123abc@o1.ingest.sentry.io/2", "0123abc", "@o1.ingest.sentry.io/2"),
    ("Authorization: Bearer abc.def-123", "abc.def-123", "Authorization: Bearer"),
    ("Authorization: Token x:y12", "x:y12", "Authorization: Token"),
    ("Authorization: Odd abc12 rest", "abc12", " rest"),
    ("Proxy-Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "Basic"),
    ('Authorization: Digest username="ann", response="6629"', "6629", "Digest"),
    ("{'Authorization': 'Token 0123abcd'}", "0123abcd", "'}"),
    ("{'Authorization': 'Digest username=\"ann\", response=\"6629\"', 'a': 1}", "6629", "'a': 1}"),
    ("[(b'authorization', b'Bearer abcdefg'), (b'a', b'b')]", "abcdefg", "(b'a', b'b')"),
    ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz", ""),
    ("sent Bearer eyabcdefgh1234567", "eyabcdefgh1234567", "sent Bearer"),
    ("Cookie: session=abc123; theme=dark\nnext", "abc123", "\nnext"),
    ("{'Set-Cookie': 'id=a3fWa; Path=/; HttpOnly', 'a': 1}", "a3fWa", "'a': 1}"),
    ("GET /x?api_key=abc123&page=7", "abc123", "&page=7"),
    ("GET /x?key=abc123&page=7", "abc123", "&page=7"),
    ("GET /x?a=1&access_token=abc1234&page=7", "abc1234", "&page=7"),
    ("https://x.blob.core.windows.net/c?sv=2020&sig=abc%2Fdef&se=1", "abc%2Fdef", "&se=1"),
    ("https://s3/x?X-Amz-Signature=deadbeef00&X-Amz-Expires=3", "deadbeef00", "&X-Amz-Expires=3"),
    ("https://s3/x?X-Amz-Credential=ABC%2F2026&X-Amz-Expires=3", "ABC%2F2026", "&X-Amz-Expires=3"),
    ("https://s/x?X-Goog-Signature=deadbeef00&y=3", "deadbeef00", "&y=3"),
    ("AccountName=x;AccountKey=abc123==;EndpointSuffix=core", "abc123", ";EndpointSuffix=core"),
    ("Endpoint=sb://x/;SharedAccessKey=abc123=", "abc123", "Endpoint=sb://x/"),
    ("Server=db;User Id=sa;Password=hunter2;Encrypt=yes", "hunter2", ";Encrypt=yes"),
    ("Driver=x;UID=sa;PWD=hunter2;", "hunter2", ";"),
    ("host=db user=ann password=hunter2 dbname=x", "hunter2", " dbname=x"),
    ('{"password": "hun ter2", "a": 1}', "hun ter2", '"a": 1'),
    ('{"password": "hun\\"ter2", "a": 1}', "ter2", '"a": 1'),
    ('"{\\"password\\": \\"hunter2\\"}"', "hunter2", ""),
    ("connect(user='ann', password='hunter2', port=1)", "hunter2", ", port=1)"),
    ("connect(password=b'hunter2', port=1)", "hunter2", ", port=1)"),
    ("Settings(password=SecretStr('hunter2'), n=1)", "hunter2", ", n=1)"),
    ("AWS_SECRET_ACCESS_KEY=abcd/efgh", "abcd/efgh", "AWS_SECRET_ACCESS_KEY="),
    ("client_secret => 'zz9'", "zz9", ""),
    ("token=abcdef123 x", "abcdef123", " x"),
    ("X-Api-Key: k1", "k1", "X-Api-Key"),
    ("('X-Auth-Token', 'abc1')", "abc1", "X-Auth-Token"),
    (
        "Command '['mysql', '--password', 'hunter2', 'db']' returned 1",
        "hunter2",
        "'db']' returned 1",
    ),
    ("mysql --password hunter2 db", "hunter2", " db"),
    ("curl -u ann:hunter2 https://x", "hunter2", " https://x"),
    ("mysql -u root -phunter2 db", "hunter2", " db"),
    (
        "Command '['mysqldump', '-uroot', '-phunter2', 'db']' returned 1",
        "hunter2",
        "'db']' returned 1",
    ),
    ("sshpass -p hunter2 ssh ann@host", "hunter2", " ssh "),
    ("redis-cli -a hunter2 ping", "hunter2", " ping"),
    ("<wsse:Password>hunter2</wsse:Password>", "hunter2", "</wsse:Password>"),
    ('<login><apiKey type="x">hunter2</apiKey><n>1</n></login>', "hunter2", "<n>1</n>"),
    ("the password is hunter2", "hunter2", "the password is"),
    ("your API key was 'k3y-of-ann', sir", "k3y-of-ann", ", sir"),
    ("CREATE USER ann IDENTIFIED BY 'hunter2'", "hunter2", "CREATE USER ann"),
    ("ALTER ROLE ann PASSWORD 'hunter2'", "hunter2", "ALTER ROLE ann"),
    (
        "https://api.telegram.org/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/getMe",
        "AAHdqTcv",
        "api.telegram.org",
    ),
    ("bot 123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw said", "AAHdqTcv", " said"),
    ("https://hooks.slack.com/services/T01/B01/abcDEF123 ok", "abcDEF123", " ok"),
    ("key AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE", "used"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln!", "eyJzdWIiOiIxIn0", "got "),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", "abc", "rest"),
    ("-----BEGIN PRIVATE KEY-----\nabc", "abc", ""),
    (
        '{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n", "a": 1}',
        "MIIE",
        '"a": 1',
    ),
    *[
        (f"it was {prefix}{KEY[:length]} then", KEY[:length], " then")
        for prefix, length in [
            ("sk-", 32),
            ("sk-proj-", 24),
            ("sk-ant-api03-", 24),
            ("sk-or-v1-", 32),
            ("sk_live_", 24),
            ("rk_live_", 24),
            ("whsec_", 32),
            ("AIza", 35),
            ("ya29.", 40),
            ("xoxb-", 24),
            ("xapp-", 24),
            ("ghp_", 36),
            ("gho_", 36),
            ("github_pat_", 40),
            ("glpat-", 20),
            ("npm_", 36),
            ("hf_", 34),
            ("pypi-", 40),
            ("gsk_", 40),
            ("dckr_pat_", 27),
            ("hvs.", 24),
            ("glsa_", 32),
            ("ATATT3", 40),
            ("EAAC", 40),
        ]
    ],
    (f"SG.{KEY[:22]}.{KEY[:40]} x", KEY[:22], " x"),
    ("ghp_abcdefghijklmnop", "abcdefghijklmnop", ""),
]


@pytest.mark.security("S44")
@pytest.mark.parametrize(("text", "gone", "kept"), SECRETS)
def test_known_secrets_are_removed_and_the_text_around_them_stays(text, gone, kept):
    out = remove_secrets(text)
    assert gone not in out
    assert kept in out
    assert "[redacted]" in out
    assert remove_secrets(out) == out
    assert gone not in redact(text)
    assert gone not in scrub(f"before {text}\nafter")
    assert gone not in scrub_public("x " * 40_000 + text + " y" * 40)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'secret'",
        "basic authentication failed",
        "bearer authentication is not supported",
        "max_tokens: 4096 exceeded",
        "unexpected token: }",
        "missing key: clip",
        "duplicate primary key=5",
        "http://host:8080/path was sent to a@b",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b, etag d41d8cd98f00b204e9800998ecf8427e",
        "job 0b5b1f0e-8f43-4f6e-9b5d-3a1f0c2d4e5f of sk-learn-contrib-something-long",
        "read and/or write, 24/7, 3/4 of them, km/h, application/json, 12/05/2026",
        "https://example.org/a/b/c?page=7 and s3://bucket/key/of/it",
        "GET /api/v1/users gave 404; std::vector at 12:34:56, chrome 120.0.6099.109, version 1.2.3.4",
        "pip install pkg@1.2.3",
        "['user', 'password', 'email'] are required",
    ],
)
def test_text_without_secrets_and_paths_is_unchanged(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("cannot open /srv/acme/customers.csv now", "cannot open [path] now"),
        ("cannot open /home/ann", "cannot open [path]"),
        ("cannot open ~/taxes.pdf", "cannot open [path]"),
        ("No such file: '/srv/My Videos/a.mp4'", "No such file: '[path]'"),
        ('File "/app/x.py", line 3', 'File "[path]", line 3'),
        ("path=/srv/x/y;", "path=[path];"),
        ("ffmpeg:/srv/a/b.mp4", "ffmpeg:[path]"),
        ("C:\\Users\\ann\\x.txt is gone", "[path] is gone"),
        ("\\\\server\\share\\x.txt", "[path]"),
        ("file:///home/ann/x", "file:[path]"),
        ("sqlite:////srv/x.db", "sqlite:[path]"),
        ("/srv/basic/token/key.txt", "[path]"),
        ("tcp 10.0.0.7:4030 refused", "tcp [ip]:4030 refused"),
        ("fe80::1, ::1 and 2001:db8::ff00:42:8329", "[ip], [ip] and [ip]"),
        ("to ann.b+x@mail.example.org failed", "to [address]@mail.example.org failed"),
    ],
)
def test_paths_and_addresses_are_redacted(text, out):
    assert redact(text) == out
    assert redact(out) == out
    assert remove_secrets(text) == text


@given(st.text("abk=:'\"\\/@ -eyJ.passwordtokenkey://\n[]", max_size=80))
def test_redacting_twice_changes_nothing_more(text):
    once = redact(text)
    assert redact(once) == once


@given(
    st.lists(st.sampled_from([text for text, *_ in SECRETS]), min_size=1, max_size=4),
    st.sampled_from(" ,;\n|"),
)
def test_adjacent_secrets_are_removed_at_once(texts, between):
    once = redact(between.join(texts))
    assert redact(once) == once


@pytest.mark.parametrize("length", [*range(32_700, 32_800, 7), 65_536])
def test_no_part_of_a_token_survives_the_cut_of_a_huge_text(length):
    token = "ghp_" + "Z9" * 30
    for text in (
        f"{'x ' * (length // 2)}{token} " + "y " * 40_000,
        "y " * 40_000 + f"{token} {'x ' * (length // 2)}",
    ):
        assert "Z9Z9" not in scrub(text, 70_000)


@pytest.mark.security("S44")
def test_no_part_of_a_secret_survives_the_cut():
    key = "-----BEGIN PRIVATE KEY-----\n" + "QUJD" * 1200 + "\n-----END PRIVATE KEY-----"
    for before in range(0, 9000, 300):
        assert "QUJDQUJD" not in scrub("x" * before + key + "y" * 3000)


@pytest.mark.security("S22")
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "\0",
        "://",
        "://a:",
        "-eyJ",
        'password="',
        "-----BEGIN A-----",
        "basic ",
        "a@",
        "/",
        "a/",
        "/a",
        "'/",
        "1.",
        "::",
        "a:b",
        "cookie: a=b;",
        "authorization: ",
        "--password ",
        "-u a:",
        "sk-",
        "ghp_aA1",
        "key='\\",
        "?key=",
        "\\",
        "~",
        "GET /a",
        "(b'key', ",
        "password='",
        "token=",
        "a@b.",
        "bot1:AA",
    ],
)
def test_no_text_makes_it_slow(piece):
    text = piece * (20_000_000 // len(piece))
    assert len(scrub(text)) <= 8192
    assert len(safe_text(text)) <= 8192
    redact(text[:1_000_000])


# --- Texts that differ only in their digits ---


def shift_digits(text, by):
    return "".join(str((int(char) + by) % 10) if char in "0123456789" else char for char in text)


@pytest.mark.parametrize(
    "text", [text for text, *_ in SECRETS] + [f"r8_{'a' * 20}", f"ATATT3{'a' * 20}", "key 7"]
)
def test_a_secret_is_found_even_if_a_text_with_other_digits_was_harmless(text):
    for by in range(10):
        other = shift_digits(text, by)
        assert scrub(other) == remove_secrets(safe_text(other))


def test_a_text_above_the_limit_is_cut():
    assert scrub("a" * (TEXT_LIMIT + 1)) != "a" * (TEXT_LIMIT + 1)
