"""Did the kernel kill for lack of memory? Asked of the cgroup's own counter, never guessed from a signal."""

from __future__ import annotations

from pathlib import Path

_last: dict[str, int] = {}


def oom_killed() -> bool:
    """Has the counter risen since we last looked? Call once at start to set the mark."""
    rose = False
    for path in _counters():
        value = _read(path)
        rose = rose or value > _last.get(str(path), value)
        _last[str(path)] = value
    return rose


def _counters() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [path for path in found if path.exists()]


def _read(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
