"""From files to released sums: a search for a neighbouring folder that exceeds the sensitivity."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.federation import QUICK, digits
from vitrail.engines.flower.descriptions import RunSpec
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.node import Node
from vitrail.experiment.deployment.specs import spec_of
from vitrail.experiment.plan import Plan, prepare
from vitrail.methods.released_sums import feature_summary, feature_sums
from vitrail.privacy.feature_sum_messages import unpack
from vitrail.wire.message import Header, Kind, Message, decode, encode

CLASSES = ("healthy", "ill")
NEIGHBOURS = 30
NAMES = ("000.png", "zzz.png", "")  # sorts first, sorts last, or the name of the image it replaces


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 65 digits with two labels: one more than a batch, so that removing one changes the last batch."""
    for i, pixels in enumerate(digits().train.pixels[:65, 0]):
        write(tmp_path / "images" / CLASSES[i % 2] / f"{i:02}.png", pixels)
    return tmp_path / "images"


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def candidates(others: np.ndarray) -> list[np.ndarray]:
    """Images to replace one with: extreme ones, noise, new ones and duplicates of existing ones."""
    rng = np.random.default_rng(1)
    plain = [np.full((8, 8), v, np.uint8) for v in (0, 1, 254, 255)]
    pixel = np.zeros((8, 8), np.uint8)
    pixel[3, 4] = 255
    checkers = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    noise = list(rng.integers(0, 256, (6, 8, 8), np.uint8))
    return [*plain, pixel, checkers, *noise, *digits().test.pixels[:6, 0], *others[:4]]


def plan_for(folder: Path, labels: str) -> Plan:
    given = {
        "data": f"folder:{folder}",
        "size": 8,
        "test_fraction": 0.5,
        "clients": 1,
        "labels": labels,
        "out": str(folder / "run"),
    }
    return prepare(config.resolve("moments", {**QUICK["moments"], **given}))


def simulated(folder: Path, labels: str) -> np.ndarray:
    """The sums of a simulated client before noise."""
    plan = plan_for(folder, labels)
    return feature_sums(plan.method, plan.partition.client(plan.data, 0))


def by_node(spec: RunSpec) -> Callable[[Path, str], np.ndarray]:
    """The sums in the reply of a node with this folder, in a run without noise."""
    plain = replace(spec, settings={**spec.settings, "privacy": "none"})
    request = encode(Message(Header(Kind.REQUEST, bytes.fromhex(spec.id), 0, "server")))

    def sums(folder: Path, _: str) -> np.ndarray:
        own = folder.parent / "node"
        shutil.rmtree(own, ignore_errors=True)
        client = Node.of({"name": "a", "data": f"folder:{folder}", "folder": str(own), "device": "cpu"}).client(plain)
        reply = decode(client.answer(request))
        assert reply.header.kind is Kind.REPLY
        n = client.method.numbers
        return unpack(reply.parts[0].array(), n).reshape(client.method.kinds, -1)

    return sums


@pytest.mark.parametrize("labels", ["auto", "ignore"])
@pytest.mark.parametrize("path", ["node", "simulation"])
def test_no_neighbouring_folder_exceeds_the_sensitivity(path, labels, images, tmp_path):
    plan = plan_for(images, labels)
    summary, mechanism = feature_summary(plan.method), plan.method.mechanism
    released = simulated if path == "simulation" else by_node(spec_of(plan))
    before = released(images, labels)
    files, rng = sorted(images.rglob("*.png")), np.random.default_rng(5)
    new = candidates(np.stack([np.asarray(Image.open(f)) for f in files]))
    changes: list[float] = []
    counts: set[int] = set()
    for k in range(NEIGHBOURS):
        other = tmp_path / "neighbour"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(images, other)
        gone = other / files[rng.integers(len(files))].relative_to(images)
        gone.unlink()
        if k % 5:  # otherwise it is only removed
            label, name = CLASSES[rng.integers(2)], NAMES[rng.integers(len(NAMES))] or gone.name
            write(other / label / f"new-{name}" if (other / label / name).exists() else other / label / name,
                  new[rng.integers(len(new))])  # fmt: skip
        after = released(other, labels)
        changes.append(float(np.linalg.norm((after - before).astype(np.float64))) / summary.grid)
        counts.add(int(after[:, 0].sum() - before[:, 0].sum()) // summary.count)
    assert max(changes) <= mechanism.sensitivity * (1 + 1e-12)
    assert max(changes) > 0.6 * mechanism.sensitivity  # the search reaches relevant neighbours
    assert counts == ({-1, 0} if path == "node" else {-1, 0, 1})  # a replacement may also change sides of the split
