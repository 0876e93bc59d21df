"""The reference applications. A wheel has them here; a checkout has them in `apps/` at its root."""

from __future__ import annotations

from pathlib import Path

_CHECKOUT = Path(__file__).parents[3]

if (_CHECKOUT / "pyproject.toml").exists():
    __path__.append(str(_CHECKOUT / "apps"))
