"""What a worker does beside its jobs, whenever a test says so: counting, and looking at the alerts."""

from __future__ import annotations

from typing import Any

from mulligan import Mulligan
from mulligan.engine.alerting import Alerting
