"""The command line: one module per group of commands; nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer import Option

from vitrail.cli import deploy, listing, look, measure, personalise, privacy, train
from vitrail.cli.settings_arguments import SettingsCommand
from vitrail.utils.errors import VitrailError, printable
from vitrail.utils.version import __version__

app = typer.Typer(
    name="vitrail",
    help="Train one image generator on data that cannot be pooled.",
    epilog="First steps: `vitrail run prism`, then `vitrail sample runs/prism-mnist5k-1 -o grid.png`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GROUPS: dict[str, dict[str, Any]] = {
    "Train": {"run": train.run, "resume": train.resume, "list": listing.list_, "partition": train.partition},
    "Look": {"sample": look.sample, "show": look.show, "report": look.report, "export": look.export},
    "Measure": {"evaluate": measure.evaluate, "compare": measure.compare, "benchmark": measure.benchmark},
    "Privacy": {"privacy": privacy.privacy, "audit": privacy.audit},
    "Deploy": {"certificates": deploy.certificates, "supernode": deploy.supernode},
    "Personalise": {
        "probe": personalise.probe,
        "route": personalise.route,
        "restyle": personalise.restyle,
        "adapt": personalise.adapt,
    },
}
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}  # options of flower-supernode

for group, commands in GROUPS.items():
    for name, command in commands.items():
        if name == "supernode":
            app.command(name, rich_help_panel=group, context_settings=_PASS_THROUGH)(command)
        else:
            app.command(name, rich_help_panel=group, cls=SettingsCommand)(command)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line; expected errors are printed as one message with a remedy, without a traceback."""
    try:
        app()
    except VitrailError as e:  # it may quote a file, a node or a client
        typer.echo("\n".join(printable(line, None) for line in f"error: {e}".split("\n")), err=True)
        sys.exit(2)
    except OSError as e:
        typer.echo(f"error: {e.filename or 'a file'}: {e.strerror or e}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
