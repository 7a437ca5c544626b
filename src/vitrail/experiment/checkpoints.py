"""A run's checkpoint: the server's state after the last finished round, from which a run can be resumed."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.engines.rounds import Federation
from vitrail.experiment.plan import Plan
from vitrail.utils import state as store
from vitrail.utils.rng import Rng


@dataclass(frozen=True)
class Checkpoint:
    """What a run resumes from.

    Args:
        fed: The server's state and the number of finished rounds.
        updates: Number of rounds that changed the model.
        ledger: Hash of the ledger's last entry.
    """

    fed: Federation
    updates: int = 0
    ledger: str = ""


def load_checkpoint(plan: Plan) -> Checkpoint | None:
    """Return a run's checkpoint, or None before its first finished round.

    Raises:
        VitrailError: If it was written with other settings or data.
    """
    tree = plan.folder.load_checkpoint(plan.id)
    if tree is None:
        return None
    return Checkpoint(Federation.from_tree(tree["federation"]), tree["closed"], str(tree.get("ledger", "")))


def save_checkpoint(plan: Plan, checkpoint: Checkpoint) -> None:
    """Write a run's checkpoint, readable by its owner only."""
    tree = {"run": plan.id, "federation": checkpoint.fed.tree(), "closed": checkpoint.updates, "split": plan.split}
    store.save(plan.folder.checkpoint, {**tree, "ledger": checkpoint.ledger}, private=True)


def init_federation(plan: Plan, rng: Rng) -> Federation:
    """Return the server before the first round; with `init_from`, from the last state of an earlier run."""
    held = plan.partition.server
    data = plan.data.train.take(held) if len(held) else None
    return Federation(0, plan.method.server_init(rng.child("server", "init"), data, plan.start))
