"""How often the log says the same."""

from __future__ import annotations

from mulligan.core.job import SECOND
from mulligan.worker.job_log import MOST_KNOWN, LogSampler


def test_the_first_of_a_second_are_said_and_the_others_are_told_by_their_number_when_it_is_over():
    murmur = LogSampler[str](most=3)
    assert murmur.unsaid(5 * SECOND) == []
    assert [murmur.may_say("reset") for _ in range(5)] == [True, True, True, False, False]
    assert murmur.may_say("refused")
    assert murmur.unsaid(5 * SECOND + 999_999) == []
    assert murmur.unsaid(6 * SECOND) == [("reset", 2)]
    assert murmur.may_say("reset")
    assert murmur.unsaid(7 * SECOND) == []


def test_what_was_said_a_second_ago_may_be_said_again():
    murmur = LogSampler[str](most=1)
    murmur.unsaid(0)
    for second in range(1, 5):
        assert murmur.may_say("reset")
        assert murmur.unsaid(second * SECOND) == []


def test_of_more_things_than_it_keeps_in_mind_each_is_said():
    murmur = LogSampler[int](most=1)
    for number in range(MOST_KNOWN):
        murmur.may_say(number)
    assert all(murmur.may_say(MOST_KNOWN) for _ in range(3))


def test_of_many_at_once_the_first_may_be_said_and_all_are_counted():
    murmur = LogSampler[str](most=3)
    assert murmur.unsaid(0) == []
    assert murmur.few("reset", "ab") == "ab"
    assert murmur.few("reset", "cdefg") == "c"
    assert murmur.few("reset", "h") == ""
    assert not murmur.may_say("reset")
    assert murmur.unsaid(SECOND) == [("reset", 6)]


def test_of_more_things_than_it_keeps_in_mind_all_at_once_are_said():
    murmur = LogSampler[int](most=1)
    for number in range(MOST_KNOWN):
        murmur.may_say(number)
    assert murmur.few(MOST_KNOWN, "abc") == "abc"
