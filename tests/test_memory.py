"""Small files and messages that name large networks are refused before memory is allocated for them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.federation import quick
from vitrail import state
from vitrail.artifact import FORMAT
from vitrail.errors import Malformed
from vitrail.methods import psfedgan_message
from vitrail.methods.base import Model
from vitrail.model_limits import check_model, fewest_coded_bytes, seeded_network
from vitrail.nets.padpaf import Content
from vitrail.wire import deltas

MOST = 300 * 2**20  # bytes that a refusal may cost
ABOUT = {"shape": [3, 128, 128], "classes": 0}
SEEDED = {**ABOUT, "generator": "resnet", "width": 4.0, "seed": 1}
FEW = np.array([1, 0, 0, 0], np.uint8)
SCORES = np.array([1, 0, 0, 0, 1], np.uint8)
STYLED = {"shape": [1, 8, 8], "classes": 0, "width": 4, "latent": 4096, "style_depth": 16, "label_maps": "private"}

BOMBS = {  # name: kind, tree, what the refusal says; None: it loads
    "masked: weights": ("masked", {**SEEDED, "mask": FEW}, "a mask of 4 bytes for a network"),
    "masked: feature maps": (
        "masked",
        {**SEEDED, "generator": "sngan", "width": 0.5, "mask": FEW},
        "a mask of 4 bytes for a network",
    ),
    "masked: classes": ("masked", {**SEEDED, "shape": [1, 8, 8], "classes": 10**6, "mask": FEW}, "1000000 classes"),
    "masked: width": ("masked", {**SEEDED, "width": 1e300, "mask": FEW}, "width = 1e.300; a number above 0"),
    "ensemble": ("ensemble", {**SEEDED, "scores": SCORES}, "a scores of 5 bytes for a network"),
    "dcgan": ("dcgan", {**ABOUT, "width": 512, "z": 100, "weights": {}}, "its weights are not those of the network"),
    "mixture": (
        "mixture",
        {**ABOUT, "width": 512, "z": 100, "labels": [[]], "parts": [{}]},
        "its weights are not those of the network",
    ),
    "padpaf: content": (
        "padpaf",
        {**STYLED, "latent": 2**14, "content": {}},
        "its weights are not those of the network",
    ),
    "padpaf: a style that is not stored": ("padpaf", {**STYLED, "content": "real"}, None),
    "classifier": ("classifier", {**ABOUT, "classes": 10**6, "weights": {}}, "1000000 classes"),
}

CHILD = """
import json, os, resource, sys
from vitrail.artifact import load
from vitrail.errors import Malformed
from vitrail.inspection import inspect_model

act = {"load": load, "show": inspect_model}[sys.argv[1]]
for path in sys.argv[2:]:
    reader, writer = os.pipe()
    if os.fork() == 0:
        status = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (status + 2**30,) * 2)  # so that a failing test harms nobody
        rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before, said = rss(), None
        try:
            act(path)
        except (Malformed, MemoryError) as e:
            said = repr(e)
        os.write(writer, json.dumps([said, rss() - before]).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    print(os.read(reader, 100_000).decode() or "[null, 0]", flush=True)
"""


def write(path, kind, tree):
    if tree.get("content") == "real":
        tree = {**tree, "content": Content((1, 8, 8), 0, 4, 4096).state_dict()}
    state.save(path, {"format": FORMAT, "kind": kind, "names": [], "about": {}, "model": tree})


@pytest.fixture(scope="module", params=["load", "show"])
def outcome(request, tmp_path_factory):
    """What each bomb did in a process of its own: the refusal, and the bytes of memory it took."""
    folder = tmp_path_factory.mktemp("bombs")
    paths = []
    for i, (kind, tree, _) in enumerate(BOMBS.values()):
        if request.param == "show" or kind != "classifier":  # `load` is for generators
            write(folder / f"{i}.safetensors", kind, tree)
            paths.append((list(BOMBS)[i], folder / f"{i}.safetensors"))
    words = [sys.executable, "-c", CHILD, request.param, *(str(path) for _, path in paths)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([name for name, _ in paths], lines, strict=True))


def test_a_small_model_file_costs_little_whatever_sizes_it_names(outcome):
    for name, (said, cost) in outcome.items():
        assert cost < MOST, f"{name}: {cost:,} bytes"
        expected = BOMBS[name][2]
        assert (said is None) if expected is None else (said is not None and expected in said.replace("+", ".")), name


def test_a_file_that_names_one_tensor_twice_is_refused(tmp_path):
    """3,000 names of one tensor of a megabyte are three gigabytes."""
    import safetensors.torch

    for kind in ("bytes", "tensor", "array"):
        skeleton = json.dumps({"list": [{kind: "0"}, {kind: "0"}]})
        path = tmp_path / f"{kind}.safetensors"
        safetensors.torch.save_file({"0": torch.zeros(100, dtype=torch.uint8)}, path, {"vitrail": skeleton})
        with pytest.raises(Malformed, match="used twice"):
            state.load(path)


def test_a_list_that_pack_does_not_write_is_refused():
    with pytest.raises(ValueError, match="without its kind"):
        state.unpack({}, '{"list": [[[], []]]}')


@pytest.mark.parametrize("width", [0.05, 0.1, 0.25, 0.5, 1.0, 8.0])
def test_a_packed_mask_suffices_for_the_generators_with_the_largest_feature_maps(width):
    tree = {**SEEDED, "generator": "sngan", "width": width}
    with torch.device("meta"):
        weights = sum(p.numel() for p in seeded_network(tree).parameters())
    assert 0 <= fewest_coded_bytes(tree) <= weights // 8


def test_a_mask_that_compresses_well_is_stored_packed_where_its_network_is_large():
    from vitrail import config
    from vitrail.methods.base import Task

    method = config.build_method(
        config.resolve("prism", {"generator": "sngan", "width": 0.25, "features": "vitrail-fashion"}),
        Task((3, 128, 128), 0, 1, 1),
    )
    for model in method.models(1, np.full(method.size, -5, np.int16), trained=True).values():
        assert check_model(model, []) >= method.size // 8


def test_weights_must_have_the_shapes_of_the_network_they_are_for():
    tree = {"shape": [1, 8, 8], "classes": 0, "width": 4, "z": 8, "weights": {}}
    with pytest.raises(Malformed, match="not those of the network"):
        check_model(Model("dcgan", tree), [])


@pytest.mark.parametrize("coding", ["delta", "int4"])
def test_a_short_message_cannot_decode_to_large_discriminators(coding):
    method = quick("psfedgan", steps=200, d_coding=coding)
    architecture = "dense:512"
    one = np.zeros((1, sum(method.coding(architecture).sizes)), np.float32)
    row = deltas.encode(one) if coding == "delta" else method.coding(architecture).encode(one, None).tobytes()
    parts = {
        "architecture": np.frombuffer(architecture.encode(), np.uint8),
        "discriminators": np.frombuffer(row * method.steps, np.uint8),
        "seed": np.array([1], np.uint64),
    }
    parts |= {"labels": np.ones(10, np.uint8)} if method.declares_besides() else {}
    assert len(row * method.steps) < 2**15
    with pytest.raises(Malformed, match="bytes of discriminators of an architecture that takes"):
        psfedgan_message.read(method, parts, None)
