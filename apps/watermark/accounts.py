"""Create an account and print its key: `python -m mulligan.apps.watermark.accounts NAME EMAIL`."""

from __future__ import annotations

import sys

from mulligan.apps.watermark.data import Account
from mulligan.apps.watermark.jobs import app, db


def create_account(name: str, email: str) -> str:
    app.open()
    with db() as session:
        account = Account(name=name, email=email)
        session.add(account)
        session.flush()
        return account.key


if __name__ == "__main__":
    print(create_account(*sys.argv[1:]))
