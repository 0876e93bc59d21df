from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policy.fingerprint import fingerprint, mask


@given(st.text(), st.text(), st.text())
def test_a_fingerprint_has_a_version_and_is_repeatable(code, kind, message):
    name = fingerprint(code, kind, message)
    assert re.fullmatch(r"v1-[0-9a-f]{12}", name)
    assert name == fingerprint(code, kind, message)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("clip 7 failed after 3.5 s", "clip 12 failed after 10 s"),
        ("no user 'ann'", "no user 'bob smith'"),
        ('bad "x"', 'bad "yy z"'),
        ("cannot open /srv/a/b.mp4", "cannot open /tmp/c.mov"),
        ("cannot open C:\\a\\b.txt", "cannot open D:\\c"),
        ("GET https://h/x?y=1 failed", "GET http://other/z failed"),
        ("id 3f2a9c77d1e0 gone", "id a02b9c77d1ff gone"),
        ("id 0b5b1f0e-8f43-4f6e-9b5d-3a1f0c2d4e5f", "id 9b5b1f0e-8f43-4f6e-9b5d-3a1f0c2d4e50"),
        ("at 0x7f3a2b", "at 0x55aa"),
        ("job 01hf3m2k9x8y7z6w5v4t3s2r1q", "job 01hf3m2k9x8y7z6w5v4t3s2r2p"),
        ("a  b\nc", "a b c"),
    ],
)
def test_what_differs_from_job_to_job_is_masked(one, other):
    assert mask(one) == mask(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("moov atom not found", "no such filter"), ("can't read, don't try", "can't write, don't try")],
)
def test_different_causes_stay_apart(one, other):
    assert fingerprint("X", "T", one) != fingerprint("X", "T", other)


def test_code_type_and_signal_count():
    names = {
        fingerprint("A"),
        fingerprint("B"),
        fingerprint("A", "T"),
        fingerprint("A", "", "m"),
        fingerprint("A", "", "", "exit_code 1"),
        fingerprint("A", "", "", "exit_code 2"),
    }
    assert len(names) == 6


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ["a", "1", "'", '"', "/", "a1", "://", "\\"])
def test_no_message_makes_it_slow(piece):
    fingerprint("X", "T", piece * 5_000_000)
