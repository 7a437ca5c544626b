"""The plan of a run over nodes."""

from __future__ import annotations

from tests.experiment.deployment.nodes import SHARE, node
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.plan import deployment_plan


def test_declared_numbers_of_images_bound_the_images_of_all_nodes(tmp_path):
    assert node(tmp_path, images=480, **SHARE).config.images == 480
    facts = {"shape": [1, 8, 8], "classes": ["a", "b"], "names": ["n", "s"], "nonce": "00"}
    settings = config.resolve("moments", {"clients": 2, "size": 8, "data": "nodes", "noise_source": "os", "out": "-"})
    assert deployment_plan(settings, {**facts, "images": {"n": 480, "s": 30}}).method.task.images == 480
    assert deployment_plan(settings, {**facts, "images": {"n": 480, "s": 0}}).method.task.images == 0, (
        "one is not known"
    )
    assert deployment_plan(settings, facts).method.task.images == 0
