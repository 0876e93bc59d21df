"""Read schedules from source code for Celery beat, APScheduler or RQ's cron, without running it.

The file is parsed, and only literals, arithmetic and the constructors of times are understood. What
cannot be read or expressed becomes a problem for a person, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from mulligan.core.errors import ConfigError

MINUTE, HOUR, DAY = 60, 3600, 86_400
CELERY_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
APSCHEDULER_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
# APScheduler sets fields left of the first given one to "*" and those right of it to the lowest.
LOWEST = {"second": "0", "minute": "0", "hour": "0", "day": "1", "month": "1", "day_of_week": "*"}
BEAT_NAMES = frozenset({"beat_schedule", "CELERYBEAT_SCHEDULE", "CELERY_BEAT_SCHEDULE"})
TIMEZONE_NAMES = frozenset({"timezone", "CELERY_TIMEZONE", "enable_timezone"})
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")  # as APScheduler counts


class FoundSchedule(NamedTuple):
    """One schedule of another system."""

    name: str
    cron: str
    kind: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    queue: str = ""
    problem: str = ""  # why a person must finish it


class FoundSchedules(NamedTuple):
    """Schedules of a file, and its time zone."""

    schedules: Sequence[FoundSchedule]
    timezone: str = ""


def read_schedules(system: str, source: str) -> FoundSchedules:
    """Read the schedules in the source code of a module of `system`."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"the file is not Python source code: {error}") from error
    reader = SourceReader(module)
    return FoundSchedules([*READERS[system](reader)], reader.timezone)


def interval_cron(seconds: float) -> str:
    """Return the cron expression of an interval; empty if there is none."""
    whole = int(seconds)
    if whole != seconds or whole < 1:
        return ""
    if whole < MINUTE and MINUTE % whole == 0:
        return f"{_every(whole)} * * * * *"
    if whole % MINUTE == 0 and whole < HOUR and HOUR % whole == 0:
        return f"{_every(whole // MINUTE)} * * * *"
    if whole % HOUR == 0 and whole < DAY and DAY % whole == 0:
        return f"0 {_every(whole // HOUR)} * * *"
    return {DAY: "0 0 * * *", 7 * DAY: "0 0 * * 1"}.get(whole, "")


def _every(count: int) -> str:
    return "*" if count == 1 else f"*/{count}"


# --- Source code ---


class Unreadable(Exception):
    """An expression that is not a literal."""


class CrontabTime(NamedTuple):
    """A crontab(...) of Celery."""

    cron: str


class SourceReader:
    """Reads values from a module without running it."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self._constants: dict[str, ast.expr] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._constants[_last_name(node.targets[0])] = node.value

    @property
    def timezone(self) -> str:
        for name, node in self.settings():
            if name in TIMEZONE_NAMES and isinstance(node, ast.Constant):
                return str(node.value) if isinstance(node.value, str) else ""
        return ""

    def settings(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield assignments and keyword arguments: name and value."""
        for node in ast.walk(self.module):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield _last_name(target), node.value
            elif isinstance(node, ast.Call):
                yield from ((word.arg, word.value) for word in node.keywords if word.arg)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield calls of functions or methods with these names."""
        for node in ast.walk(self.module):
            if isinstance(node, ast.Call) and _last_name(node.func) in names:
                yield node

    def decorated(self, name: str) -> Iterator[tuple[str, ast.Call]]:
        """Yield functions with a decorator of this name, and its call."""
        for node in ast.walk(self.module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and _last_name(decorator.func) == name:
                        yield node.name, decorator

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Evaluate a literal, arithmetic of numbers, a constant of the module or a time."""
        if depth > MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        inner: Callable[[ast.expr], Any] = lambda one: self.value(one, depth + 1)  # noqa: E731
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                return [inner(one) for one in node.elts]
            case ast.Dict():
                return {inner(key): inner(one) for key, one in _items(node)}
            case ast.UnaryOp(op=ast.USub()):
                return -inner(node.operand)
            case ast.BinOp(op=ast.Mult()):
                return _number(inner(node.left)) * _number(inner(node.right))
            case ast.BinOp(op=ast.Add()):
                return _number(inner(node.left)) + _number(inner(node.right))
            case ast.Name() if node.id in self._constants:
                return inner(self._constants[node.id])
            case ast.Call():
                return self._call(node, inner)
        raise Unreadable(f"{ast.unparse(node):.60} is not a literal")

    def _call(self, node: ast.Call, inner: Callable[[ast.expr], Any]) -> Any:
        args = [inner(one) for one in node.args]
        words = {word.arg: inner(word.value) for word in node.keywords if word.arg}
        name = _last_name(node.func)
        if name == "crontab":
            return CrontabTime(crontab(args, words))
        if name == "timedelta":
            return _timedelta(args, words)
        if name in {"schedule", "IntervalSchedule"}:
            return words.get("run_every", args[0] if args else None)
        raise Unreadable(f"{name}(…) is not understood")


