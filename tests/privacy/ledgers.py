"""Runs and forged ledgers for the tests of ledgers."""

import json

from vitrail.privacy.ledger import Ledger

SMALL = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "workers": 1, "grids": 0, "eval_every": 0}
MOMENTS = {**SMALL, "local_steps": 1, "batch_size": 10}
GAN = {**SMALL, "width": 4, "latent_dim": 8, "batch_size": 64, "d_norm": "group"}
DP_SGD = {"privacy": "dp-sgd", "epsilon": 1.0}


def unsigned(path):
    """A ledger as version 0.1.0 wrote it: chained and not signed."""
    entries = [{k: v for k, v in e.items() if k not in ("key", "signature")} for e in json.loads(path.read_text())]
    path.write_text(json.dumps(entries))


def rechained(path, change, **how):
    """Rewrite a ledger's entries and chain them again, as a forger would."""
    entries = json.loads(path.read_text("utf-8"))
    path.unlink()
    forged = Ledger(path, **how)
    for entry in entries:
        change(entry)
        forged.write(**{k: v for k, v in entry.items() if k not in ("n", "previous", "hash", "key", "signature")})
        if not how and "signature" in entry:
            forged.entries[-1] |= {"key": entry["key"], "signature": entry["signature"]}
    path.write_text(json.dumps(forged.entries))
