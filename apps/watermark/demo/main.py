"""Start pages, a worker and a mailbox on one database."""

from __future__ import annotations

import os
from threading import Thread

from fastapi.responses import PlainTextResponse

from mulligan.apps import stage
from mulligan.apps.watermark.demo.mailbox import Mailbox


def main() -> None:
    """Run the demo until a signal ends it."""
    with (
        stage.open_demo("watermark", "Watermark campaigns with examples.") as demo,
        Mailbox() as mailbox,
    ):
        os.environ |= {"WATERMARK_FILES": str(demo.folder / "files"), **mailbox.settings}
        from mulligan.apps.watermark.demo import examples  # noqa: PLC0415 - reads settings
        from mulligan.apps.watermark.web import web  # noqa: PLC0415 - reads settings

        web.get("/mailbox")(
            lambda: PlainTextResponse("\n\n".join(mail.as_string() for mail in mailbox.mails))
        )
        key = examples.find_account()
        Thread(target=examples.create_examples, args=(key,), daemon=True).start()
        demo.serve(web, "mulligan.apps.watermark.jobs:app", f"/?key={key}")