MAX_DEPTH = 30


def _items(node: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            raise Unreadable("** is not understood")
        yield key, value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{value!r:.40} is not a number")
    return value


def _timedelta(args: Sequence[Any], words: Mapping[str, Any]) -> timedelta:
    try:
        return timedelta(*args, **words)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable(f"timedelta: {error}") from error


def _last_name(node: ast.expr) -> str:
    """Return the last part of a name: `beat_schedule` of `app.conf.beat_schedule`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def crontab(args: Sequence[Any], words: Mapping[str, Any]) -> str:
    """Return the cron expression of a crontab of Celery."""
    given = {**dict(zip(("minute", "hour", "day_of_week"), args, strict=False)), **words}
    unknown = set(given) - {*CELERY_FIELDS, "nowfun", "app", "tz"}
    if unknown:
        raise Unreadable(f"crontab has no {min(unknown)}")
    return " ".join(cron_field(given.get(name, "*")) for name in CELERY_FIELDS)


def cron_field(value: Any) -> str:
    """Return a field of a cron expression: text, a number, or a list of them."""
    if isinstance(value, list | tuple):
        return ",".join(cron_field(one) for one in value)
    return str(value).replace(" ", "")


def _when(value: Any) -> tuple[str, str]:
    """Return the cron expression of a time, and what is wrong with it."""
    if isinstance(value, CrontabTime):
        return value.cron, _both_days(value.cron)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return "", f"its time {value!r:.60} is not understood"
    cron = interval_cron(seconds)
    return cron, "" if cron else f"cron cannot express an interval of {seconds:g} s"


def _both_days(cron: str) -> str:
    *_, day, _, weekday = cron.split()
    if "*" not in {day, weekday}:
        return "it names days of the month and of the week: Celery wants both, cron either"
    return ""


# --- Celery beat ---


def read_celery_beat(reader: SourceReader) -> Iterator[FoundSchedule]:
    """Read beat_schedule, and calls of add_periodic_task."""
    for name, node in reader.settings():
        if name in BEAT_NAMES and isinstance(node, ast.Dict):
            try:
                entries = [*_items(node)]
            except Unreadable as error:
                yield FoundSchedule(name, "", "", problem=str(error))
                continue
            for key, entry in entries:
                yield _beat_entry(reader, key, entry)
    for call in reader.calls("add_periodic_task"):
        yield _periodic_task(reader, call)


def _beat_entry(reader: SourceReader, key: ast.expr, entry: ast.expr) -> FoundSchedule:
    name = _text(key)
    try:
        fields = dict(_named_items(entry)) if isinstance(entry, ast.Dict) else {}
    except Unreadable as error:
        return FoundSchedule(name, "", "", problem=str(error))
    task = fields.get("task")
    kind = _text(task) if task is not None else ""
    try:
        cron, problem = _when(reader.value(fields["schedule"]))
        args = reader.value(fields["args"]) if "args" in fields else []
        kwargs = reader.value(fields["kwargs"]) if "kwargs" in fields else {}
        options = reader.value(fields["options"]) if "options" in fields else {}
    except KeyError:
        return FoundSchedule(name, "", kind, problem="it has no schedule")
    except Unreadable as error:
        return FoundSchedule(name, "", kind, problem=str(error))
    queue = str(options.get("queue", "")) if isinstance(options, dict) else ""
    return FoundSchedule(name, cron, kind, tuple(args), kwargs, queue, problem)


def _named_items(node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    return ((_text(key), value) for key, value in _items(node))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ast.unparse(node)


def _periodic_task(reader: SourceReader, call: ast.Call) -> FoundSchedule:
    words = {word.arg: word.value for word in call.keywords if word.arg}
    name = _text(words["name"]) if "name" in words else ""
    kind = ""
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    try:
        signature = call.args[1]
        if isinstance(signature, ast.Call) and isinstance(signature.func, ast.Attribute):
            kind = _text(signature.func.value)
            arguments = _arguments(reader, signature)
        cron, problem = _when(reader.value(call.args[0]))
    except IndexError:
        return FoundSchedule(name or kind, "", kind, problem="it has no task")
    except Unreadable as error:
        return FoundSchedule(name or kind, "", kind, problem=str(error))
    return FoundSchedule(name or kind, cron, kind, *arguments, problem=problem)


def _arguments(reader: SourceReader, call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(reader.value(one) for one in call.args)
    return args, {word.arg: reader.value(word.value) for word in call.keywords if word.arg}


# --- APScheduler ---


def read_apscheduler(reader: SourceReader) -> Iterator[FoundSchedule]:
    """Read add_job(...) and @scheduled_job(...)."""
    for call in reader.calls("add_job"):
        if call.args:
            yield _aps_job(reader, _text(call.args[0]), call.args[1:], call.keywords)
    for function, call in reader.decorated("scheduled_job"):
        yield _aps_job(reader, function, call.args, call.keywords)


def _aps_job(
    reader: SourceReader, kind: str, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
) -> FoundSchedule:
    kind = kind.replace(":", ".")
    name = kind
    try:
        words = {word.arg: reader.value(word.value) for word in keywords if word.arg}
        name = str(words.get("id") or words.get("name") or kind)
        trigger = reader.value(args[0]) if args else words.get("trigger")
        cron, problem = _aps_time(str(trigger), words)
    except Unreadable as error:
        return FoundSchedule(name, "", kind, problem=str(error))
    arguments = tuple(words.get("args") or ())
    return FoundSchedule(name, cron, kind, arguments, words.get("kwargs") or {}, "", problem)


def _aps_time(trigger: str, words: Mapping[str, Any]) -> tuple[str, str]:
    if trigger == "interval":
        units = {"seconds": 1, "minutes": MINUTE, "hours": HOUR, "days": DAY, "weeks": 7 * DAY}
        return _when(sum(_number(words.get(unit, 0)) * size for unit, size in units.items()))
    if trigger == "cron":
        return _aps_cron(words)
    return "", f"a trigger {trigger!r:.40} is not a schedule"


def _aps_cron(words: Mapping[str, Any]) -> tuple[str, str]:
    unsupported = {"year", "week", "start_date", "end_date"} & words.keys()
    if unsupported:
        return "", f"cron has no {min(unsupported)}"
    order = ("month", "day", "day_of_week", "hour", "minute", "second")
    first = next((place for place, unit in enumerate(order) if unit in words), len(order))
    fields = {}
    for place, unit in enumerate(order):
        default = "*" if place < first else LOWEST[unit]
        fields[unit] = cron_field(words.get(unit, default))
    fields["day_of_week"] = _weekdays(fields["day_of_week"])
    parts = [fields[unit] for unit in APSCHEDULER_FIELDS]
    return " ".join(parts[1:] if parts[0] == "0" else parts), ""


def _weekdays(field: str) -> str:
    """Return days of the week as cron names them: APScheduler's 0 is Monday."""
    return "".join(DAYS[int(char)] if char in "0123456" else char for char in field)


# --- RQ ---


def read_rq(reader: SourceReader) -> Iterator[FoundSchedule]:
    """Read register(...) of a configuration of `rq cron`."""
    for call in reader.calls("register"):
        words = {word.arg: word.value for word in call.keywords if word.arg}
        function = call.args[0] if call.args else words.get("func")
        if function is None or not {"cron", "interval"} & words.keys():
            continue
        yield _rq_job(reader, _text(function), words)


def _rq_job(reader: SourceReader, kind: str, words: Mapping[str, ast.expr]) -> FoundSchedule:
    try:
        values = {name: reader.value(node) for name, node in words.items() if name != "func"}
    except Unreadable as error:
        return FoundSchedule(kind, "", kind, problem=str(error))
    cron, problem = str(values.get("cron") or ""), ""
    if not cron:
        cron, problem = _when(values["interval"])
    queue = str(values.get("queue_name") or "")
    arguments = tuple(values.get("args") or ())
    return FoundSchedule(kind, cron, kind, arguments, values.get("kwargs") or {}, queue, problem)


READERS: Mapping[str, Callable[[SourceReader], Iterator[FoundSchedule]]] = {
    "celery-beat": read_celery_beat,
    "apscheduler": read_apscheduler,
    "rq": read_rq,
}
