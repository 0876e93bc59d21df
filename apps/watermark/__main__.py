"""`mulligan demo watermark`: see demo/."""

from __future__ import annotations

from mulligan.apps.watermark.demo.main import main

if __name__ == "__main__":
    main()
