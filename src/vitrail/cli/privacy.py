"""The verbs about privacy."""

from __future__ import annotations

from typing import Annotated

import typer


def audit(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder")],
    attacks: Annotated[
        str | None,
        typer.Option(
            help="by commas: canaries, membership, shadows, copies, inversion, eavesdroppers; if not given: all but "
            "shadows"
        ),
    ] = None,
    canaries: Annotated[int, typer.Option(min=20, max=100_000, help="canaries, and releases that are attacked")] = 400,
    shadows: Annotated[int, typer.Option(min=0, max=256, help="small runs to train for attack shadows; 0: none")] = 0,
    n: Annotated[int, typer.Option("-n", "--number", min=100, max=100_000, help="samples of the model")] = 2000,
    seconds: Annotated[float, typer.Option(min=1, help="about how long shadows and inversion may take each")] = 120.0,
    r: Annotated[
        str | None,
        typer.Option(help="psfedgan: factors by which eavesdroppers' first layer of G is off, by commas (0.5,0.9999)"),
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="psfedgan: the users that eavesdroppers listen to")] = 3,
    rounds: Annotated[int, typer.Option(min=0, help="psfedgan: the rounds that they hear; 0: all")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="of coins, canaries and samples")] = 0,
    out: Annotated[str | None, typer.Option("-o", "--out", help="write what was found here as JSON")] = None,
) -> None:
    """Attack a RUN and set what is found beside what it claims: a lower bound on ε beside the upper bound.

    `vitrail audit runs/x` runs all attacks that apply and keeps what they found in runs/x/audit.json

    `vitrail audit runs/x --attacks canaries --canaries 2000` gives a sharper bound, in more time.

    `vitrail audit runs/x --attacks shadows --shadows 16` trains 16 small runs, and compares likelihoods.

    `vitrail audit runs/x --attacks eavesdroppers --r 0.1,0.9,0.9999` listens to a run of psfedgan: what grows from its
    messages with the secret seed, with a flawed one, with gaps, and without it.

    A lower bound above the claim refutes it (exit code 1). One below it proves nothing: a better attack may find
    more. Runs that claim nothing are attacked all the same.
    """
    from pathlib import Path

    from rich.console import Console

    from vitrail.auditing.audit_run import audit_run, write
    from vitrail.auditing.tables import show
    from vitrail.experiment.run_dir import RunDir
    from vitrail.report import write_report

    console, place = Console(highlight=False), RunDir(Path(folder))
    chosen = [name.strip() for name in attacks.split(",")] if attacks else None
    with Console(stderr=True).status("loading") as status:
        found = audit_run(
            folder,
            chosen,
            canaries=canaries,
            shadows=shadows,
            samples=n,
            seconds=seconds,
            r=factors(r),
            users=users,
            rounds=rounds,
            seed=seed,
            tell=status.update,
        )
    show(found, console)
    path = Path(out) if out else place.audit
    write(path, found)
    if not out:
        write_report([place.path], place.report)
    console.print(f"\nkept in {path}" + ("" if out else f" and {place.report}"), markup=False)
    if found.refuted:
        raise typer.Exit(1)


def factors(text: str | None) -> list[float]:
    """What --r says.

    >>> factors("0.5, 0.9999")
    [0.5, 0.9999]
    """
    from vitrail.utils.errors import VitrailError

    try:
        return [float(v) for v in text.split(",")] if text else []
    except ValueError:
        raise VitrailError(f"--r {text}: give numbers by commas, such as 0.5,0.9999") from None


def privacy(
    what: Annotated[str, typer.Argument(metavar="METHOD|FILE.toml|RUN", help="what would run, or a run's folder")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings, as for `vitrail run`")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="with a RUN: the public key (64 hex digits) that must have signed its ledger")
    ] = None,
) -> None:
    """Say what a run would promise about privacy and why, before it runs; or read and check a RUN's ledger.

    `vitrail privacy moments epsilon=1 secagg_threshold=10` prints the noise and the assumptions.

    `vitrail privacy prism privacy=mask-update epsilon=9.8 rounds=12`

    `vitrail privacy prism privacy=mask-update noise_multiplier=2 budget=5` prints ε, and the rounds that 5 allows.

    `vitrail privacy runs/x` reads runs/x/ledger.json, checks its chain of hashes and its signatures, computes ε again
    from the noise and rounds that it records, and compares it with the model file.
    """
    from pathlib import Path

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vitrail.privacy.checked_ledger import claim_rows, other_choices, read_run_ledger, said
    from vitrail.utils.errors import printable

    console = Console(highlight=False)

    def show(title: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=escape(title), title_justify="left", box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in rows:
            table.add_row(escape(printable(name)), escape(printable(text, None)))
        console.print(table)

    if Path(what).is_dir():
        checked = read_run_ledger(Path(what))
        if key is not None:
            checked.check_key(key)
        entries = checked.entries
        show(f"{what}: ledger of {len(entries)} entries, its chain holds; {checked.model}", claim_rows(entries[0]))
        for entry in entries:
            if entry["kind"] == "closing":
                show("\nresult", claim_rows({"says": entry["says"]}))
        statements = [(entry["client"], said(entry)) for entry in entries if entry["kind"] == "statement"]
        if statements:
            show("\nsigned by nodes", statements)
        show("\nthe ledger itself", [("signature", checked.signed), ("proves", checked.proves)])
        return
    from vitrail.experiment import settings as config
    from vitrail.experiment.plan import prepare
    from vitrail.privacy.run_ledger import opening

    plan = prepare(config.resolve(what, {"out": "-", **dict(map(config.parse_override, overrides or []))}))
    found = opening(plan)
    show(f"{what}: {plan.settings.rounds} rounds, {len(plan.clients)} clients of {plan.data.name}", claim_rows(found))
    mechanism = plan.method.mechanism
    if mechanism is not None:
        answers = plan.method.max_replies
        show("\nother choices", other_choices(mechanism, answers, found["delta"], plan.settings.budget))
    else:
        known = plan.method.mechanisms
        ways = f"choose privacy={' or '.join(known)}" if known else "this method knows no mechanism"
        console.print(f"\nno ε holds for it; {ways}")
