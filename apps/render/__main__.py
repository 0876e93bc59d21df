"""`mulligan demo render`: see demo/."""

from __future__ import annotations

from mulligan.apps.render.demo.main import main

if __name__ == "__main__":
    main()
