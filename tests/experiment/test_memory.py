"""Small files and messages that name large networks are refused before memory is allocated for them."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.federation import quick
from vitrail.methods.base import Model
from vitrail.methods.psfedgan import messages as psfedgan_message
from vitrail.models.kinds.seeded import fewest_coded_bytes, seeded_network
from vitrail.models.limits import FREE, STATISTICS_BATCH, images_per_pass, largest_activation
from vitrail.models.limits import SAMPLE_BATCH as BATCH
from vitrail.models.model_file import FORMAT, check_model, load, open_model
from vitrail.nets.content_style import Content
from vitrail.nets.content_style import ContentStyleGenerator as Styled
from vitrail.nets.dcgan import DcganGenerator as DcGan
from vitrail.nets.generators import build_generator
from vitrail.utils import state
from vitrail.utils.errors import Malformed
from vitrail.wire import deltas

pytestmark = pytest.mark.slow

GENERATORS = ("small", "resnet", "sngan", "dcgan")
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
    "masked: width": ("masked", {**SEEDED, "width": 1e300, "mask": FEW}, "width = 1e+300; expected a number above 0"),
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
    "ensemble: feature maps of 256 images": (
        "ensemble",
        {**SEEDED, "generator": "sngan", "width": 0.03, "scores": SCORES},
        None,
    ),
    "padpaf: a style that is not stored": ("padpaf", {**STYLED, "content": "real"}, None),
    "classifier": ("classifier", {**ABOUT, "classes": 10**6, "weights": {}}, "1000000 classes"),
}

CHILD = """
import json, os, resource, sys
from vitrail.models.model_file import load
from vitrail.utils.errors import Malformed
from vitrail.models.inspection import inspect_model

