"""Same settings, same seed, same bits: as recorded with this torch and processor, otherwise in two runs.

`python -m tests.methods.test_same_bits` prints digests for same_bits.json; the stored ones equal those of version 0.1.0
(39c8da9). prism and moments, which changed their convolutions since, are not among them.
"""

import hashlib
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.federation import QUICK

SMALL = {"data": "digits", "size": 8, "test_fraction": 0.9, "clients": 2, "workers": 1, "grids": 0, "eval_every": 0}
ONE_ROUND = ("padpaf", "padpafvae", "ditto")  # of a whole epoch; some of the others differ from fedavg after two rounds
METHODS = sorted(QUICK.keys() - {"prism", "moments"})
CPU = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")
HERE = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {CPU[1] if CPU else 'unknown'}"
STORED = json.loads(Path(__file__).with_name("same_bits.json").read_text())


def digest(method: str, folder: Path) -> str:
    """The hash of the model that a tiny run trains."""
    own = {**QUICK[method], "rounds": 1 if method in ONE_ROUND else 3}
    own |= {"active_clients": 2} if method == "gswgan" else {}
    vitrail.train(method, out=str(folder), **SMALL, **own)
    found = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("method", METHODS)
def test_the_same_settings_and_seed_give_the_same_bits(method, tmp_path):
    expected = STORED[HERE][method] if HERE in STORED else digest(method, tmp_path / "first")
    assert digest(method, tmp_path / "second") == expected


def test_digests_are_stored_for_every_method_and_differ():
    for digests in STORED.values():
        assert sorted(digests) == METHODS
        assert len(set(digests.values())) == len(METHODS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as parent:
        print(json.dumps({HERE: {method: digest(method, Path(parent, method)) for method in METHODS}}, indent=2))
