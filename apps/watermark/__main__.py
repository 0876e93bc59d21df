"""`mulligan demo watermark`: pages, a worker and a mailbox on one database."""

from __future__ import annotations

import os
from threading import Thread

from fastapi.responses import PlainTextResponse

import stage
from watermark.mailbox import Mailbox


def main() -> None:
    with (
        stage.opened("watermark", "Watermark campaigns, with something to look at.") as here,
        Mailbox() as mailbox,
    ):
        os.environ |= {"WATERMARK_FILES": str(here.folder / "files"), **mailbox.settings}
        from watermark import examples  # noqa: PLC0415 - the app reads its settings when it is imported
        from watermark.web import web  # noqa: PLC0415 - the same

        web.get("/mailbox")(
            lambda: PlainTextResponse("\n\n".join(mail.as_string() for mail in mailbox.mails))
        )
        key = examples.account()
        Thread(target=examples.fill, args=(key,), daemon=True).start()
        here.play(web, "watermark.jobs:app", f"/?key={key}")


if __name__ == "__main__":
    main()
