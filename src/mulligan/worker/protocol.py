"""Messages between supervisor and runner, as lists.

To a runner:
    ["run", seqs, shared, columns, previous_attempts]
    ["stop", seq, with_stacks]   ["recall", seq]   ["drain"]   ["step_saved", request, ok]
    ["gate", request, closed_gate]

From a runner:
    ["settings", values]   ["ready", manifest]   ["load_failed", error]
    ["returned", [seq, ms, seq, ms, …]]
    ["ended", [[seq, …outcome], …]]
    ["progress", [[seq, fraction, text], …]]
    ["step", request, seq, record]
    ["step_began", seq, step, time limit]   ["step_ended", seq, name]
    ["gates", request, seq, dependencies]
    ["stacks", seq, [[title, [[path, line, function], …]], …]]
"""

from __future__ import annotations

import json
import marshal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from mulligan.core.attempt import Cls, Ended, Failure, Lease, Outcome, StepFailure
from mulligan.core.job import PreviousAttempts, RecordedStep
from mulligan.core.waits import RequestedWait, WaitKind
from mulligan.steps.rules import StepRecord

# --- Size ---

T = TypeVar("T")


def split_by_size(items: Sequence[T], sizes: Sequence[int], limit: int) -> Iterator[Sequence[T]]:
    """Yield the items in runs of at most `limit` in total. An item that is larger is alone."""
    start = 0
    total = 0
    for place, size in enumerate(sizes):
        if total and total + size > limit:
            yield items[start:place]
            start = place
            total = 0
        total += size
    if start < len(items):
        yield items[start:]


# --- Connection: length-prefixed messages over a socket pair ---

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 16  # bytes per recv; a larger buffer would be allocated anew for each message
MAX_MESSAGE = 1 << 28  # bytes; no result is as large
CHUNK_SIZE = 1 << 23  # characters of results or payloads in one message, unless one is larger
_encode_json = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, check_circular=False
).encode


def _to_json(message: list[Any]) -> bytes:
    return _encode_json(message).encode("utf-8", "surrogatepass")


def _from_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8", "surrogatepass"))


def _from_marshal(body: bytes) -> Any:
    return marshal.loads(body)  # noqa: S302 - only the supervisor can write to this socket


class WireClosed(ConnectionError):
    """The other process has closed the connection."""


class Wire:
    """One end of the connection. Never blocks: what the socket does not take is sent by `flush`.

    The supervisor sends marshal, which is fast, and receives JSON, because it must not trust what
    a runner sends.
    """

    def __init__(
        self,
        sock: socket.socket,
        encode_message: Callable[[list[Any]], bytes],
        decode_message: Callable[[bytes], Any],
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._encode_message = encode_message
        self._decode_message = decode_message
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @classmethod
    def for_supervisor(cls, sock: socket.socket) -> Wire:
        """Return the supervisor's end."""
        return cls(sock, marshal.dumps, _from_json)

    @classmethod
    def for_runner(cls, sock: socket.socket) -> Wire:
        """Return the runner's end."""
        return cls(sock, _to_json, _from_marshal)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """True if something is left to send."""
        return bool(self._outgoing)

    def send(self, *messages: list[Any]) -> None:
        """Send messages together, so that the other process wakes up once."""
        for message in messages:
            body = self._encode_message(message)
            self._outgoing += _LENGTH.pack(len(body))
            self._outgoing += body
        self.flush()

    def flush(self) -> bool:
        """Send what is pending. True if nothing is left."""
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
        """Yield all complete messages. Raise WireClosed after the last one if the end is closed."""
        closed = self._fill()
        while len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > MAX_MESSAGE:
                message = f"a message of {length:,} bytes is larger than {MAX_MESSAGE:,} bytes"
                raise ValueError(message)
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[_LENGTH.size : end])
            del self._incoming[:end]
            yield self._decode_message(body)
        if closed:
            message = "the other process closed the connection"
            raise WireClosed(message)

    def _fill(self) -> bool:
        """Read what has arrived. True if the other end is closed."""
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
        """Close the socket."""
        self.sock.close()


# --- Leases ---


