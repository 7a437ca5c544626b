"""Commands for deployments on Flower: supernode, certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def supernode(context: typer.Context) -> None:
    """Start a Flower SuperNode that runs only the vitrail installed here, never code that it receives.

    It takes the options of `flower-supernode`. The keys of --node-config are documented on the page "Deploy on several
    machines" (how-to/deploy).

    `vitrail supernode --superlink fl.example.org:8000 --root-certificates ca.crt --auth-supernode-private-key KEY
    --node-config 'name="north" data="folder:/images" folder="/var/vitrail" max-epsilon=9.8'`
    """
    from vitrail.engines.flower import check_installed
    from vitrail.experiment.deployment.supernode import start

    check_installed()

    start(context.args)


def certificates(
    folder: Annotated[str, Argument(help="New folder to write.")],
    nodes: Annotated[str, Option(help="Names of the nodes, separated by commas.")],
    hosts: Annotated[
        str, Option(help="Host names and addresses of the SuperLink in addition to localhost, separated by commas.")
    ] = "",
    days: Annotated[int, Option(min=1, max=825, help="Validity of the certificates in days.")] = 90,
) -> None:
    """Create certificates and keys for a trial with Flower: one folder per party.

    `vitrail certificates keys --nodes north,south,west --hosts fl.example.org`

    FOLDER/superlink is for the server, FOLDER/NAME for that node; the documentation's page on deployment
    describes each file. Existing files are never replaced.
    """
    from vitrail.engines.flower.certificates import SERVER, make_certificates

    names = [n.strip() for n in nodes.split(",") if n.strip()]
    make_certificates(Path(folder), names, [h.strip() for h in hosts.split(",") if h.strip()], days)
    typer.echo(f"{folder}/{SERVER} is for the server, {', '.join(f'{folder}/{n}' for n in names)} for the nodes")
