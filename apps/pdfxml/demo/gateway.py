"""Emulator of the gateway: `python -m mulligan.apps.pdfxml.demo.gateway`. Converts PDFs or fails.

    POST /convert?mapping=text      a PDF in, XML out
    GET  /health
    POST /orders                    {"do": "503", "times": 3, "document": "SHA-256", …}
    GET  /calls                     the conversions requested so far
    DELETE /orders                  forget orders and calls

An order configures failures. `do` is a status, or: hang, slow, reset (no answer), cut (half an
answer), garbage (200 and no XML), large (XML of `bytes` bytes), lose (converted, but the answer
never arrives). Without `times` an order is valid until it is deleted. Without `document` it is valid
for all documents, and /health fails, too. Optional: `say` (text of the answer), `retry_after`,
`seconds` (of slow).
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

from mulligan.apps import stage

MAPPINGS = ("text", "layout")
HANG_SECONDS = 120  # longer than any client waits
SLOW_SECONDS = 7
PAGE = (
    "<h1>Gateway</h1><p>Standing order: <b>{now}</b></p>"
    "<form method='post' action='/say'>{buttons}</form>"
)


# --- Conversion ----------------------------------------------------------------------------------
def convert_to_xml(pdf: bytes, mapping: str) -> bytes:
    """Convert a PDF. `layout`: every letter with its position; `text`: the lines of each page."""
    # Slow to import, and only the process of the gateway needs it.
    from pdfminer.high_level import extract_pages, extract_text_to_fp  # noqa: PLC0415
    from pdfminer.layout import LTTextContainer  # noqa: PLC0415

    if mapping == "layout":
        out = BytesIO()
        extract_text_to_fp(BytesIO(pdf), out, output_type="xml", codec="utf-8", strip_control=True)
        return out.getvalue()
    parts = ["<?xml version='1.0' encoding='utf-8'?><document>"]
    for number, page in enumerate(extract_pages(BytesIO(pdf)), 1):
        parts.append(f"<page number='{number}'>")
        for box in page:
            if isinstance(box, LTTextContainer):
                for text in box.get_text().splitlines():
                    parts.append(f"<line>{escape_printable(text)}</line>")
        parts.append("</page>")
    parts.append("</document>")
    return "".join(parts).encode()


def escape_printable(text: str) -> str:
    return escape("".join(character for character in text if character.isprintable()).strip())


# --- Orders --------------------------------------------------------------------------------------
class Faults:
    """The configured failures and the log of the calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def clear(self) -> None:
        with self.lock:
            self.orders = []
            self.calls = []

    def add(self, order: dict[str, Any]) -> None:
        with self.lock:
            self.orders.append(order)

    def take(self, document: str, mapping: str) -> dict[str, Any]:
        """Return the order that applies to this call, and log the call."""
        with self.lock:
            matching = (
                order for order in self.orders if order.get("document", document) == document
            )
            order: dict[str, Any] = next(matching, {"do": "ok"})
            if order.get("times"):
                order["times"] -= 1
                if not order["times"]:
                    self.orders.remove(order)
            self.calls.append({"document": document, "mapping": mapping, "did": order["do"]})
            return order

    @property
    def permanent_fault(self) -> str:
        """The failure of all documents until it is deleted, or "ok"."""
        with self.lock:
            for order in self.orders:
                if "document" not in order and not order.get("times"):
                    return str(order["do"])
            return "ok"


class Handler(stage.Emulator):
    """HTTP handler of the gateway."""

    faults = Faults()

    def get(self) -> None:
        if self.path == "/health":
            self.answer(200 if self.faults.permanent_fault == "ok" else 503, b"")
        elif self.path == "/calls":
            self.answer(200, json.dumps(self.faults.calls).encode())
        else:
            buttons = "".join(
                f'<button name="do" value="{do}">{do}</button> '
                for do in ("ok", "503", "400", "hang")
            )
            self.send_page("Gateway", PAGE.format(now=self.faults.permanent_fault, buttons=buttons))

    def delete(self) -> None:
        self.faults.clear()
        self.answer(204, b"")

    def post(self, body: bytes) -> None:
        url = urlsplit(self.path)
        if url.path == "/orders":
            self.faults.add(json.loads(body))
            self.answer(204, b"")
        elif url.path == "/say":
            self.faults.clear()
            do = parse_qs(body.decode())["do"][0]
            if do != "ok":
                self.faults.add({"do": do})
            self.answer(303, b"", headers={"Location": "/"})
        else:
            self.convert(body, parse_qs(url.query).get("mapping", ["text"])[0])

    # --- Conversion -------------------------------------------------------------------------------
    def convert(self, pdf: bytes, mapping: str) -> None:
        order = self.faults.take(self.headers.get("X-Document", ""), mapping)
        match order["do"]:
            case "ok":
                self.answer(*self.convert_or_refuse(pdf, mapping))
            case "hang":
                threading.Event().wait(HANG_SECONDS)
            case "slow":
                threading.Event().wait(order.get("seconds", SLOW_SECONDS))
                self.answer(*self.convert_or_refuse(pdf, mapping))
            case "large":
                self.answer(200, b"<document>" + bytes([32]) * order["bytes"] + b"</document>")
            case "reset":
                self.drop_connection(reset=True)
            case "cut":
                self.answer(200, b"<?xml version='1.0'?><docu", length=10_000)
                self.drop_connection()
            case "garbage":
                self.answer(200, b"\x00\x01 Proxy error: see /var/log/proxy.log")
            case "lose":
                self.convert_or_refuse(pdf, mapping)
                self.drop_connection()
            case status:
                hint = {"Retry-After": str(order["retry_after"])} if "retry_after" in order else {}
                self.answer(int(status), order.get("say", "told to").encode(), headers=hint)

    def convert_or_refuse(self, pdf: bytes, mapping: str) -> tuple[int, bytes]:
        if mapping not in MAPPINGS:
            return 406, b"Unsupported mapping."
        try:
            return 200, convert_to_xml(pdf, mapping)
        except Exception as error:  # noqa: BLE001 - a PDF may cause any error in its reader
            sys.stderr.write(f"cannot be read: {error!r}\n")
            return 415, b"This PDF cannot be read."

    def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "",
        length: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send(
            status,
            body,
            content_type or ("application/xml" if status == 200 else "text/plain"),
            headers or {},
            length,
        )


if __name__ == "__main__":
    with suppress(Exception):  # load pdfminer now, so that the first conversion is not slow
        convert_to_xml(b"", "text")
    Handler.serve(stage.parse_port(8090))
