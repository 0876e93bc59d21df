"""`@app.on_start` and `@app.on_stop`: once per process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


async def call_hooks(hooks: Sequence[Callable[..., Any]], state: Any) -> Any:
    """Call each with the state if it takes one. What a hook returns becomes (a mapping: joins) the state."""
    for hook in hooks:
        made = hook(state) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(made):
            made = await made
        state = _joined(state, made)
    return state


def _joined(state: Any, made: Any) -> Any:
    if made is None:
        return state
    if isinstance(made, Mapping) and isinstance(state, SimpleNamespace):
        return SimpleNamespace(**{**vars(state), **made})
    return made
