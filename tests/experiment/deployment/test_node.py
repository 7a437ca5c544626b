"""A single node: its run specification, secrets, and answers."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.engines.flower.descriptions import GOOD
from tests.experiment.deployment.nodes import SHARE, node
from tests.federation import QUICK
from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.specs import spec_of
from vitrail.experiment.plan import prepare
from vitrail.utils.errors import VitrailError
from vitrail.wire.message import Header, Kind, Message, decode, encode


def test_a_description_is_decoded_to_what_was_encoded(plan, tmp_path):
    described = node(tmp_path, **SHARE).describe(spec_of(plan))
    assert Description.read(described.text()) == described
    assert Description.read(json.dumps({**GOOD, "name": "Süd [red]"})).name == "Süd [red]"


def test_a_run_spec_has_no_path_of_the_server(plan, tmp_path):
    assert str(tmp_path) not in spec_of(plan).text()
    assert RunSpec.read(spec_of(plan).text()) == spec_of(plan)


def test_another_run_spec_with_the_same_id_is_refused(plan, tmp_path):
    spec = spec_of(plan)
    ours = node(tmp_path, **SHARE)
    ours.client(spec)
    with pytest.raises(VitrailError, match="started with other settings"):
        ours.client(replace(spec, clients=4))


def test_the_owner_of_a_node_may_choose_its_discriminator(tmp_path):
    settings = {
        **QUICK["psfedgan"],
        "data": "digits",
        "size": 8,
        "clients": 3,
        "rounds": 2,
        "out": str(tmp_path / "run"),
    }
    spec = spec_of(prepare(config.resolve("psfedgan", settings)))
    chosen = node(tmp_path, **SHARE, discriminator="dense:6").client(spec).method
    assert chosen.architecture == "dense:6"
    assert node(tmp_path, **SHARE).client(spec).method.architecture == f"dcgan:{QUICK['psfedgan']['d_width']}"
    with pytest.raises(VitrailError, match="'resnet:6' is not known"):
        node(tmp_path, **SHARE, discriminator="resnet:6").client(spec)


def test_two_processes_that_answer_one_request_return_the_same_reply(tmp_path):
    """Flower may give up a slow process and repeat the request: noise must not be drawn twice."""
    settings = {
        **QUICK["moments"],
        "privacy": "moments",
        "noise_source": "os",
        "data": "digits",
        "size": 8,
        "clients": 3,
    }
    plan = prepare(config.resolve("moments", {**settings, "out": str(tmp_path / "run")}))
    ours, spec = node(tmp_path, **SHARE), spec_of(plan)
    request = encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))
    with ThreadPoolExecutor(2) as both:
        returned = list(both.map(lambda _: ours.client(spec).answer(request), range(2)))
    assert decode(returned[0]).header.kind is Kind.REPLY
    assert returned[0] == returned[1]


def test_damaged_private_state_is_reported_without_its_path(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    client = ours.client(spec_of(plan))
    client.store.path.write_bytes(b"damaged")
    reply = decode(client.answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))))
    returned = bytes(reply.parts[0].array()).decode()
    assert "damaged" in returned
    assert str(tmp_path) not in returned


def test_with_noise_source_os_a_node_draws_from_its_own_secret(plan, tmp_path):
    spec = spec_of(plan)
    seeded = node(tmp_path, **SHARE).client(spec).rng
    own = replace(spec, id="11" * 16, settings={**spec.settings, "noise_source": "os"})
    first, second = (node(tmp_path / k, **SHARE).client(own).rng for k in "ab")
    assert len({seeded.seed(), first.seed(), second.seed()}) == 3
    assert node(tmp_path / "a", **SHARE).client(own).rng == first


def test_without_flower_the_error_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    settings = {**QUICK["prism"], "data": "digits", "size": 8, "engine": "flower", "out": str(tmp_path / "x")}
    with pytest.raises(VitrailError, match=r'pip install "vitrail\[flower\]"'):
        prepare(config.resolve("prism", settings))
    assert not (tmp_path / "x").exists()


def test_importing_the_client_app_does_not_import_torch():
    import subprocess

    code = "import json, sys, vitrail.experiment.deployment.client_app; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    heavy = ("torch", "sklearn", "matplotlib", "torchmetrics", "opacus", "flwr_datasets", "datasets", "scipy", "pandas")
    assert not set(heavy) & set(loaded)
