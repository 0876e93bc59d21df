"""`mulligan demo pdfxml`: the page, a worker and the gateway on one database."""

from __future__ import annotations

import os

import stage


def main() -> None:
    about = "PDF to XML through a gateway that can be told to fail."
    with stage.open_demo("pdfxml", about) as demo, stage.ServiceProcess("pdfxml.gateway") as gateway:
        os.environ.setdefault("STORAGE_URL", str(demo.folder / "files"))
        os.environ["GATEWAY_URL"] = gateway.url
        from pdfxml.web import web  # noqa: PLC0415 - the app reads its settings when it is imported

        demo.serve(web, "pdfxml.jobs:app", note=f"The gateway does as it is told at {gateway.url}/")


if __name__ == "__main__":
    main()
