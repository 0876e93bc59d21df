"""Cron expressions: which are refused, and which slots the others name, above all when clocks change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mulligan.core.durations import SECOND, to_datetime, to_micros
from mulligan.core.errors import ConfigError
from mulligan.schedules.rules import (
    check_cron,
    count_slots,
    newest_slots,
    next_slot,
    slots_after,
    slots_between,
)

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
HOUR = 3600 * SECOND
DAY = 24 * HOUR


def at(*parts, zone=UTC):
    return to_micros(datetime(*parts, tzinfo=zone))


def local_times(expr, zone, year, month, day):
    """The slots of one local day, as the clock on the wall shows them."""
    begin = datetime(year, month, day, tzinfo=zone)
    after, until = to_micros(begin) - 1, to_micros(begin + timedelta(days=1)) - 1
    return [
        f"{to_datetime(slot).astimezone(zone):%H:%M%z}"[:-2]
        for slot in slots_between(expr, zone, after, until)
    ]


# -- refused -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("@daily", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 */30 * MON#2", "never comes"),
        ("0 " * 200, "is not a cron expression"),
        (None, "is not a cron expression"),
        (5, "is not a cron expression"),
    ],
)
def test_an_invalid_cron_expression_is_refused_with_help(expr, why):
    with pytest.raises(ConfigError, match=rf"{why}.*minute hour day month weekday.*'0 3 \* \* \*'"):
        check_cron(expr)


@settings(deadline=None)  # a busy machine is no defect
@given(st.text(alphabet="0123456789*/-,#LWMONFEB @\t²", max_size=40))
def test_any_text_is_a_valid_cron_expression_or_refused(text):
    try:
        expr = check_cron(text)
    except ConfigError:
        return
    assert next_slot(expr, UTC, at(2026, 1, 1)) is not None


def test_spaces_and_case_are_ignored():
    assert check_cron("  0  3\t* *  mon ") == "0 3 * * mon"
    assert next_slot("0 3 * * mon", UTC, at(2026, 1, 1)) == at(2026, 1, 5, 3)


def test_six_fields_begin_with_seconds():
    found = itertools.islice(slots_after("*/20 * * * * *", UTC, at(2026, 1, 1)), 3)
    assert list(found) == [at(2026, 1, 1) + n * 20 * SECOND for n in (1, 2, 3)]


# -- clocks that change --------------------------------------------------------------------------
FORWARD = [(BERLIN, (2026, 3, 29), "+01", "+02"), (NEW_YORK, (2026, 3, 8), "-05", "-04")]
BACK = [(BERLIN, (2026, 10, 25), "+02", "+01"), (NEW_YORK, (2026, 11, 1), "-04", "-05")]
# In Berlin the hour from 2 is skipped and the hour from 2 repeated; in New York the hour from 2 and the hour from 1.
REPEATED = {BERLIN: 2, NEW_YORK: 1}


@pytest.mark.parametrize(("zone", "day", "before", "after"), FORWARD)
def test_a_time_in_a_skipped_hour_fires_once_right_after(zone, day, before, after):
    assert local_times("30 2 * * *", zone, *day) == [f"03:00{after}"]
    assert local_times("0,15,30,45 2 * * *", zone, *day) == [f"03:00{after}"]
    assert local_times("0,30 1-3 * * *", zone, *day) == [
        f"01:00{before}",
        f"01:30{before}",
        f"03:00{after}",
        f"03:30{after}",
    ]


@pytest.mark.parametrize(("zone", "day", "before", "after"), BACK)
def test_a_time_in_a_repeated_hour_fires_the_first_time_only(zone, day, before, after):
    hour = REPEATED[zone]
    assert local_times(f"30 {hour} * * *", zone, *day) == [f"0{hour}:30{before}"]
    assert local_times(f"0 {hour + 1} * * *", zone, *day) == [f"0{hour + 1}:00{after}"]


@pytest.mark.parametrize(("zone", "day", "before", "after"), FORWARD)
def test_an_expression_with_a_star_for_minute_or_hour_follows_real_time_over_a_skipped_hour(
    zone, day, before, after
):
    hours = local_times("15 * * * *", zone, *day)
    assert len(hours) == 23
    assert hours[1:3] == [f"01:15{before}", f"03:15{after}"]
    assert local_times("*/30 2 * * *", zone, *day) == []


@pytest.mark.parametrize(("zone", "day", "before", "after"), BACK)
def test_an_expression_with_a_star_for_minute_or_hour_follows_real_time_over_a_repeated_hour(
    zone, day, before, after
):
    hour = REPEATED[zone]
    hours = local_times("15 * * * *", zone, *day)
    assert len(hours) == 25
    assert hours[hour : hour + 2] == [f"0{hour}:15{before}", f"0{hour}:15{after}"]
    assert len(local_times(f"*/30 {hour} * * *", zone, *day)) == 4


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, day, *_ in (*FORWARD, *BACK)])
def test_six_fields_follow_real_time(zone, day):
    twice = {day for _, day, *_ in BACK}
    hour = 2 if day not in twice else REPEATED[zone]
    assert len(local_times(f"0 30 {hour} * * *", zone, *day)) == (2 if day in twice else 0)


def test_within_a_repeated_hour_past_slots_do_not_fire_again():
    within = at(2026, 10, 25, 1, 10)  # 02:10, the second time
    assert next_slot("30 2 * * *", BERLIN, within) == at(2026, 10, 26, 2, 30, zone=BERLIN)


EXPRESSIONS = st.sampled_from(
    [
        "30 2 * * *",
        "0,30 1-3 * * *",
        "15 * * * *",
        "*/20 2 * * *",
        "0 0 * * *",
        "7 */2 * * MON-FRI",
        "0 0 3 * * *",
    ]
)
ZONES = st.sampled_from([UTC, BERLIN, NEW_YORK])
MOMENTS = st.integers(at(2026, 1, 1), at(2026, 12, 31))


@settings(deadline=None)  # a busy machine is no defect
@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 10 * DAY), st.integers(0, 10 * DAY))
def test_slots_of_adjacent_ranges_add_up(expr, zone, begin, first, second):
    middle, end = begin + first, begin + first + second
    whole = list(slots_between(expr, zone, begin, end))
    assert whole == [
        *slots_between(expr, zone, begin, middle),
        *slots_between(expr, zone, middle, end),
    ]
    assert whole == sorted(set(whole))
    assert all(begin < slot <= end for slot in whole)


@settings(deadline=None)  # a busy machine is no defect
@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 90 * DAY), st.integers(1, 30))
def test_the_newest_slots_are_the_end_of_all_of_them(expr, zone, begin, length, most):
    whole = list(slots_between(expr, zone, begin, begin + length))
    assert newest_slots(expr, zone, begin, begin + length, most) == whole[-most:]
    assert count_slots(expr, zone, begin, begin + length, 7) == min(7, len(whole))


@settings(deadline=None)  # a busy machine is no defect
@given(ZONES, MOMENTS, st.integers(0, 59), st.integers(0, 23))
def test_a_time_of_day_fires_once_every_day_of_the_year(zone, begin, minute, hour):
    days = [
        to_datetime(slot).astimezone(zone).date()
        for slot in itertools.islice(slots_after(f"{minute} {hour} * * *", zone, begin), 40)
    ]
    assume(days)
    assert days == [days[0] + timedelta(days=n) for n in range(40)]
