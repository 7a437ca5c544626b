"""Commands about privacy: `vitrail privacy` and `vitrail audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from vitrail.cli.settings_arguments import parse_overrides
from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.utils.console import Console


def audit(
    folder: Annotated[str, Argument(metavar="RUN", help="A run's folder.")],
    attacks: Annotated[
        str | None,
        Option(
            help="Attacks, separated by commas: canaries, membership, shadows, copies, inversion, eavesdroppers; "
            "default: all except shadows."
        ),
    ] = None,
    canaries: Annotated[int, Option(min=20, max=100_000, help="Canaries, and attacked releases.")] = 400,
    shadows: Annotated[int, Option(min=0, max=256, help="Small runs to train for the attack shadows; 0: none.")] = 0,
    n: Annotated[int, Option("-n", "--number", min=100, max=100_000, help="Samples of the model.")] = 2000,
    seconds: Annotated[float, Option(min=1, help="About how long shadows and inversion may take each.")] = 120.0,
    r: Annotated[
        str | None, Option(help="Eavesdroppers: factors of the error in layer 1 of their G (0.5,0.9999).")
    ] = None,
    users: Annotated[int, Option(min=1, help="Eavesdroppers: number of users that they attack.")] = 3,
    rounds: Annotated[int, Option(min=0, help="Eavesdroppers: number of rounds they receive; 0: all.")] = 0,
    seed: Annotated[int, Option(min=0, help="Seed of coins, canaries and samples.")] = 0,
    out: Annotated[str | None, Option("-o", "--out", help="Write the findings to this JSON file.")] = None,
) -> None:
    """Attack a RUN and compare the lower bound on ε that is found with the claimed upper bound.

    `vitrail audit runs/x` runs all attacks that apply and stores the findings in runs/x/audit.json.

    `vitrail audit runs/x --attacks canaries --canaries 2000` gives a sharper bound and takes longer.

    `vitrail audit runs/x --attacks shadows --shadows 16` trains 16 small runs and compares likelihoods.

    `vitrail audit runs/x --attacks eavesdroppers --r 0.1,0.9,0.9999` eavesdrops on a run of psfedgan: generators
    rebuilt from its messages with the secret seed, with an inexact one, with missing messages, and without it.

    A lower bound above the claim refutes it (exit code 1). A lower bound below it proves nothing: a better attack may
    find more. Runs that claim nothing are attacked in the same way.
    """
    from vitrail.auditing.audit_run import audit_run, write
    from vitrail.cli.audit_display import print_audit
    from vitrail.experiment.run_dir import RunDir
    from vitrail.report import write_report
    from vitrail.utils.console import Console, show_status

    console, place = Console(), RunDir(Path(folder))
    chosen = [name.strip() for name in attacks.split(",")] if attacks else None
    with show_status() as report_progress:
        found = audit_run(
            folder, chosen, canaries=canaries, shadows=shadows, samples=n, seconds=seconds, r=parse_factors(r),
            users=users, rounds=rounds, seed=seed, report_progress=report_progress,
        )  # fmt: skip
    print_audit(found, console)
    path = Path(out) if out else place.audit
    write(path, found)
    if not out:
        write_report([place.path], place.report)
    console.print(f"\nstored in {path}" + ("" if out else f" and {place.report}"), markup=False)
    if found.refuted:
        raise typer.Exit(1)


def parse_factors(text: str | None) -> list[float]:
    """Parse the value of --r.

    Raises:
        VitrailError: The text is not a list of numbers.

    Examples:
        >>> parse_factors("0.5, 0.9999")
        [0.5, 0.9999]
    """
    try:
        return [float(v) for v in text.split(",")] if text else []
    except ValueError:
        raise VitrailError(f"--r {text}: give numbers by commas, such as 0.5,0.9999") from None


def privacy(
    what: Annotated[str, Argument(metavar="METHOD|FILE.toml|RUN", help="A method, settings, or a run's folder.")],
    overrides: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Settings, as for `vitrail run`.")
    ] = None,
    key: Annotated[
        str | None, Option(help="With a RUN: the public key (64 hex digits) that must have signed its ledger.")
    ] = None,
) -> None:
    """Print the privacy claim of a run and its assumptions before it runs; or check the ledger of a finished RUN.

    `vitrail privacy moments epsilon=1 secagg_threshold=10` prints the noise and the assumptions.

    `vitrail privacy prism privacy=mask-update epsilon=9.8 rounds=12`

    `vitrail privacy prism privacy=mask-update noise_multiplier=2 budget=5` prints ε, and the rounds that 5 allows.

    `vitrail privacy runs/x` reads runs/x/ledger.json, checks its chain of hashes and its signatures, recomputes ε from
    the noise and rounds that it records, and compares it with the model file.
    """
    from vitrail.utils.console import Console

    console = Console()
    if Path(what).is_dir():
        _show_ledger(console, Path(what), key)
    else:
        _show_plan(console, what, overrides)


def _show_ledger(console: Console, folder: Path, key: str | None) -> None:
    from vitrail.privacy.checked_ledger import read_run_ledger
    from vitrail.privacy.claim_rows import claim_rows, statement_text
    from vitrail.utils.console import print_table

    checked = read_run_ledger(folder)
    if key is not None:
        checked.check_key(key)
    entries = checked.entries
    title = f"{folder}: ledger of {len(entries)} entries, its chain is valid; {checked.model}"
    print_table(console, claim_rows(entries[0]), title=title)
    for entry in entries:
        if entry["kind"] == "closing":
            print_table(console, claim_rows({"says": entry["says"]}), title="\nresult")
    statements = [(entry["client"], statement_text(entry)) for entry in entries if entry["kind"] == "statement"]
    if statements:
        print_table(console, statements, title="\nsigned by nodes")
    about = [("signature", checked.signed), ("proves", checked.proves)]
    print_table(console, about, title="\nthe ledger itself")


def _show_plan(console: Console, what: str, overrides: list[str] | None) -> None:
    from vitrail.experiment import settings as config
    from vitrail.experiment.plan import prepare
    from vitrail.experiment.run_ledger import opening_claim
    from vitrail.privacy.claim_rows import claim_rows, other_choices
    from vitrail.utils.console import print_table
    from vitrail.utils.quantities import plural

    plan = prepare(config.resolve(what, {"out": "-", **parse_overrides(overrides)}))
    found, method = opening_claim(plan), plan.method
    title = (
        f"{what}: {plural(plan.settings.rounds, 'round')}, {plural(len(plan.clients), 'client')} of {plan.data.name}"
    )
    print_table(console, claim_rows(found), title=title)
    if method.mechanism is not None:
        rows = other_choices(method.mechanism, method.max_replies, found["delta"], plan.settings.budget)
        print_table(console, rows, title="\nother choices")
    else:
        known = method.mechanisms
        ways = f"choose privacy={' or '.join(known)}" if known else "this method has no mechanism"
        console.print(f"\nit has no ε; {ways}")
