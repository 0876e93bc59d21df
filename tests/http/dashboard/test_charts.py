"""Column charts: axes, marks, the whole window, and numbers for people and scripts."""

from __future__ import annotations

import pytest

from mulligan.events.queries import MINUTE
from mulligan.http.dashboard.charts import ChartMark, column_chart, depth_line, time_step
from mulligan.http.dashboard.dependencies import draw_strip

MIDNIGHT = 29_384_640  # minutes since 1970: 2025-11-14 00:00 UTC


def steps(*dead: int, length: int = 1):
    return [
        time_step(MIDNIGHT + place * length, length, MIDNIGHT * MINUTE, {"dead": count})
        for place, count in enumerate(dead)
    ]


@pytest.mark.parametrize(
    ("peak", "numbers"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (2, ["0", "1", "2"]),
        (3, ["0", "1", "2", "3"]),
        (5, ["0", "3", "6"]),
        (10, ["0", "5", "10"]),
        (11, ["0", "10", "20"]),
        (230, ["0", "150", "300"]),
        (4_500, ["0", "3,000", "6,000"]),
    ],
)
def test_the_axis_has_round_numbers_that_reach_the_highest_column(peak, numbers):
    chart = column_chart([("now", {"dead": peak})], ("dead",))
    assert [tick.label for tick in chart.y_ticks] == numbers
    assert [chart.y_ticks[0].place, chart.y_ticks[-1].place] == [100, 0]


def test_the_whole_window_is_drawn_with_the_newest_column_at_the_right_edge():
    chart = column_chart(steps(*[0] * 59, 5), ("dead",))
    assert len(chart.columns) == 60
    assert chart.columns[0].x < 1
    assert 99 < chart.columns[-1].x + chart.columns[-1].width <= 100
    assert {column.width for column in chart.columns} == {chart.columns[0].width}


def test_few_columns_are_narrow_spread_evenly_and_all_named():
    chart = column_chart([("2nd", {"dead": 3}), ("3rd", {}), ("4th", {"dead": 1})], ("dead",))
    assert [round(column.center) for column in chart.columns] == [17, 50, 83]
    assert max(column.width for column in chart.columns) <= 8
    assert [tick.label for tick in chart.x_ticks] == ["2nd", "3rd", "4th"]


def test_a_column_leads_to_the_jobs_that_ended_in_it():
    column = column_chart(steps(3, length=15), ("dead",)).columns[0]
    start, _, end = column.link.removeprefix("/jobs?filter=ended:").partition("..")
    assert column.at == f"{start}Z"
    assert (start[-5:], end[-5:]) == ("00:00", "00:15")


def test_times_of_the_axis_are_round_and_few():
    hour = column_chart(steps(*[1] * 60), ("dead",))
    assert [tick.label[-2:] for tick in hour.x_ticks] == ["00", "10", "20", "30", "40", "50"]
    week = column_chart(steps(*[1] * 84, length=120), ("dead",))
    assert (hour.form, week.form) == ("minute", "day")
    assert len(week.x_ticks) <= 7


def test_a_release_is_marked_where_it_began_unless_that_is_not_drawn():
    chart = column_chart(steps(0, 0, 4, 4), ("dead",), [ChartMark(-1, "v1"), ChartMark(3, "v2")])
    assert [(mark.label, mark.x) for mark in chart.marks] == [("v2", 75)]


def test_the_line_of_a_young_queue_is_drawn_at_the_right_of_its_hour():
    assert depth_line([4, 0], 60) is None  # two points say nothing
    line = depth_line([0, 4, 8, 2], 60)
    assert line is not None
    assert float(line.line.split(",")[0]) > 90
    assert line.line.split(" ")[-1].startswith("100,")
    assert line.label == "2 now, at most 8 in 4 min"


def test_one_death_among_thousands_stays_visible():
    chart = column_chart([("now", {"succeeded": 9_000, "dead": 1})], ("succeeded", "dead"))
    blocks = chart.columns[0].blocks
    assert [block.tone for block in blocks] == ["succeeded", "dead"]
    assert blocks[1].height >= 1


def outages(changes, state="closed"):
    parts = draw_strip(changes, state, 0, 1000)
    assert parts[0][:3] == (0, 100, "good")
    return [(part.x, part.width, part.label) for part in parts[1:]]


def test_a_strip_shows_when_a_dependency_was_down():
    assert outages({}) == []
    assert outages({}, "open") == [(0, 100, "down for 17 h")]
    assert outages({100: {"open"}, 200: {"closed"}}) == [(10, 10, "down for 100 min")]
    assert outages({200: {"closed"}}) == [(0, 20, "down for 3.3 h")]
    assert outages({900: {"open"}}, "open") == [(90, 10, "down for 100 min")]


def test_a_strip_shows_outages_shorter_than_a_minute():
    assert outages({500: {"open", "closed"}}) == [(50, 0.4, "down for 1 min")]
    assert outages({400: {"open"}, 500: {"open", "closed"}, 600: {"closed"}}) == [
        (40, 20, "down for 3.3 h")
    ]
    assert outages({1000: {"open", "closed"}}, "open") == [(99.6, 0.4, "down for 1 min")]
