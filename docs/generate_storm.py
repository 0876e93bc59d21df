"""docs/explain/storm.md: what is injected, from the faults themselves; what came of it, from the data of the runs."""
# ruff: noqa: E501 - a script beside the pages it writes; its text is a page

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

PAGE = """\
{notice}

# The fault storm

Real workers, a web server and clients on a real store; faults drawn from a seed; then a verdict from outside. It lives in
`tools/storm/` beside the tests, and uses nothing of the engine to judge it.

```text
make storm                                             # half an hour on each store
make storm ARGS='--store sqlite --minutes 5 --seed 7'  # one store, a seed of one's own
make storm ARGS='--faults kill_runner,full_disk'       # only these
make storm ARGS='--replay FOLDER'                      # judge again what a storm left behind
make points                                            # fall at every point around every commit
```

The seed is printed first. One seed is one plan of faults; when exactly they meet which line of code is the machine's
choice, so a run that found something keeps its folder: histories, logs, database.

## What is going on meanwhile?

| who | does |
|---|---|
| three workers, two runners each | jobs that return, raise, sleep, overstay, hold the GIL, eat memory, kill their process, checkpoint, enqueue children in a transaction, wait for a person. One worker has a pid namespace of its own, on PostgreSQL one works behind pgbouncer in transaction mode |
| clients in Python | enqueue alone, in sets, in transactions, in transactions that are rolled back, with unique keys and in batches; retry, cancel, release, discard, by hand and in bulk |
| clients over HTTP | the same through the API; some requests twice with one `Idempotency-Key` |
| schedules | a job every three seconds, another every seven |

Clients write down what they asked and what they were told, handlers what they saw. Anything a client gets that is not an answer of ours (an exception of a driver, a 500) is a violation too.

## What is injected?

{faults}

What a machine cannot do (no root, no compiler, no pgbouncer, no libfaketime) is left out, and the table of the run says so.

## When is it good?

1. Thirty seconds after the last fault a fresh job has run. Nobody was restarted for it, but those who were killed.
2. Every job has ended, or waits for a person; never does nobody come to an end for two and a half minutes.
   (Both bounds grow with the load of a machine that is busy with other things; the table says by how much.)
3. No process ended by itself; told to leave, each worker leaves in order and leaves nothing behind.
4. Counting alone finds nothing wrong: what was accepted is there, what was rolled back is not, nothing ended twice,
   nothing succeeded whose handler had not come to its end.
5. The checker finds no violation of any invariant. Where the clock was stepped, three that compare times with each other are
   only counted.

## What came of it?

The longest run on each store.

{storms}

## Every point around every commit

A storm meets the moments it happens to meet. `make points` meets all of them: a life of clients and workers in one process writes down
which transactions it commits; then it is led again once for every commit, before and after it, and ends there with
kill -9, or is told that the connection is gone. Somebody else comes, puts in order what is left, and the checker judges.

The points are made by a wrapper around the store, from outside: the engine knows nothing of them, and a new transaction
has its points without anybody naming them.

{points}

No violation in *n* independent runs means, with 95 % confidence, a rate below 3/*n*.
"""


def page(notice: str, table: Table) -> str:
    sys.path.insert(0, str(ROOT))
    results = importlib.import_module("storm.table")
    return PAGE.format(notice=notice, faults=_faults(table), storms=results.storms(), points=results.points())


def _faults(table: Table) -> str:
    for name in ("on_processes", "on_database", "on_machine"):
        importlib.import_module(f"storm.{name}")
    kinds = importlib.import_module("storm.faults").KINDS
    rows = [
        (f"`{name}`", " ".join(str(inspect.getdoc(kind.fault)).split()), ", ".join(kind.stores))
        for name, kind in sorted(kinds.items())
    ]
    return table(("fault", "what happens", "on"), rows)
