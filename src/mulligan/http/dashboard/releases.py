"""The releases screen: what each release fails, and a hold for one that fails more."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_actor
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, root_path, screen
from mulligan.http.dashboard.view_models import Badge, optional_time_label, time_label
from mulligan.http.services import VisitorServices
from mulligan.insight.rules import format_percent
from mulligan.releases.rules import ReleaseState
from mulligan.releases.service import (
    CauseComparison,
    KindUnderRelease,
    Release,
    ReleaseCounts,
    ReleaseHold,
)

MAX_RELEASES = 20
MAX_KINDS = 20
MAX_CAUSES = 10
BADGES = {
    ReleaseState.WORSE: Badge("circle-x", "fails more", "bad"),
    ReleaseState.OPEN: Badge("circle", "not judged yet", "calm"),
    ReleaseState.FINE: Badge("check", "fine", "good"),
}


class ReleaseScreens:
    """The list of releases, and the kinds and causes of one of them."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/releases", MenuEntry("More", 2, "releases", "Releases", "tag", shared=True))
    async def releases(self, request: Request, release: str = "") -> Response:
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            found = services.releases.list(limit=MAX_RELEASES)
            with services.store.read() as tx:
                now = tx.now()
            chosen = next((one for one in found if one.name == release), None)
            if chosen is None and found:
                chosen = found[0]
            return {
                "rows": [_row(one, now, root, here=one is chosen) for one in found],
                "chosen": None if chosen is None else _details(services, chosen, found, now, root),
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "releases.html", "releases", **values)


def _row(release: Release, now: Micros, root: str, *, here: bool) -> dict[str, Any]:
    return {
        "name": release.name,
        "link": f"{root}/releases?release={quote(release.name, safe='')}",
        "here": here,
        "badge": BADGES[release.state],
        "since": time_label(to_micros(release.first_seen), now),
        "workers": f"{release.workers:,}",
        "starts": f"{release.counts.starts:,}",
        "failed": _share(release.counts),
        "deaths": f"{release.counts.deaths:,}",
        "held": ", ".join(hold.kind or "all kinds" for hold in release.holds),
    }


def _details(
    services: VisitorServices,
    release: Release,
    found: list[Release],
    now: Micros,
    root: str,
) -> dict[str, Any]:
    """Return the kinds and causes of a release, compared with the one before it."""
    older = found[found.index(release) + 1 :]
    causes: tuple[CauseComparison, ...] = ()
    if older:
        causes = services.releases.compare(older[0].name, release.name).causes
    return {
        "name": release.name,
        "before": older[0].name if older else "",
        "kinds": [_kind(kind, release) for kind in release.kinds[:MAX_KINDS]],
        "holds": [_hold(hold, release.name, now) for hold in release.holds],
        "causes": [_cause(cause, root) for cause in causes[:MAX_CAUSES]],
        "path": f"/releases/{quote(release.name, safe='')}",
        "has_others": any(one.workers for one in found if one is not release),
    }


def _kind(kind: KindUnderRelease, release: Release) -> dict[str, Any]:
    return {
        "name": kind.kind,
        "badge": BADGES[kind.state],
        "failed": _share(kind.counts),
        "before": _share(kind.before),
        "starts": f"{kind.counts.starts:,}",
        "is_held": any(hold.kind in {"", kind.kind} for hold in release.holds),
    }


def _hold(hold: ReleaseHold, name: str, now: Micros) -> dict[str, Any]:
    until = None if hold.until is None else to_micros(hold.until)
    return {
        "kind": hold.kind,
        "release": name,
        "since": time_label(to_micros(hold.since), now),
        "until": optional_time_label(hold.until, now) if until is not None else None,
        "by": format_actor(hold.actor),
        "reason": hold.reason,
    }


def _cause(cause: CauseComparison, root: str) -> dict[str, Any]:
    return {
        "title": cause.title or cause.code,
        "link": f"{root}/failures/{quote(cause.fingerprint)}",
        "kinds": ", ".join(cause.kinds),
        "after": "1 death" if cause.after == 1 else f"{cause.after:,} deaths",
        "before": "new" if cause.is_new else f"{cause.before:,} before",
    }


def _share(counts: ReleaseCounts) -> str:
    return format_percent(counts.failed_share)
