"""Sampling of equal log lines."""

from __future__ import annotations

from mulligan.core.durations import SECOND
from mulligan.worker.job_log import MAX_GROUPS, LogSampler


def test_the_first_lines_of_a_second_are_logged_and_the_others_counted():
    sampler = LogSampler[str](most=3)
    assert sampler.pop_suppressed(5 * SECOND) == []
    assert [sampler.should_log("reset") for _ in range(5)] == [True, True, True, False, False]
    assert sampler.should_log("refused")
    assert sampler.pop_suppressed(5 * SECOND + 999_999) == []
    assert sampler.pop_suppressed(6 * SECOND) == [("reset", 2)]
    assert sampler.should_log("reset")
    assert sampler.pop_suppressed(7 * SECOND) == []


def test_a_line_may_be_logged_again_in_the_next_second():
    sampler = LogSampler[str](most=1)
    sampler.pop_suppressed(0)
    for second in range(1, 5):
        assert sampler.should_log("reset")
        assert sampler.pop_suppressed(second * SECOND) == []


def test_lines_of_groups_beyond_the_limit_are_all_logged():
    sampler = LogSampler[int](most=1)
    for number in range(MAX_GROUPS):
        sampler.should_log(number)
    assert all(sampler.should_log(MAX_GROUPS) for _ in range(3))


def test_of_many_items_at_once_the_first_are_logged_and_all_counted():
    sampler = LogSampler[str](most=3)
    assert sampler.pop_suppressed(0) == []
    assert sampler.sample("reset", "ab") == "ab"
    assert sampler.sample("reset", "cdefg") == "c"
    assert sampler.sample("reset", "h") == ""
    assert not sampler.should_log("reset")
    assert sampler.pop_suppressed(SECOND) == [("reset", 6)]


def test_items_of_groups_beyond_the_limit_are_all_logged():
    sampler = LogSampler[int](most=1)
    for number in range(MAX_GROUPS):
        sampler.should_log(number)
    assert sampler.sample(MAX_GROUPS, "abc") == "abc"
