"""What travels between supervisor and runner, as plain lists.

to a runner     ["run", seqs, same, own, memories]   ["stop", seq]   ["recall", seq]   ["drain"]   ["kept", request, ok]
from a runner   ["settings", values]   ["ready", manifest]   ["broken", why]   ["ended", [[seq, …outcome], …]]
                ["returned", [seq, ms, seq, ms, …]]   ["failed", failure, head, tail, [seq, ms, words, …]]
                ["progress", [[seq, fraction, text], …]]
                ["keep", request, seq, name, value]
"""

from __future__ import annotations

import json
import marshal
import mmap
import os
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Ended, Failure, Lease, Outcome
from mulligan.core.job import PreviousAttempts
from mulligan.core.json import encode
from mulligan.failures.facts import Wording

# Messages between a supervisor and a runner: length-prefixed, over a socketpair.

_HEAD = struct.Struct(">I")
_CHUNK = 1 << 16  # more would be memory asked of the kernel for each message
MOST = 1 << 28  # bytes of a message: no result is as large
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def _to_json(message: list[Any]) -> bytes:
    return _encode(message).encode("utf-8", "surrogatepass")


def _from_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _from_marshal(body: bytes) -> Any:
    return marshal.loads(body)  # noqa: S302 - a runner hears nobody but its supervisor


class WireClosed(ConnectionError):
    """The other side is gone."""


class Wire:
    """One end. Never blocks: what the socket does not take is kept until `flush` is called again."""

    def __init__(
        self, sock: socket.socket, says: Callable[[list[Any]], bytes], hears: Callable[[bytes], Any]
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._says = says
        self._hears = hears
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @classmethod
    def of_supervisor(cls, sock: socket.socket) -> Wire:
        return cls(sock, marshal.dumps, _from_json)

    @classmethod
    def of_runner(cls, sock: socket.socket) -> Wire:
        return cls(sock, _to_json, _from_marshal)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        return bool(self._outgoing)

    def send(self, *messages: list[Any]) -> None:
        """All of them at once: the other side wakes up once."""
        for message in messages:
            body = self._says(message)
            self._outgoing += _HEAD.pack(len(body))
            self._outgoing += body
        self.flush()

    def flush(self) -> bool:
        """True when nothing is left to send."""
        while self._outgoing:
            try:
                sent = self.sock.send(self._outgoing)
            except BlockingIOError:
                return False
            except OSError as error:
                raise WireClosed(str(error)) from error
            del self._outgoing[:sent]
        return True

    def receive(self) -> Iterator[list[Any]]:
        """All whole messages that have arrived; raises WireClosed after the last one when the other side is gone."""
        closed = self._fill()
        while len(self._incoming) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._incoming)
            if length > MOST:
                message = f"a message of {length:,} bytes"
                raise ValueError(message)
            end = _HEAD.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[_HEAD.size : end])
            del self._incoming[:end]
            yield self._hears(body)
        if closed:
            message = "the other side closed the connection"
            raise WireClosed(message)

    def _fill(self) -> bool:
        while True:
            try:
                chunk = self.sock.recv(_CHUNK)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not chunk:
                return True
            self._incoming += chunk
            if len(chunk) < _CHUNK:
                return False

    def close(self) -> None:
        self.sock.close()


# What travels between supervisor and runner, as plain lists.

JUST_RETURNED = Outcome(
    Ended.RETURNED, result="null"
)  # one for all of which there is nothing else to say
MOST_MS = 2**53
_PLAIN = 5  # values of an attempt that returned and was not skipped
_RETURNED = Ended.RETURNED.value
MOST_COMMON = 32_768  # characters of what failures have in common, as it travels
STOPPED = "stopped"  # the code stopped because it was asked to; the supervisor knows why it asked


