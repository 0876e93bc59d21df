"""Record which functions of the package a call runs through."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import mulligan

PACKAGE = os.path.dirname(mulligan.__file__)  # noqa: PTH120 - compared with text
# Parts of the function that contains them. Python 3.12 gives most of them no frame.
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


def trace_functions(call: Callable[[], Any]) -> set[tuple[str, str]]:
    """Call a function. Return (file, name) of each function of the package that ran here.

    Functions that run on other threads do not count.
    """
    functions: set[tuple[str, str]] = set()

    def record(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(PACKAGE)
        if is_ours and code.co_name not in _COMPREHENSIONS:
            functions.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions
