"""Ids sort in the order in which they were made and do not reveal each other."""

from __future__ import annotations

import time

import pytest

from mulligan.core import ids

ALPHABET = set("0123456789abcdefghjkmnpqrstvwxyz")


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_each_id_is_greater_than_the_previous_one(count):
    before = ids.new_id()
    made = ids.new_ids(count)
    after = ids.new_id()
    assert [before, *made, after] == sorted({before, *made, after})
    assert len(made) == count
    assert all(len(one) == ids.LENGTH and set(one) <= ALPHABET for one in made)


def test_an_id_contains_its_millisecond():
    before = time.time_ns() // 1_000_000
    made = ids.new_ids(3)
    assert all(before <= ids.created_ms(one) <= time.time_ns() // 1_000_000 + 1 for one in made)
    assert ids.first_id(before) < made[0] < ids.first_id(before + 60_000)


@pytest.mark.parametrize("first", [0, 1023, 1024, (1 << 60) - 3000, 123_456_789_012_345_678])
def test_single_and_bulk_ids_have_the_same_time_part(monkeypatch, first):
    monkeypatch.setattr(ids, "_reserve", lambda count: first)
    many = ids.new_ids(2500)
    assert many == sorted(many)
    for n in (0, 1, 1023, 1024, 2499):
        monkeypatch.setattr(ids, "_reserve", lambda count, n=n: first + n)
        assert ids.new_id()[:12] == many[n][:12] == ids._encode((first + n) << 80)[:12]


def test_the_random_part_is_never_shared():
    made = ids.new_ids(2000)
    assert len({one[12:] for one in made}) == 2000
    assert {char for one in made for char in one[12:]} == ALPHABET