def work_to_wire(
    seqs: list[int], columns: Sequence[Sequence[Any]], memories: Mapping[int, PreviousAttempts]
) -> list[Any]:
    """Leases by their columns: what is the same in all of them, as most is, travels once."""
    alone = len(seqs) == 1
    same = {place: column[0] for place, column in enumerate(columns) if alone or _is_same(column)}
    own = {place: column for place, column in enumerate(columns) if place not in same}
    return ["run", seqs, same, own, {seq: _memory(memory) for seq, memory in memories.items()}]


def _is_same(column: Sequence[Any]) -> bool:
    return bool(column[0] == column[-1]) and column.count(column[0]) == len(column)


def _memory(memory: PreviousAttempts) -> list[Any]:
    return [dict(memory.checkpoints), _dict(memory.previous)]


def _dict(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)


def leases_from_wire(
    many: int, same: Mapping[int, Any], own: Mapping[int, Sequence[Any]]
) -> Iterator[Lease]:
    columns = (
        own[place] if place in own else repeat(same[place], many)
        for place in range(len(Lease._fields))
    )
    return map(Lease._make, zip(*columns, strict=True))


def outcome_to_wire(seq: int, outcome: Outcome, duration_ms: int) -> list[Any]:
    if outcome.ended is Ended.RETURNED:
        skipped = [True] if outcome.skipped else []
        return [seq, _RETURNED, duration_ms, outcome.cost, outcome.result, *skipped]
    return [
        seq,
        outcome.ended.value,
        duration_ms,
        outcome.cost,
        failure_to_wire(outcome.failure),
        outcome.after,
        outcome.until,
        outcome.reason,
        list(outcome.choices),
        outcome.dependency,
        outcome.final,
    ]


def returned_from_wire(told: list[int]) -> tuple[list[int], list[int]]:
    """Their seqs, and how many milliseconds each took; they are only believed if they are numbers, all of them."""
    if len(told) % 2 or not _are_numbers(told):
        message = "not what a runner says of jobs that returned"
        raise ValueError(message)
    return told[::2], told[1::2]


def _are_numbers(told: list[int]) -> bool:
    return bool(told) and {*map(type, told)} == {int} and min(told) >= 0 and max(told) < MOST_MS


def alike_to_wire(failure: Failure, wording: Wording, told: list[Any]) -> list[Any]:
    """Attempts that failed in the same way; of each its words alone."""
    return ["failed", failure_to_wire(failure), wording.head, wording.tail, told]


def is_brief(item: list[Any], head: str, tail: str) -> bool:
    """Each of thousands is given what they have in common: a megabyte said once would be gigabytes."""
    return len(head) + len(tail) + len(encode(item)) <= MOST_COMMON


def alike_from_wire(item: list[Any], head: str, tail: str) -> Outcome:
    """What they have in common."""
    failure = failure_from_wire(item)
    if (
        failure is None
        or type(head) is not str
        or type(tail) is not str
        or not is_brief(item, head, tail)
    ):
        message = "not what failures can have in common"
        raise ValueError(message)
    return Outcome(
        Ended.FAILED, failure=replace(failure, private=Wording(plain(failure.private), head, tail))
    )


class Common:
    """What failures have in common is mostly what the last ones had: it is read once, and is the same outcome."""

    def __init__(self) -> None:
        self._known: deque[tuple[list[Any], Outcome]] = deque(maxlen=8)

    def outcome(self, common: list[Any]) -> Outcome:
        for known, outcome in self._known:
            if known == common:
                return outcome
        outcome = alike_from_wire(*common)
        self._known.append((common, outcome))
        return outcome


def words_from_wire(told: list[Any]) -> tuple[list[int], list[int], list[str]]:
    """The same, and the words of each."""
    seqs, took, words = told[::3], told[1::3], told[2::3]
    if (
        len(told) % 3
        or {*map(type, words)} != {str}
        or not _are_numbers(seqs)
        or not _are_numbers(took)
    ):
        message = "not what a runner says of jobs that failed"
        raise ValueError(message)
    return seqs, took, words


