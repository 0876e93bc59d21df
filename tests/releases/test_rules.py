"""Rules about releases, without a database."""

from __future__ import annotations

from mulligan.core.durations import to_datetime
from mulligan.releases.rules import ReleaseDeaths, find_suspect, has_fix


def history(*counts):
    """Build the history of releases r1, r2, … from (deaths, attempts)."""
    return [
        ReleaseDeaths(f"r{place}", to_datetime(place), None, None, deaths, attempts)
        for place, (deaths, attempts) in enumerate(counts, 1)
    ]


def test_a_cause_that_begins_with_a_release_names_it():
    suspect = find_suspect(history((0, 10_000), (0, 2_400), (310, 900)))
    assert suspect.release == "r3"
    assert suspect.sentence == "began with r3: 0 of 12,400 attempts before, 310 of 900 since"


def test_later_releases_with_the_cause_count_as_since():
    suspect = find_suspect(history((0, 10_000), (300, 900), (40, 100)))
    assert (suspect.release, suspect.deaths_since, suspect.attempts_since) == ("r2", 340, 1000)


def test_a_cause_that_became_more_frequent_says_so():
    suspect = find_suspect(history((3, 12_400), (310, 900)))
    assert suspect.sentence.startswith("rose with r2: 3 of 12,400")


def test_a_cause_as_frequent_as_before_suspects_no_release():
    assert find_suspect(history((20, 1000), (25, 1000), (19, 1000))) is None
    assert find_suspect(history((1, 1000), (1, 800))) is None


def test_without_attempts_before_there_is_no_suspect():
    assert find_suspect([]) is None
    assert find_suspect(history((310, 900))) is None
    assert find_suspect(history((0, 0), (310, 900))) is None


def test_a_few_attempts_before_are_no_evidence():
    assert find_suspect(history((0, 3), (1, 3))) is None


FIRST_SEEN = {"r41": 100, "r42": 200, "r43": 300}


def test_a_cause_resolved_without_a_release_is_fixed_in_every_one():
    assert has_fix("", "", 250, FIRST_SEEN)
    assert has_fix("r41", "", 250, FIRST_SEEN)


def test_next_is_the_first_release_that_is_seen_after_the_mark():
    assert [has_fix(name, "next", 250, FIRST_SEEN) for name in ("r41", "r42", "r43")] == [
        False,
        False,
        True,
    ]


def test_a_named_release_and_later_ones_have_the_fix():
    assert [has_fix(name, "r42", 50, FIRST_SEEN) for name in ("r41", "r42", "r43")] == [
        False,
        True,
        True,
    ]
    assert not has_fix("r43", "r44", 50, FIRST_SEEN)


def test_an_unknown_release_is_never_a_regression():
    assert not has_fix("", "next", 250, FIRST_SEEN)
    assert not has_fix("r40", "r42", 250, FIRST_SEEN)
