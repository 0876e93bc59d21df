"""Generate docs/contributors/storm.md from the registered faults and the stored results."""

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

The storm runs real workers, a web server and clients on a real database, injects faults planned from a seed, and checks the result from outside. It is in
`tools/storm/` and uses no code of the engine for its verdict.

```text
make storm                                             # half an hour on each database
make storm ARGS='--store sqlite --minutes 5 --seed 7'  # one database, your own seed
make storm ARGS='--faults kill_runner,full_disk'       # only these
make storm ARGS='--replay FOLDER'                      # check the results of a storm again
make points                                            # crash before and after every commit
```

The seed is printed first. A seed determines the plan of faults, but not which line of code runs when a fault happens,
so a run that found something keeps its folder: histories, logs, database.

## What runs during the storm?

| process | does |
|---|---|
| three workers, two runners each | jobs that return, raise, sleep, exceed their time limit, hold the GIL, use too much memory, kill their process, write checkpoints, enqueue children in a transaction, wait for a person. One worker has its own pid namespace; on PostgreSQL one works behind pgbouncer in transaction mode |
| clients in Python | enqueue single jobs, many at once, in transactions, in transactions that are rolled back, with unique keys and in batches; retry, cancel, release, discard, one by one and in bulk |
| clients over HTTP | the same through the API; some requests twice with one `Idempotency-Key` |
| schedules | a job every three seconds, another every seven |

Clients record their requests and the answers, handlers record their starts and ends. A client that gets anything but a documented answer (a driver's exception, a 500) is a violation too.

## What is injected?

{faults}

Faults that a machine does not support (no root, no compiler, no pgbouncer, no libfaketime) are left out, and the table of the run says so.

## When does a storm pass?

1. Within thirty seconds after the last fault a new job has run. Only killed processes were restarted.
2. Every job has ended, or waits for a person, and there was never a gap of two and a half minutes without an ending.
   (Both bounds grow with other load on the machine; the table says by how much.)
3. No process exited by itself; on SIGTERM each worker exits cleanly and leaves nothing behind.
4. A simple independent count agrees: accepted jobs exist, rolled back ones do not, no job ended twice,
   and no job succeeded whose handler had not finished.
5. The checker finds no violation of any invariant. If the clock was moved, three invariants that compare times are
   only counted.

## What are the results?

The longest run on each database.

{storms}

## Crashes around every commit

A storm hits random points. `make points` hits all of them: a scenario with clients and workers in one process records
its commits; then it runs again twice for every commit, and ends before or after it with
kill -9 or a lost connection. Another worker recovers what is left, and the checker verifies the result.

A wrapper around the database connection creates these points, so the engine has no test code, and new transactions
are covered automatically.

{points}

No violation in *n* independent runs means, with 95 % confidence, a rate below 3/*n*.
"""


def page(notice: str, table: Table) -> str:
    sys.path.insert(0, str(ROOT / "tools"))
    results = importlib.import_module("storm.table")
    return PAGE.format(
        notice=notice, faults=_faults(table), storms=results.storms(), points=results.points()
    )


def _faults(table: Table) -> str:
    for name in ("process_faults", "database_faults", "machine_faults", "tenant_faults"):
        importlib.import_module(f"storm.{name}")
    kinds = importlib.import_module("storm.faults").FAULTS
    rows = [
        (f"`{name}`", " ".join(str(inspect.getdoc(kind.fault)).split()), ", ".join(kind.stores))
        for name, kind in sorted(kinds.items())
    ]
    return table(("fault", "what happens", "on"), rows)
