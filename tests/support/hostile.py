"""A hundred kinds of hostile failures: texts nobody should trust in every place a text can be, and odd objects."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable
from typing import Any

from mulligan.core.errors import ProcessFailed

TEXTS = {
    "nothing": "",
    "nul": "a\0b",
    "surrogates": "a\ud800b\udfff",
    "controls": "\x1b[2J\x1b]0;owned\x07\x7f\x9b31m",
    "turned around": "\u202egnp.exe\u202c \u2066x\u2069",
    "zero width": "a\u200bb\ufeffc\u2060",
    "lines": "a\r\nb\rc\u2028d\u2029e\x0bf\x0cg",
    "combining": "Z" + "\u0301" * 2000,
    "wide": "💥" * 3000,
    "20 MB": "x" * 20_000_000,
    "5 MB of nul": "\0" * 5_000_000,
    "one line of words": "word " * 100_000,
    "html": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "template": "{{ 7*7 }} ${7*7} #{7*7} %s %d %(x)s {0} {x!r}",
    "sql": "'; DROP TABLE job; --",
    "json": '{"code": "FAKE", "class": "transient", "retryable": true}',
    "formula": "=cmd|' /C calc'!A0",
    "log line": "x\n2026-01-01 00:00:00 CRITICAL mulligan.worker all is lost",
    "words of all classes": "404 timeout permission denied 503 quota exceeded out of memory invalid cancelled",
    "numbers": "0x7f 1e999 -0 NaN Infinity 9" + "9" * 400,
    "quotes": "'\"`\\" * 500,
    "markup": "]]>&lt;&amp;&#0;<!--",
    "path": "../../../../etc/passwd",
    "half a secret": "password=",
}


def _body(text: str) -> Exception:
    exc = RuntimeError("answer")
    vars(exc).update(status_code=503, body={"error": {"message": text, "code": text, "type": text}})
    return exc


def _stderr(text: str) -> Exception:
    return ProcessFailed("ffmpeg", exit_code=183, stderr=text)


def _cause(text: str) -> Exception:
    exc = RuntimeError("outer")
    exc.__cause__ = OSError(errno.ENOSPC, text, text)
    return exc


def _named(text: str) -> Exception:
    try:
        return type(text.replace("\0", "") or "E", (Exception,), {"__module__": text})("x")
    except UnicodeEncodeError:  # no class can have that name
        return type("E", (Exception,), {"__module__": text})("x")


CARRIERS: dict[str, Callable[[str], BaseException]] = {
    "message": ValueError,
    "body": _body,
    "stderr": _stderr,
    "cause": _cause,
    "name": _named,
}


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrIsNoStr(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 - the point of the story


class Liar(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 3

    def isprintable(self) -> bool:
        raise RuntimeError("never call me")


class StrLies(Exception):
    def __str__(self) -> str:
        return Liar("\0" * 100_000)


class Repr(Exception):
    def __repr__(self) -> str:
        raise KeyboardInterrupt


class NeedsArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class Traps(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class ClassTrap(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Meta(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")

    @property
    def __module__(cls) -> Any:
        raise RuntimeError("no module")


class OddClass(Exception, metaclass=Meta):
    pass


class NoModule(Exception):
    __module__ = None  # type: ignore[assignment]


class Properties(Exception):
    """Every property of interest raises something else."""

    status_code = property(lambda _: 1 / 0)
    response = property(lambda _: (_ for _ in ()).throw(SystemExit(1)))
    code = property(lambda _: {}["x"])
    args = property(lambda _: (_ for _ in ()).throw(KeyboardInterrupt))  # type: ignore[assignment]
    __notes__ = property(lambda _: 1 / 0)


class Mock(Exception):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Mock(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Mock("called")


class Values(Exception):
    """Right names, wrong values."""

    def __init__(self) -> None:
        self.status_code, self.code, self.errno, self.sqlstate = (
            10**30,
            float("nan"),
            "28",
            b"40001",
        )
        self.response, self.headers = {"Error": 7, "ResponseMetadata": []}, {b"\xff": object()}
        self.body, self.details, self.errors = object(), "x" * 10, {1: 2}
        self.retry_after, self.recipients, self.reason = float("inf"), {"a": 7}, self


def cyclic() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def own_cause() -> BaseException:
    exc = ValueError("own")
    exc.__cause__ = exc
    return exc


def long_chain() -> BaseException:
    first = exc = ValueError("0")
    for i in range(10_000):
        exc.__context__ = ValueError(str(i))
        exc = exc.__context__
    return first


def deep_group() -> BaseException:
    group = ExceptionGroup("leaf", [ValueError("x")])
    for _ in range(500):
        group = ExceptionGroup("g", [group])
    return group


def deep_stack() -> BaseException:
    def dive(n: int) -> None:
        if n:
            dive(n - 1)
        raise ValueError("deep")

    try:
        dive(500)
    except ValueError as error:
        return error
    raise AssertionError


def endless_recursion() -> BaseException:
    def dive() -> None:
        dive()

    try:
        dive()
    except RecursionError as error:
        return error
    raise AssertionError


OBJECTS: dict[str, Callable[[], BaseException]] = {
    "str raises": StrRaises,
    "str exits": StrExits,
    "str is no str": StrIsNoStr,
    "str lies": StrLies,
    "repr interrupts": Repr,
    "needs arguments": lambda: NeedsArguments(1, 2),
    "traps": Traps,
    "class trap": ClassTrap,
    "odd class": OddClass,
    "no module": NoModule,
    "properties": Properties,
    "mock": Mock,
    "values": Values,
    "cyclic": cyclic,
    "own cause": own_cause,
    "long chain": long_chain,
    "deep group": deep_group,
    "wide group": lambda: ExceptionGroup("g", [ValueError(str(i)) for i in range(10_000)]),
    "base group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit(1)]),
    "deep stack": deep_stack,
    "endless recursion": endless_recursion,
    "exit": lambda: SystemExit("\0"),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "stop": lambda: StopIteration(1),
    "odd errno": lambda: OSError("x", "y", "z"),
    "odd process": lambda: ProcessFailed(None, exit_code="1", signal=[], stderr=b"x"),  # type: ignore[arg-type]
    "odd command": lambda: subprocess.CalledProcessError(None, []),  # type: ignore[arg-type]
    "odd arguments": lambda: KeyError(b"\xff", object(), {1: [2]}),
}


def _carried(carry: Callable[[str], BaseException], text: str) -> Callable[[], BaseException]:
    return lambda: carry(text)


HOSTILE: dict[str, Callable[[], BaseException]] = {
    **{
        f"{what} as {where}": _carried(carry, text)
        for what, text in TEXTS.items()
        for where, carry in CARRIERS.items()
    },
    **OBJECTS,
}
