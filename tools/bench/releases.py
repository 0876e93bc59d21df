"""Compare ways to release a backlog; print tables and draw the chart: python -m bench.releases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.chart import draw_chart
from bench.recovery import GATEWAY, RELEASES, SETTINGS, UNKNOWN, Run, Setting, ramped

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "recovery.svg"
FIGURES = (
    "drained after",
    "times the ideal",
    "failed dispatches",
    "share",
    "highest second / capacity",
)


def compare_releases(setting: Setting) -> dict[str, Run]:
    """Run all releases in one setting."""
    return {name: Run(setting, release(setting)) for name, release in RELEASES.items()}


def run_all_settings() -> dict[str, Run]:
    """Run the ramp in every setting."""
    return {setting.name: Run(setting, ramped(setting)) for setting in SETTINGS}


def by_release(runs: Mapping[str, Run]) -> str:
    return table("release", runs)


def by_setting(runs: Mapping[str, Run]) -> str:
    return table("the dependency can do", runs)


def table(what: str, runs: Mapping[str, Run]) -> str:
    """Return a Markdown table. `what` is the heading of the first column."""
    header = (what, *FIGURES)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, run in runs.items():
        lines.append(f"| {name} | {' | '.join(figures(run))} |")
    return "\n".join(lines)


def figures(run: Run) -> tuple[str, ...]:
    """Return the cells of a run, in the order of FIGURES."""
    drained = f"never: {run.waiting[-1]:,} wait in the end"
    times_ideal = "–"
    if run.drained is not None:
        drained = f"{run.drained:,} s"
        times_ideal = f"{run.drained / run.setting.ideal():.1f}"
    share = f"{100 * run.share:.2f} %"
    return drained, times_ideal, f"{run.failures:,}", share, f"{run.highest:.2f}"


def main() -> None:
    for setting in (GATEWAY, UNKNOWN):
        runs = compare_releases(setting)
        about = f"{setting.held:,} held, {setting.fresh:g}/s fresh, ideal {setting.ideal():,.0f} s"
        print(f"{setting.name}: {about}\n{by_release(runs)}\n", flush=True)
        if setting is GATEWAY:
            PICTURE.write_text(draw_chart(runs), encoding="utf-8")
    print(by_setting(run_all_settings()))


if __name__ == "__main__":
    main()
