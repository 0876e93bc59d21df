"""Shift the wall clock of this process by `MUTANT_SKEW` seconds; the monotonic clock is unchanged."""

import os
import time

_SKEW = float(os.environ.get("MUTANT_SKEW", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _SKEW
time.time_ns = lambda: _time_ns() + round(_SKEW * 1e9)