def took_from_wire(item: list[Any]) -> int:
    took = item[2]
    if type(took) is not int or not 0 <= took < MOST_MS:
        message = "not how long an attempt can take"
        raise ValueError(message)
    return took


def stopped_to_wire(seq: int, duration_ms: int, cost: float) -> list[Any]:
    return [seq, STOPPED, duration_ms, cost]


def outcome_from_wire(item: list[Any]) -> Outcome:
    if item[1] == _RETURNED:
        return Outcome(Ended.RETURNED, result=item[4], cost=item[3], skipped=len(item) > _PLAIN)
    _, ended, _, cost, failure, after, until, reason, choices, dependency, final = item
    return Outcome(  # by position: by name it costs twice as much
        _ENDED[ended],
        None,  # result
        failure_from_wire(failure),
        after,
        until,
        reason,
        tuple(choices),
        dependency,
        final,
        False,  # alone
        cost,
    )


_ENDED = {ended.value: ended for ended in Ended}


def failure_to_wire(failure: Failure | None) -> list[Any] | None:
    if failure is None:
        return None
    return [
        failure.code,
        failure.cls.value,
        failure.public,
        failure.rule,
        failure.retryable,
        failure.retry_after,
        plain(failure.evidence),
        plain(failure.private),
        failure.fingerprint,
        plain(failure.terms),
        plain(failure.judged),
    ]


def failure_from_wire(item: list[Any] | None) -> Failure | None:
    """What is stored as text, or put together with texts, must be one."""
    if item is None:
        return None
    (
        code,
        cls,
        public,
        rule,
        retryable,
        retry_after,
        evidence,
        private,
        fingerprint,
        terms,
        judged,
    ) = item
    texts, values = (
        {type(code), type(public), type(rule), type(fingerprint)},
        (evidence, private, terms, judged),
    )
    if texts != {str} or {*map(type, values)} != {dict}:
        message = "not what a runner says of a failure"
        raise ValueError(message)
    return Failure(
        code,
        _CLASSES[cls],
        public,
        rule,
        retryable,
        retry_after,
        evidence,
        private,
        fingerprint,
        terms,
        judged,
    )


_CLASSES = {cls.value: cls for cls in Cls}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return values if type(values) is dict else dict(values)


# A small piece of shared memory in which a runner shows what it is doing, readable after its death.

# In words of eight bytes, each written at once.
_BEAT, _TOP = 0, 1
_PAGE_HEAD = 2
_CELL = 2  # the dispatch, its start
_WORD = struct.calcsize("Q")


class Running(NamedTuple):
    seq: int
    since_ns: int


class StatusPage:
    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, (_PAGE_HEAD + slots * _CELL) * _WORD)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, slots: int) -> StatusPage:
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, (_PAGE_HEAD + slots * _CELL) * _WORD)
            return cls(fd, slots)
        except OSError:
            os.close(fd)
            raise

    # -- the runner's side ------------------------------------------------------------------------
    def beat(self) -> None:
        self._words[_BEAT] = time.monotonic_ns()

    def start(self, slot: int, seq: int, now_ns: int) -> None:
        words, cell = self._words, _PAGE_HEAD + slot * _CELL
        words[_TOP] = seq
        words[cell + 1] = now_ns
        words[cell] = seq  # last: whoever sees it sees its start too

    def stop(self, slot: int) -> None:
        self._words[_PAGE_HEAD + slot * _CELL] = 0

    # -- the supervisor's side --------------------------------------------------------------------
    def last_beat_ns(self) -> int:
        return self._words[_BEAT]

    def top(self) -> int:
        """The highest dispatch that was ever started."""
        return self._words[_TOP]

    def running(self) -> list[Running]:
        cells = self._words[_PAGE_HEAD:].tolist()
        return [
            Running(seq, since)
            for seq, since in zip(cells[::_CELL], cells[1::_CELL], strict=True)
            if seq
        ]

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mulligan-board", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="mulligan-board-")
    os.unlink(path)  # noqa: PTH108 - the name was never wanted
    return fd
