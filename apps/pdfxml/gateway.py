"""The gateway, as a program of its own: `python -m pdfxml.gateway`. It converts, and fails in every way it is told to.

    POST /convert?mapping=text      a PDF in, XML out
    GET  /health
    POST /orders                    {"do": "503", "times": 3, "document": "SHA-256", …}
    GET  /calls  DELETE /orders     what was asked so far; all is forgotten

`do` is a status, or: hang, slow, reset (no answer), cut (half an answer), garbage (200 and no XML), lose (converted,
but the answer never arrives). Without `times` it stands until it is taken back, without `document` it is for all of
them: then the gateway says itself that it is not well. Also: `say`, its words; `retry_after`, `seconds` of slow.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from html import escape
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import stage

MAPPINGS = ("text", "layout")
HANG, SLOW = 120, 7  # seconds; who waits for the first has left long before
PAGE = "<h1>Gateway</h1><p>Standing order: <b>{now}</b></p><form method='post' action='/say'>{buttons}</form>"


# -- conversion ----------------------------------------------------------------------------------
def as_xml(pdf: bytes, mapping: str) -> bytes:
    """`layout`: every letter with its place, as pdfminer tells it; `text`: the lines of each page."""
    from pdfminer.high_level import extract_pages, extract_text_to_fp  # noqa: PLC0415 - only its own process needs it
    from pdfminer.layout import LTTextContainer  # noqa: PLC0415 - the same

    if mapping == "layout":
        out = BytesIO()
        extract_text_to_fp(BytesIO(pdf), out, output_type="xml", codec="utf-8", strip_control=True)
        return out.getvalue()
    parts = ["<?xml version='1.0' encoding='utf-8'?><document>"]
    for number, page in enumerate(extract_pages(BytesIO(pdf)), 1):
        lines = [
            text
            for box in page
            if isinstance(box, LTTextContainer)
            for text in box.get_text().splitlines()
        ]
        parts += [
            f"<page number='{number}'>",
            *(f"<line>{printable(text)}</line>" for text in lines),
            "</page>",
        ]
    return "".join([*parts, "</document>"]).encode()


def printable(text: str) -> str:
    return escape("".join(sign for sign in text if sign.isprintable()).strip())


# -- orders --------------------------------------------------------------------------------------
class Desk:
    """What it was told to do, and what it was asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def clear(self) -> None:
        with self.lock:
            self.orders, self.calls = [], []

    def add(self, order: dict[str, Any]) -> None:
        with self.lock:
            self.orders.append(order)

    def take(self, document: str, mapping: str) -> dict[str, Any]:
        """The order for this call; the call is written down."""
        with self.lock:
            mine = (order for order in self.orders if order.get("document", document) == document)
            found: dict[str, Any] = next(mine, {"do": "ok"})
            if found.get("times"):
                found["times"] -= 1
                if not found["times"]:
                    self.orders.remove(found)
            self.calls.append({"document": document, "mapping": mapping, "did": found["do"]})
            return found

    @property
    def standing(self) -> str:
        """What it does to everybody until it is told otherwise."""
        with self.lock:
            return next(
                (o["do"] for o in self.orders if "document" not in o and not o.get("times")), "ok"
            )


class Handler(stage.Emulator):
    desk = Desk()

    def get(self) -> None:
        if self.path == "/health":
            self.answer(200 if self.desk.standing == "ok" else 503, b"")
        elif self.path == "/calls":
            self.answer(200, json.dumps(self.desk.calls).encode())
        else:
            buttons = "".join(
                f'<button name="do" value="{do}">{do}</button> '
                for do in ("ok", "503", "400", "hang")
            )
            self.send_page("Gateway", PAGE.format(now=self.desk.standing, buttons=buttons))

    def delete(self) -> None:
        self.desk.clear()
        self.answer(204, b"")

    def post(self, body: bytes) -> None:
        where = urlsplit(self.path)
        if where.path == "/orders":
            self.desk.add(json.loads(body))
            self.answer(204, b"")
        elif where.path == "/say":
            self.desk.clear()
            do = parse_qs(body.decode())["do"][0]
            if do != "ok":
                self.desk.add({"do": do})
            self.answer(303, b"", headers={"Location": "/"})
        else:
            self.convert(body, parse_qs(where.query).get("mapping", ["text"])[0])

    # -- the work ---------------------------------------------------------------------------------
    def convert(self, pdf: bytes, mapping: str) -> None:
        order = self.desk.take(self.headers.get("X-Document", ""), mapping)
        match order["do"]:
            case "ok":
                self.answer(*self.converted(pdf, mapping))
            case "hang":
                threading.Event().wait(HANG)
            case "slow":
                threading.Event().wait(order.get("seconds", SLOW))
                self.answer(*self.converted(pdf, mapping))
            case "reset":
                self.drop_connection(reset=True)
            case "cut":
                self.answer(200, b"<?xml version='1.0'?><docu", length=10_000)
                self.drop_connection()
            case "garbage":
                self.answer(200, b"\x00\x01 Proxy error: see /var/log/proxy.log")
            case "lose":
                self.converted(pdf, mapping)
                self.drop_connection()
            case status:
                hint = {"Retry-After": str(order["retry_after"])} if "retry_after" in order else {}
                self.answer(int(status), order.get("say", "told to").encode(), headers=hint)

    def converted(self, pdf: bytes, mapping: str) -> tuple[int, bytes]:
        if mapping not in MAPPINGS:
            return 406, b"Unsupported mapping."
        try:
            return 200, as_xml(pdf, mapping)
        except Exception as error:  # noqa: BLE001 - whatever a PDF can do to its reader
            sys.stderr.write(f"cannot be read: {error!r}\n")
            return 415, b"This PDF cannot be read."

    def answer(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "",
        length: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send(
            status,
            body,
            kind or ("application/xml" if status == 200 else "text/plain"),
            headers or {},
            length,
        )


if __name__ == "__main__":
    with suppress(
        Exception
    ):  # no PDF, but now all is loaded that the first one would have to wait for
        as_xml(b"", "text")
    Handler.serve(stage.parse_port(8090))
