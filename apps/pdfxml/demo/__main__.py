"""`mulligan demo pdfxml`: the page, a worker and the gateway on one database."""

from __future__ import annotations

import os

from mulligan.apps import stage


def main() -> None:
    description = "PDF to XML through a gateway whose failures you choose."
    with (
        stage.open_demo("pdfxml", description) as demo,
        stage.ServiceProcess("mulligan.apps.pdfxml.demo.gateway") as gateway,
    ):
        os.environ.setdefault("STORAGE_URL", str(demo.folder / "files"))
        os.environ["GATEWAY_URL"] = gateway.url
        from mulligan.apps.pdfxml.web import web  # noqa: PLC0415 - reads settings on import

        demo.serve(
            web,
            "mulligan.apps.pdfxml.jobs:app",
            note=f"The gateway: choose how it fails at {gateway.url}/",
        )


if __name__ == "__main__":
    main()
