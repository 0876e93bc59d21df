"""Groups of commands: a wrong name gets the nearest right one, and help keeps the order of the source."""

from __future__ import annotations

import difflib

import click


class Family(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(no_such("command", name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def no_such(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
    return f"No such {what} {name!r}. {hint}"
