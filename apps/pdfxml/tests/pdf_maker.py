"""Make PDF files."""

from __future__ import annotations

import io

from reportlab.pdfgen.canvas import Canvas


def make_pdf(*lines: str, size: int = 0) -> bytes:
    """Make a PDF. With `size`, pad it after its end, which PDFs allow."""
    out = io.BytesIO()
    page = Canvas(out, invariant=1)
    for line_number, text in enumerate(lines or ("Hello",)):
        page.drawString(72, 800 - 20 * line_number, text)
    page.save()
    return out.getvalue().ljust(size, b"\n")
