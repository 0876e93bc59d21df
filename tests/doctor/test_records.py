"""The clients file and the witness file: the lines that are written and read."""

from types import SimpleNamespace

import pytest

from mulligan.core.errors import IllegalMove, StoreUnavailable
from mulligan.doctor.verify.records import Clients, append, digest, read_lines, witness, witnessed

CTX = SimpleNamespace(job=SimpleNamespace(id="job-1", kind="render"), attempt=1, token=3)


@pytest.fixture
def clients(tmp_path):
    return Clients(tmp_path / "clients.jsonl", "web-1")


def test_a_call_that_returned_writes_two_lines_with_its_job(clients):
    with clients.call("enqueue", kind="render", payload={"b": 1, "a": 2}) as call:
        call.ok(CTX.job)
    begin, end = read_lines(clients.path)
    assert (begin["line"], begin["what"], begin["client"]) == ("begin", "enqueue", "web-1")
    assert begin["request"] == {
        "kind": "render",
        "payloads": [digest({"a": 2, "b": 1})],
        "count": 1,
    }
    assert (end["call"], end["answer"], end["jobs"]) == (begin["call"], "ok", ["job-1"])
    assert begin["ns"] <= end["ns"]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (IllegalMove("no"), "refused"),
        (StoreUnavailable("away"), "unknown"),
        (TimeoutError("cut"), "unknown"),
    ],
)
def test_a_refusal_is_recorded_as_refused_and_other_exceptions_as_unknown(clients, error, answer):
    with pytest.raises(type(error)), clients.call("retry", job="job-1"):
        raise error
    _, end = read_lines(clients.path)
    assert (end["answer"], end["jobs"]) == (answer, ["job-1"])


def test_a_call_without_an_answer_is_recorded(clients):
    clients.call("enqueue", kind="render").__enter__()
    (begin,) = read_lines(clients.path)
    assert begin["request"] == {"kind": "render"}


def test_a_handler_records_start_end_and_failure_of_its_attempt(tmp_path):
    path = tmp_path / "witness.jsonl"
    witness(path, CTX, "start")
    witness(path, CTX, "end", result={"n": 7})
    with pytest.raises(ValueError, match="broken"), witnessed(path, CTX):
        raise ValueError("broken")
    lines = list(read_lines(path))
    assert [line["what"] for line in lines] == ["start", "end", "start", "fail"]
    assert {(line["job"], line["kind"], line["attempt"], line["token"]) for line in lines} == {
        ("job-1", "render", 1, 3)
    }
    assert lines[1]["result"] == digest({"n": 7})


def test_a_torn_line_is_read_as_none(tmp_path):
    path = tmp_path / "witness.jsonl"
    append(path, {"what": "start"})
    path.write_bytes(path.read_bytes() + b'{"what": "en\n')
    append(path, {"what": "end"})
    assert [line and line["what"] for line in read_lines(path)] == ["start", None, "end"]
