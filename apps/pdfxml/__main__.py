"""Start `mulligan demo pdfxml`. A deployment does not use it: see README.md."""

from __future__ import annotations

from mulligan.apps.pdfxml.demo.__main__ import main

if __name__ == "__main__":
    main()
