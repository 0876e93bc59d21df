"""Write the tables and charts of docs/contributors/performance.md from the results of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.peers.bars import TITLES, judge_all
from bench.peers.charts import Bar, Panel, draw_chart
from bench.peers.contenders import BY_NAME, OURS, Contender
from bench.peers.crashes import JOBS, RECOVERY_TIMEOUT
from bench.peers.results import Run
from bench.world import ROOT

PAGE = ROOT / "docs" / "contributors" / "performance.md"
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
    rate = _rate(run, column, name)
    ours = _rate(run, column, _base(BY_NAME[name]))
    if rate is None or not ours:
        return None
    return rate / ours


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def _seconds(run: Run, case: str, name: str) -> str:
    seconds = run.figure(case, name, "seconds")
    done = run.figure(case, name, "done")
    if seconds is None or done is None:
        return "–"
    if done < JOBS:
        return f"> {RECOVERY_TIMEOUT:.0f} ({done:.0f} of {JOBS})"
    return f"{seconds:.1f}"


def _number(run: Run, case: str, name: str, figure: str) -> str:
    value = run.figure(case, name, figure)
    if value is None:
        return "–"
    if value < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


# -- tables --------------------------------------------------------------------------------------
def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _contender_names(run: Run, cases: Iterable[str], *, limits: bool = False) -> list[str]:
    """Return the contenders of these cases, with `limits` also the databases alone."""
    measured: set[str] = set()
    for case in cases:
        measured.update(run.contenders(case))
    names = []
    for name in run.about["contenders"]:
        if name in measured and (limits or not BY_NAME[name].limit):
            names.append(name)
    return names


def _conditions(run: Run) -> str:
    about = run.about
    machine = about["machine"]
    servers = []
    for name, settings in about["servers"].items():
        values = [f"{key} {value}" for key, value in settings.items() if value]
        servers.append(f"{name}: {', '.join(values)}")
    rounds = ", ".join(map(str, sorted({*about["rounds"]})))
    scale = "" if about["scale"] == 1 else f", scale {about['scale']:g}"
    kernel = machine["kernel"].partition("-")[0]
    return (
        f"Measured {about['at'][:10]}: {machine['cores']} cores, {machine['memory, GB']:.0f} GB, "
        f"Linux {kernel}, Python {machine['python']}, an fdatasync of 8 kB "
        f"{machine['fdatasync of 8 kB, ms']:.2f} ms, load {machine['load']:.1f} at the start; "
        f"{rounds} rounds{scale}. {'; '.join(servers)}."
    )


def _bars(run: Run) -> str:
    results = {True: "met", False: "**not met**", None: "not measured"}
    rows = []
    for bar in judge_all(run):
        rows.append((bar.what, bar.store, bar.bar, bar.text, results[bar.met]))
    return "### Bars\n\n" + _table(("what", "store", "bar", "measured", ""), rows)


def _rates(run: Run) -> str:
    columns = [column for column, (case, _, _) in RATES.items() if case in run.cases()]
    if not columns:
        return ""
    cases = [RATES[column][0] for column in columns]
    rows = []
    for name in _contender_names(run, cases, limits=True):
        store = TITLES.get(BY_NAME[name].store, "Redis")
        ratios = [_ratio(_against_ours(run, column, name)) for column in columns]
        rows.append((name, store, *ratios))
    note = "Jobs a second as a share of ours on the same store; those on Redis against ours on PostgreSQL."
    table = _table(("", "store", *columns), rows)
    pictures = [_picture_link(column, CHARTS[column]) for column in CHARTS if column in columns]
    return "\n\n".join(["### Throughput", note, table, *pictures])


def _waits(run: Run) -> str:
    columns = {head: source for head, source in WAITS.items() if source[0] in run.cases()}
    if not columns:
        return ""

    def cell(name: str, case: str, figure: str) -> str:
        if case == "backlog":
            return _ratio(run.figure(case, name, figure))
        return _number(run, case, name, figure)

    rows = []
    for name in _contender_names(run, [case for case, _ in columns.values()]):
        rows.append((name, *(cell(name, case, figure) for case, figure in columns.values())))
    return "### Latency, rest, backlog\n\n" + _table(("", *columns), rows)


def _crashes(run: Run) -> str:
    cases = [case for case in run.cases() if case.startswith("crash")]
    if not cases:
        return ""
    rows = []
    for name in _contender_names(run, cases):
        rows.append((name, *(_seconds(run, case, name) for case in cases)))
    note = "Seconds from `kill -9` until ten jobs of five seconds are all done."
    heads = ("", *(case.removeprefix("crash of ") for case in cases))
    table = _table(heads, rows)
    return "\n\n".join(["### Crash", note, table, _picture_link("crash", KILLED)])


def _poison(run: Run) -> str:
    cases = [case for case in run.cases() if case.startswith("poison")]
    if not cases:
        return ""

    def cell(name: str, case: str) -> str:
        starts = run.worst(case, name, "starts")
        done = run.figure(case, name, "innocent done")
        if starts is None or done is None:
            return "–"
        return f"{starts:.0f} / {done:.0f}"

    rows = []
    for name in _contender_names(run, cases):
        rows.append((name, *(cell(name, case) for case in cases)))
    note = "Starts of the job that kills / innocent jobs done of ten, within a minute."
    heads = ("", *(case.removeprefix("poison ") for case in cases))
    return "\n\n".join(["### Poison", note, _table(heads, rows)])


def _missing(run: Run) -> str:
    """List measurements that failed and systems that were left out."""
    lines = set()
    for measurement in run.measured:
        if measurement.error:
            what = f"{measurement.case}, {measurement.contender}"
            lines.add(f"- {what}: {_line(measurement.error)}")
    for name, why in run.about.get("left out", {}).items():
        lines.add(f"- {name}: left out, {_line(why)}")
    if not lines:
        return ""
    return "### Without a figure\n\n" + "\n".join(sorted(lines))


def _line(text: str) -> str:
    return text.splitlines()[0][:200]


def _picture_link(what: str, title: str) -> str:
    return f"![{title}](../pictures/performance-{_file(what)}.svg)"


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
    if BY_NAME[name].ours:
        return "ours"
    return "limit" if BY_NAME[name].limit else "other"


def _panels(run: Run, column: str) -> Iterator[Panel]:
    """Yield the panel of each store on which another system was measured."""
    for store, title in PANELS.items():
        bars = []
        has_others = False
        for name in _contender_names(run, [RATES[column][0]], limits=True):
            is_shown = BY_NAME[name].store == store
            if store == "redis" and name == OURS["postgres"]:
                is_shown = True
            value = _against_ours(run, column, name)
            if is_shown and value is not None:
                bars.append(Bar(name, value, _ratio(value), _bar_class(name)))
                has_others |= not BY_NAME[name].ours
        if has_others:
            yield Panel(title, bars)


def _crash_panels(run: Run) -> Iterator[Panel]:
    for how in ("default", "fast"):
        case = f"crash of all, {how}"
        bars = []
        for name in _contender_names(run, [case]):
            seconds = run.figure(case, name, "seconds") or 0
            bars.append(Bar(name, seconds, _seconds(run, case, name), _bar_class(name)))
        if bars:
            yield Panel(f"{how} settings", bars)
