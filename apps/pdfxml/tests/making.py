"""Real PDFs."""

from __future__ import annotations

import io

from reportlab.pdfgen.canvas import Canvas


def a_pdf(*lines: str, size: int = 0) -> bytes:
    """A real one; with a size that is filled up behind its end, as PDFs may be."""
    out = io.BytesIO()
    page = Canvas(out, invariant=1)
    for n, text in enumerate(lines or ("Hello",)):
        page.drawString(72, 800 - 20 * n, text)
    page.save()
    return out.getvalue().ljust(size, b"\n")
