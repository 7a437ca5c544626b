"""Settings on the command line: `KEY=VALUE` arguments, and a hint for those who write them as options."""

from __future__ import annotations

from typing import Annotated, Any

import click
from typer import Argument
from typer.core import TyperCommand

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as `clients=10 rounds=20`.")
]


class SettingsCommand(TyperCommand):
    """A command that answers `--clients 10` with "write clients=10"."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; an unknown option becomes a hint if the command takes settings."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            if not any("KEY=VALUE" in str(p.metavar or "") for p in self.params):
                raise
            key, _, value = _option(given, e.option_name).partition("=")
            hint = f"settings are written without dashes: write {key}={value or 'VALUE'}"
            raise click.UsageError(f"No such option: {e.option_name}; {hint}", ctx) from None


def _option(args: list[str], name: str) -> str:
    """Return an option with its value as `key=value`.

    >>> _option(["prism", "--local-steps", "10"], "--local-steps"), _option(["--seed=3"], "--seed")
    ('local_steps=10', 'seed=3')
    """
    key = name.lstrip("-").replace("-", "_")
    for i, word in enumerate(args):
        if word.startswith(f"{name}="):
            return f"{key}={word.partition('=')[2]}"
        if word == name and i + 1 < len(args) and not args[i + 1].startswith("-"):
            return f"{key}={args[i + 1]}"
    return key


def parse_overrides(words: list[str] | None) -> dict[str, Any]:
    """Return the settings that `KEY=VALUE` arguments give."""
    from vitrail.experiment.settings import parse_override

    return dict(map(parse_override, words or []))