def leases_to_wire(
    seqs: list[int],
    leases: Sequence[Lease],
    previous_attempts: Mapping[int, PreviousAttempts],
) -> list[Any]:
    """Encode leases by column: a value that all of them share is sent once."""
    columns = list(zip(*leases, strict=True))
    is_single = len(seqs) == 1
    shared = {
        index: column[0]
        for index, column in enumerate(columns)
        if is_single or _is_constant(column)
    }
    varying = {index: column for index, column in enumerate(columns) if index not in shared}
    history = {seq: _previous_to_wire(previous) for seq, previous in previous_attempts.items()}
    return ["run", seqs, shared, varying, history]


def _is_constant(column: Sequence[Any]) -> bool:
    return bool(column[0] == column[-1]) and column.count(column[0]) == len(column)


def _previous_to_wire(previous: PreviousAttempts) -> list[Any]:
    last = None if previous.previous is None else dict(previous.previous)
    steps = {name: tuple(step) for name, step in previous.steps.items()}
    return [steps, last]


def previous_from_wire(item: list[Any]) -> PreviousAttempts:
    """Decode what earlier attempts left for the next one. Raise ValueError for a damaged value."""
    recorded, last = item
    steps = {name: RecordedStep._make(step) for name, step in recorded.items()}
    for step in steps.values():
        json.loads(step.value or "null")  # before the handler starts; it decodes what it asks for
    return PreviousAttempts(steps, last)


def leases_from_wire(
    size: int, shared: Mapping[int, Any], varying: Mapping[int, Sequence[Any]]
) -> Iterator[Lease]:
    """Decode leases from their columns."""
    columns = (
        varying[index] if index in varying else repeat(shared[index], size)
        for index in range(len(Lease._fields))
    )
    return map(Lease._make, zip(*columns, strict=True))


# --- Endings ---

JUST_RETURNED = Outcome(Ended.RETURNED, result="null")  # of every attempt that returned None
MAX_MS = 2**53
_RETURNED = Ended.RETURNED.value
_RETURNED_LENGTH = 5  # items of a returned attempt that was not skipped
FAILURE_SIZE = 1 << 14  # characters of an ending that is not a result, estimated
MAX_RECORDS_SIZE = 1 << 17  # characters of the records of one attempt
STOPPED = "stopped"  # the code stopped on request; the supervisor knows why
_ENDED_BY_VALUE = {ended.value: ended for ended in Ended}
_CLS_BY_VALUE = {cls.value: cls for cls in Cls}


def outcome_to_wire(seq: int, outcome: Outcome, duration_ms: int, records: str = "") -> list[Any]:
    """Encode how an attempt ended. `records`: its last records, if it failed."""
    if outcome.ended is Ended.RETURNED:
        flags: list[Any] = []
        if outcome.skipped or outcome.unused_steps or outcome.reason:
            flags = [outcome.skipped, list(outcome.unused_steps), outcome.reason]
        return [seq, _RETURNED, duration_ms, outcome.cost, outcome.result, *flags]
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
        outcome.queue,
        None if outcome.step is None else list(outcome.step),
        None if outcome.wait is None else [*outcome.wait],
        records,
    ]


def ended_messages(items: list[list[Any]]) -> list[list[Any]]:
    """Build the messages about attempts that ended; several if their results are large."""
    sizes = [_ending_size(item) for item in items]
    return [["ended", chunk] for chunk in split_by_size(items, sizes, CHUNK_SIZE)]


def _ending_size(item: list[Any]) -> int:
    if item[1] == _RETURNED:
        return len(item[4] or "")
    return FAILURE_SIZE + len(item[-1] if type(item[-1]) is str else "")


def stopped_to_wire(seq: int, duration_ms: int, cost: float, records: str = "") -> list[Any]:
    """Encode that an attempt stopped on request."""
    return [seq, STOPPED, duration_ms, cost, records]


def records_from_wire(item: list[Any]) -> str:
    """Decode the last records of an attempt that failed or was stopped."""
    if item[1] == _RETURNED:
        return ""
    records = item[-1]
    if type(records) is not str or len(records) > MAX_RECORDS_SIZE:
        message = "invalid records of an attempt"
        raise ValueError(message)
    return records


