"""Pages of dead workers are read, whatever is left of them."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.worker.recording import Recording
from mulligan.worker.status_page import (
    PAGES_MARK,
    StatusPage,
    read_records,
    read_started_attempts,
)

FENCES = [(f"job{number}", number + 7) for number in range(3)]


@pytest.fixture
def folder(tmp_path):
    """Write a page with three attempts, of which the second has ended."""
    (tmp_path / PAGES_MARK).touch()
    page = StatusPage.create(4, tmp_path / "1.page")
    for slot, fence in enumerate(FENCES):
        page.start(slot, slot + 1, 1, fence)
        recording = Recording(page.ring(slot), slot + 1, 200)
        for number in range(20):
            recording.add("INFO", "shop", f"{fence[0]} line {number}")
    page.stop(1)
    page.close()
    return tmp_path


def test_the_last_records_of_running_attempts_are_read(folder):
    found = read_records(folder, dict.fromkeys(FENCES, 5))
    assert {fence: [line.message for line in lines] for fence, lines in found.items()} == {
        fence: [f"{fence[0]} line {number}" for number in range(15, 20)]
        for fence in (FENCES[0], FENCES[2])
    }
    assert read_records(folder, {FENCES[0]: 0}) == {FENCES[0]: []}
    assert read_records(folder, {("other", 7): 5}) == {}


PAGE_SIZES = (0, 3, 39, 40, 300, 304, 100_000, 400_000, 460_000)  # bytes that are left


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_a_page_that_was_cut_off_ends_no_sweep(folder, size):
    path = folder / "1.page"
    path.write_bytes(path.read_bytes()[:size])
    read_and_check(folder)


@pytest.mark.parametrize("seed", range(20))
def test_a_page_that_a_handler_has_overwritten_ends_no_sweep(folder, seed):
    rng = Random(seed)
    path = folder / "1.page"
    page = bytearray(path.read_bytes())
    for _ in range(50):
        page[rng.randrange(400)] = rng.randrange(256)
    path.write_bytes(page)
    read_and_check(folder)


def read_and_check(folder):
    read_started_attempts(folder)
    for lines in read_records(folder, dict.fromkeys(FENCES, 5)).values():
        assert len(lines) <= 5