for word in sys.argv[1:]:
    verb, path = word.split(":", 1)
    reader, writer = os.pipe()
    if os.fork() == 0:
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)  # so that a failing test does not exhaust the memory
        rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before, refusal = rss(), None
        try:
            {"load": load, "show": inspect_model, "sample": lambda path: load(path).sample(256)}[verb](path)
        except (Malformed, MemoryError) as e:
            refusal = repr(e)
        os.write(writer, json.dumps([refusal, rss() - before]).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    print(os.read(reader, 100_000).decode() or '["died", 0]', flush=True)
"""


def write(path, kind, tree):
    if tree.get("content") == "real":
        tree = {**tree, "content": Content((1, 8, 8), 0, 4, 4096).state_dict()}
    state.save(path, {"format": FORMAT, "kind": kind, "names": [], "about": {}, "model": tree})


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By verb and bomb, each in a separate process: the refusal, and the bytes of memory that it took."""
    folder = tmp_path_factory.mktemp("bombs")
    words = {}
    for i, (name, (kind, tree, _)) in enumerate(BOMBS.items()):
        path = folder / f"{i}.safetensors"
        write(path, kind, tree)
        verbs = ("show",) if kind == "classifier" else ("load", "show")  # `load` is for generators
        verbs += ("sample",) if name.startswith("ensemble: feature") else ()
        words |= {(verb, name): f"{verb}:{path}" for verb in verbs}
    done = subprocess.run([sys.executable, "-c", CHILD, *words.values()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_model_file_costs_little_whatever_sizes_it_names(outcomes, name):
    found = {verb: outcome for (verb, bomb), outcome in outcomes.items() if bomb == name}
    assert found
    expected = BOMBS[name][2]
    for refusal, cost in found.values():
        assert cost < MOST
        assert refusal is None if expected is None else expected in str(refusal)


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
    from vitrail.experiment import settings as config
    from vitrail.methods.base import Task

    method = config.build_method(
        config.resolve("prism", {"generator": "sngan", "width": 0.25, "features": "vitrail-fashion"}),
        Task((3, 128, 128), 0, 1, 1),
    )
    for model in method.export_models({"seed": 1, "s": np.full(method.size, -5, np.int16), "closed": 1}).values():
        assert check_model(model, []) >= method.size // 8


class Largest(TorchDispatchMode):
    """Record the bytes of the largest tensor that any operation returns."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            self.nbytes = max(self.nbytes, t.nbytes if torch.is_tensor(t) else 0)
        return out


@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("name", [*GENERATORS, "fedgan", "padpaf", "registered"])
def test_the_largest_feature_map_is_the_one_that_a_pass_computes(name, side):
    shape = (3, side, side)
    if name == "padpaf":
        content = Content(shape, 2, 8, 16)
        net, counted = Styled(content, None), content
    elif name == "registered":  # the sizes are those of a pass on the meta device
        net = counted = torch.nn.Sequential()
        counted.z, counted.forward = 5, lambda z, labels: (z[:, :1, None, None].expand(-1, 7, side, side) * 1)[:, :3]
    else:
        net = counted = DcGan(shape, 2, 4, 8) if name == "fedgan" else build_generator(name, shape, 2, 0.25)
    with torch.no_grad(), Largest() as largest:
        net(torch.randn(STATISTICS_BATCH, net.z), torch.zeros(STATISTICS_BATCH, dtype=torch.int64))
    assert largest.nbytes / 2 <= largest_activation(counted, side, 2) <= largest.nbytes


@pytest.fixture(scope="module")
def wide():
    """A small ensemble whose feature maps for 256 images exceed the limit; for 64 they do not."""
    return open_model(Model("ensemble", {**SEEDED, "generator": "sngan", "width": 0.03, "scores": SCORES}), [])


def test_sampling_keeps_the_limit_of_a_feature_map(wide):
    with Largest() as largest:
        wide.sample(BATCH)
    assert 0 < largest.nbytes <= FREE


def test_images_that_are_computed_in_parts_have_the_mask_of_their_batch():
    tree = {**SEEDED, "shape": [1, 8, 8], "generator": "small", "width": 0.25, "scores": SCORES, "classes": 2}
    whole = open_model(Model("ensemble", tree), ["a", "b"])
    assert whole.per_pass == BATCH
    torch.testing.assert_close(replace(whole, per_pass=64).sample(300), whole.sample(300), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", GENERATORS)
def test_ordinary_generators_compute_256_images_at_once(name):
    with torch.device("meta"):
        net = build_generator(name, (3, 32, 32), 10)
    mask = sum(p.numel() for p in net.parameters()) // 16  # at half a bit per weight
    assert images_per_pass(net, 32, 10, mask) == BATCH


@pytest.mark.parametrize("names", [[0, 1], "ab", {"a": 0, "b": 1}, [b"a", b"b"], ["a", None], ["a", "b" * 2000]])
def test_names_of_classes_that_are_no_short_strings_are_refused(tmp_path, names):
    tree = {**SEEDED, "shape": [1, 8, 8], "generator": "small", "width": 0.25, "scores": SCORES, "classes": 2}
    path = tmp_path / "m.safetensors"
    state.save(path, {"format": FORMAT, "kind": "ensemble", "names": names, "about": {}, "model": tree})
    with pytest.raises(Malformed, match=r"m\.safetensors: .*class name"):
        load(path)


def test_weights_must_have_the_shapes_of_the_network_they_are_for():
    tree = {"shape": [1, 8, 8], "classes": 0, "width": 4, "z": 8, "weights": {}}
    with pytest.raises(Malformed, match="not those of the network"):
        check_model(Model("dcgan", tree), [])


@pytest.mark.parametrize("coding", ["delta", "int4"])
def test_a_short_message_cannot_decode_to_large_discriminators(coding):
    method = quick("psfedgan", steps_per_message=200, d_coding=coding)
    architecture = "dense:512"
    one = np.zeros((1, sum(method.coding(architecture).sizes)), np.float32)
    row = deltas.encode(one) if coding == "delta" else method.coding(architecture).encode(one, None).tobytes()
    parts = {
        "architecture": np.frombuffer(architecture.encode(), np.uint8),
        "discriminators": np.frombuffer(row * method.steps_per_message, np.uint8),
        "seed": np.array([1], np.uint64),
    }
    parts |= {"labels": np.ones(10, np.uint8)} if "labels" in method.reply_spec() else {}
    assert len(row * method.steps_per_message) < 2**15
    with pytest.raises(Malformed, match="bytes of discriminators of an architecture that takes"):
        psfedgan_message.read(method, parts, None)