def outcome_from_wire(item: list[Any]) -> Outcome:
    """Decode how an attempt ended."""
    if item[1] == _RETURNED:
        skipped, unused, reason = item[5:] if len(item) > _RETURNED_LENGTH else (False, [], "")
        return Outcome(
            Ended.RETURNED,
            result=item[4],
            cost=item[3],
            skipped=bool(skipped),
            reason=str(reason),
            unused_steps=tuple(map(str, unused)),
        )
    _, ended, _, cost, failure, after, until, reason, choices, dependency, final, *rest = item
    queue, step, wait, _ = rest
    return Outcome(  # positional: keyword arguments take twice as long
        _ENDED_BY_VALUE[ended],
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
        queue=queue,
        step=None if step is None else step_failure_from_wire(step),
        wait=_wait_from_wire(wait),
    )


def _wait_from_wire(item: list[Any] | None) -> RequestedWait | None:
    """Decode a wait. Check the types of what is stored: a handler may have forged it."""
    if item is None:
        return None
    wait = RequestedWait._make(item)
    if {type(wait.name), type(wait.detail)} != {str} or not _are_numbers([wait.number]):
        message = "invalid message about a wait"
        raise ValueError(message)
    return wait._replace(kind=WaitKind(wait.kind))


def duration_from_wire(item: list[Any]) -> int:
    """Decode how many milliseconds an attempt took."""
    took = item[2]
    if type(took) is not int or not 0 <= took < MAX_MS:
        message = "invalid duration of an attempt"
        raise ValueError(message)
    return took


def returned_from_wire(ends: list[int]) -> tuple[list[int], list[int]]:
    """Decode attempts that returned None: their seqs, and the milliseconds that each took."""
    if len(ends) % 2 or not _are_numbers(ends):
        message = "invalid message about returned attempts"
        raise ValueError(message)
    return ends[::2], ends[1::2]


def _are_numbers(values: list[int]) -> bool:
    return (
        bool(values) and {*map(type, values)} == {int} and min(values) >= 0 and max(values) < MAX_MS
    )


# --- Steps ---


def step_from_wire(item: list[Any]) -> StepRecord:
    """Decode a step. Check the types of what is stored: a handler may have forged it."""
    record = StepRecord._make(item)
    texts = (record.name, record.kind, record.state, record.detail, record.value or "")
    if {*map(type, texts)} != {str} or not _are_numbers([record.number, record.took]):
        message = "invalid message about a step"
        raise ValueError(message)
    return record


def step_failure_from_wire(item: list[Any]) -> StepFailure:
    """Decode the step in which an attempt failed. Check the types of what is stored."""
    step = StepFailure._make(item)
    texts = (step.name, step.policy or "", step.uses)
    if {*map(type, texts)} != {str} or not _are_numbers([step.number, step.took]):
        message = "invalid message about a step"
        raise ValueError(message)
    return step


# --- Failures ---


def failure_to_wire(failure: Failure | None) -> list[Any] | None:
    """Encode a failure."""
    if failure is None:
        return None
    return [
        failure.code,
        failure.cls.value,
        failure.public,
        failure.rule,
        failure.retryable,
        failure.retry_after,
        as_dict(failure.evidence),
        as_dict(failure.private),
        failure.fingerprint,
        as_dict(failure.terms),
        as_dict(failure.judged),
    ]


def failure_from_wire(item: list[Any] | None) -> Failure | None:
    """Decode a failure. Check the types of what is stored: a handler may have forged it."""
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
    text_types = {type(code), type(public), type(rule), type(fingerprint)}
    mapping_types = {type(evidence), type(private), type(terms), type(judged)}
    if text_types != {str} or mapping_types != {dict}:
        message = "invalid message about a failure"
        raise ValueError(message)
    return Failure(
        code,
        _CLS_BY_VALUE[cls],
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


def as_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as an exact dict, which marshal and JSON can encode."""
    return values if type(values) is dict else dict(values)


# --- Hooks ---


class HookFault(NamedTuple):
    """Errors of one hook since the last report."""

    hook: str
    faults: int
    error: str  # the last one
