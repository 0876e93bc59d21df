"""`mulligan demo watermark`: pages, a worker and a mailbox on one database."""

from __future__ import annotations

import os
from threading import Thread

from fastapi.responses import PlainTextResponse

import stage
from watermark.mailbox import Mailbox


def main() -> None:
    with (
        stage.open_demo("watermark", "Watermark campaigns with examples.") as demo,
        Mailbox() as mailbox,
    ):
        os.environ |= {"WATERMARK_FILES": str(demo.folder / "files"), **mailbox.settings}
        from watermark import examples  # noqa: PLC0415 - reads settings on import
        from watermark.web import web  # noqa: PLC0415 - reads settings on import

        web.get("/mailbox")(
            lambda: PlainTextResponse("\n\n".join(mail.as_string() for mail in mailbox.mails))
        )
        key = examples.create_account()
        Thread(target=examples.create_examples, args=(key,), daemon=True).start()
        demo.serve(web, "watermark.jobs:app", f"/?key={key}")


if __name__ == "__main__":
    main()
