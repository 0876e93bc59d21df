"""A job with a bug that a test fixes: it dies of a KeyError for a country without a tax rate."""

from __future__ import annotations

from typing import Any

from mulligan import Mulligan, Policy


class Rates:
    """Countries with a tax rate. A test fixes the bug by adding one."""

    known: tuple[str, ...] = ("DE",)


def declare_make_invoice(app: Mulligan, rates: Rates) -> Any:
    """Declare `make_invoice`, whose default country has no rate, and create the schema."""

    @app.job(name="make_invoice", policy=Policy(max_retries=0))
    def make_invoice(country: str = "AT") -> int:
        return dict.fromkeys(rates.known, 1)[country]

    app.open()
    return make_invoice
