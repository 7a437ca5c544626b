"""The verbs for real sites."""

from __future__ import annotations

from typing import Annotated

import typer


def supernode(context: typer.Context) -> None:
    """Start a SuperNode that runs no code it is sent, only the vitrail installed here; options: flower-supernode's.

    `vitrail supernode --superlink fl.example.org:8000 --root-certificates ca.crt --auth-supernode-private-key KEY
    --node-config 'name="north" data="folder:/pictures" folder="/var/vitrail" max-epsilon=9.8'`
    """
    from vitrail.experiment.deployment.supernode import start

    start(context.args)


def certificates(
    folder: Annotated[str, typer.Argument(help="a new folder")],
    nodes: Annotated[str, typer.Option(help="the nodes' names, by commas")],
    hosts: Annotated[str, typer.Option(help="names and addresses of the SuperLink beside localhost, by commas")] = "",
    days: Annotated[int, typer.Option(min=1, max=825, help="how long certificates are valid")] = 90,
) -> None:
    """Make certificates and keys for a trial with Flower, in a new FOLDER: one folder for each party.

    `vitrail certificates keys --nodes north,south,west --hosts fl.example.org`

    FOLDER/superlink is for the server, FOLDER/NAME for that node; docs/security.md says which file is for what.
    Nothing is ever replaced.
    """
    from pathlib import Path

    from vitrail.engines.flower.certificates import SERVER, make

    names = [n.strip() for n in nodes.split(",") if n.strip()]
    make(Path(folder), names, [h.strip() for h in hosts.split(",") if h.strip()], days)
    typer.echo(f"{folder}/{SERVER} is for the server, {', '.join(f'{folder}/{n}' for n in names)} for the nodes")
