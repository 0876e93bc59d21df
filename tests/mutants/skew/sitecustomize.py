"""A process whose wall clock is wrong by `MUTANT_SKEW` seconds; its monotonic clock is right."""

import os
import time

_SKEW = float(os.environ.get("MUTANT_SKEW", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _SKEW
time.time_ns = lambda: _time_ns() + round(_SKEW * 1e9)
