"""Write the tables and charts of docs/performance.md from the results of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.peers.bars import TITLES, judge_all
from bench.peers.charts import Bar, Panel, draw_chart
from bench.peers.contenders import BY_NAME, OURS, Contender
from bench.peers.crashes import JOBS, RECOVERY_TIMEOUT
from bench.peers.results import Run
from bench.world import ROOT

PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
MEASURED_PART = re.compile(
    r"(?<=<!-- measured: written by python -m bench peers --report -->\n).*(?=<!-- measured: end -->)",
    re.DOTALL,
)

RATES = {
    "enqueue, one": ("enqueue", "one", "one, same rows"),
    "enqueue, bulk": ("enqueue", "bulk", "bulk, same rows"),
    "drain": ("drain", "jobs/s", "batches of 100"),
    "drain, 2 workers": ("drain, 2 workers", "jobs/s", ""),
    "drain, 2 ms away": ("drain, 2 ms away", "jobs/s", ""),
    "2 workers, 2 ms away": ("drain, 2 workers, 2 ms away", "jobs/s", ""),
    "retry": ("retry", "jobs/s", ""),
    "mixed failures": ("mixed failures", "jobs/s", ""),
}
WAITS = {
    "p50, ms": ("latency", "p50, ms"),
    "p99, ms": ("latency", "p99, ms"),
    "idle CPU, %": ("idle", "CPU, %"),
    "idle memory, MB": ("idle", "PSS, MB"),
    "processes": ("idle", "processes"),
    "import, ms": ("import", "ms"),
    "drain beside the backlog / empty": ("backlog", "full / empty"),
}
CHARTS = {
    "drain": "No-ops drained by one worker",
    "retry": "Every job fails once",
    "mixed failures": "Every job fails once, with exceptions of many libraries",
    "enqueue, bulk": "Enqueued in bulk",
    "enqueue, one": "Enqueued one at a time",
}
KILLED = "kill -9 of everything, restarted at once"
PANELS = {
    "postgres": "On PostgreSQL",
    "sqlite": "On SQLite, synced",
    "redis": "On Redis, against ours on PostgreSQL",
}


def write(run: Run, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    for name, picture in draw_charts(run).items():
        (pictures / f"performance-{name}.svg").write_text(picture, encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    if not MEASURED_PART.search(text):
        raise ValueError(f"{page} lacks the marks between which the results go")
    page.write_text(MEASURED_PART.sub(lambda _: format_report(run), text), encoding="utf-8")


def format_report(run: Run) -> str:
    parts = (
        _conditions(run),
        _bars(run),
        _rates(run),
        _waits(run),
        _crashes(run),
        _poison(run),
        _missing(run),
    )
    return "\n" + "\n\n".join(part for part in parts if part) + "\n\n"


# -- numbers -------------------------------------------------------------------------------------
def _rate(run: Run, column: str, name: str) -> float | None:
    case, figure, of_limit = RATES[column]
    return run.figure(case, name, of_limit if BY_NAME[name].limit else figure)


def _base(contender: Contender) -> str:
    """Return Mulligan on the same database; on PostgreSQL for systems on Redis."""
    return OURS.get(contender.store, OURS["postgres"])


def _against_ours(run: Run, column: str, name: str) -> float | None:
    rate, ours = _rate(run, column, name), _rate(run, column, _base(BY_NAME[name]))
    return None if rate is None or not ours else rate / ours


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def _seconds(run: Run, case: str, name: str) -> str:
    seconds, done = run.figure(case, name, "seconds"), run.figure(case, name, "done")
    if seconds is None or done is None:
        return "–"
    return f"{seconds:.1f}" if done >= JOBS else f"> {RECOVERY_TIMEOUT:.0f} ({done:.0f} of {JOBS})"


def _number(run: Run, case: str, name: str, figure: str) -> str:
    value = run.figure(case, name, figure)
    return "–" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


# -- tables --------------------------------------------------------------------------------------
def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *map(tuple, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _contender_names(run: Run, cases: Iterable[str], *, limits: bool = False) -> list[str]:
    taken = {name for case in cases for name in run.contenders(case)}
    return [
        name
        for name in run.about["contenders"]
        if name in taken and (limits or not BY_NAME[name].limit)
    ]


def _conditions(run: Run) -> str:
    about, machine = run.about, run.about["machine"]
    servers = "; ".join(
        f"{name}: {', '.join(f'{key} {value}' for key, value in settings.items() if value)}"
        for name, settings in about["servers"].items()
    )
    rounds = ", ".join(map(str, sorted({*about["rounds"]})))
    return (
        f"Measured {about['at'][:10]}: {machine['cores']} cores, {machine['memory, GB']:.0f} GB, Linux "
        f"{machine['kernel'].partition('-')[0]}, Python {machine['python']}, an fdatasync of 8 kB "
        f"{machine['fdatasync of 8 kB, ms']:.2f} ms, load {machine['load']:.1f} at the start; "
        f"{rounds} rounds{'' if about['scale'] == 1 else ', scale ' + format(about['scale'], 'g')}. {servers}."
    )


def _bars(run: Run) -> str:
    results = {True: "met", False: "**not met**", None: "not measured"}
    rows = ((one.what, one.store, one.bar, one.text, results[one.met]) for one in judge_all(run))
    return "### Bars\n\n" + _table(("what", "store", "bar", "measured", ""), rows)


def _rates(run: Run) -> str:
    columns = [column for column, (case, _, _) in RATES.items() if case in run.cases()]
    if not columns:
        return ""
    rows = (
        (
            name,
            TITLES.get(BY_NAME[name].store, "Redis"),
            *(_ratio(_against_ours(run, column, name)) for column in columns),
        )
        for name in _contender_names(run, (RATES[column][0] for column in columns), limits=True)
    )
    note = "Jobs a second as a share of ours on the same store; those on Redis against ours on PostgreSQL."
    pictures = "\n\n".join(
        _picture_link(column, title) for column, title in CHARTS.items() if column in columns
    )
    return (
        f"### Throughput\n\n{note}\n\n" + _table(("", "store", *columns), rows) + f"\n\n{pictures}"
    )


def _waits(run: Run) -> str:
    columns = {head: source for head, source in WAITS.items() if source[0] in run.cases()}
    if not columns:
        return ""

    def cell(name: str, case: str, figure: str) -> str:
        return (
            _ratio(run.figure(case, name, figure))
            if case == "backlog"
            else _number(run, case, name, figure)
        )

    rows = (
        (name, *(cell(name, *source) for source in columns.values()))
        for name in _contender_names(run, (case for case, _ in columns.values()))
    )
    return "### Latency, rest, backlog\n\n" + _table(("", *columns), rows)


def _crashes(run: Run) -> str:
    cases = [case for case in run.cases() if case.startswith("crash")]
    if not cases:
        return ""
    rows = (
        (name, *(_seconds(run, case, name) for case in cases))
        for name in _contender_names(run, cases)
    )
    note = "Seconds from `kill -9` until ten jobs of five seconds are all done."
    heads = ("", *(case.removeprefix("crash of ") for case in cases))
    return (
        f"### Crash\n\n{note}\n\n" + _table(heads, rows) + f"\n\n{_picture_link('crash', KILLED)}"
    )


def _poison(run: Run) -> str:
    cases = [case for case in run.cases() if case.startswith("poison")]
    if not cases:
        return ""

    def cell(name: str, case: str) -> str:
        starts, done = run.worst(case, name, "starts"), run.figure(case, name, "innocent done")
        return "–" if starts is None or done is None else f"{starts:.0f} / {done:.0f}"

    rows = ((name, *(cell(name, case) for case in cases)) for name in _contender_names(run, cases))
    note = "Starts of the job that kills / innocent jobs done of ten, within a minute."
    return f"### Poison\n\n{note}\n\n" + _table(
        ("", *(case.removeprefix("poison ") for case in cases)), rows
    )


def _missing(run: Run) -> str:
    """List measurements that failed and systems that were left out."""
    lines = {
        f"- {one.case}, {one.contender}: {_line(one.error)}" for one in run.measured if one.error
    }
    lines |= {
        f"- {name}: left out, {_line(why)}" for name, why in run.about.get("left out", {}).items()
    }
    return "### Without a figure\n\n" + "\n".join(sorted(lines)) if lines else ""


def _line(text: str) -> str:
    return text.splitlines()[0][:200]


def _picture_link(what: str, title: str) -> str:
    return f"![{title}](pictures/performance-{_file(what)}.svg)"


def _file(what: str) -> str:
    return what.replace(", ", "-").replace(" ", "-")


# -- pictures ------------------------------------------------------------------------------------
def draw_charts(run: Run) -> dict[str, str]:
    found = {}
    for column, title in CHARTS.items():
        if RATES[column][0] in run.cases():
            note = "jobs a second, ours = 1"
            found[_file(column)] = draw_chart(title, note, list(_panels(run, column)))
    if any(case.startswith("crash") for case in run.cases()):
        found["crash"] = draw_chart(
            KILLED,
            "seconds until ten jobs of five seconds are done",
            list(_crash_panels(run)),
        )
    return found


def _bar_class(name: str) -> str:
    return "ours" if BY_NAME[name].ours else "limit" if BY_NAME[name].limit else "other"


def _panels(run: Run, column: str) -> Iterator[Panel]:
    for store, title in PANELS.items():
        there = _contender_names(run, [RATES[column][0]], limits=True)
        names = [
            name
            for name in there
            if BY_NAME[name].store == store or (store, name) == ("redis", OURS["postgres"])
        ]
        known = [
            (name, value)
            for name in names
            if (value := _against_ours(run, column, name)) is not None
        ]
        if any(not BY_NAME[name].ours for name, _ in known):
            yield Panel(
                title, [Bar(name, value, _ratio(value), _bar_class(name)) for name, value in known]
            )


def _crash_panels(run: Run) -> Iterator[Panel]:
    for how in ("default", "fast"):
        case = f"crash of all, {how}"
        bars = [
            Bar(
                name,
                run.figure(case, name, "seconds") or 0,
                _seconds(run, case, name),
                _bar_class(name),
            )
            for name in _contender_names(run, [case])
        ]
        if bars:
            yield Panel(f"{how} settings", bars)
