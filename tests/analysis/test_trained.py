"""A run loaded for analysis: its networks are those of training, its images those that clients would see."""

import numpy as np
import pytest
import torch

from vitrail.analysis.trained import load_run
from vitrail.analysis.views import mean_over_images
from vitrail.data import load
from vitrail.data.transforms import TRANSFORMS
from vitrail.experiment.personal import load_personal
from vitrail.methods.base import ServerMessage
from vitrail.metrics.evaluation import split_validation
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


def test_a_clients_generator_is_the_one_used_for_sampling(run, folder):
    z = torch.randn(3, 16, generator=Rng((1,)).torch())
    with torch.no_grad():
        assert run.trained.generators["blur"](z).equal(load_personal(folder, "blur").net(z))


def test_untrained_networks_are_those_that_clients_start_with(run):
    """With a tiny learning rate, a client's first round leaves the initial style."""
    method = type(run.method)(**{**vars(run.method), "lr": 1e-12})
    server = method.server_init(Rng((run.settings.seed,)).child("server", "init"))
    request = ServerMessage(0, {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()})
    own = run.views.train.images.take(np.arange(8)).without_labels()
    state, _ = method.client_round({}, request, own, Rng((1,)))
    start = type(run.trained).of(method, server, {"a": state})
    x = run.views.test.x[:6]
    assert torch.allclose(start.style("a", x), run.untrained.style("blur", x), atol=1e-3)
    assert torch.allclose(start.content(x), run.untrained.content(x), atol=1e-2)
    assert not torch.allclose(run.trained.content(x), run.untrained.content(x), atol=1e-2)


def test_test_images_are_held_out_images_through_each_clients_transform(run):
    data = load("digits", size=8)
    _, test_part = split_validation(data.test)
    views = run.views
    assert views.names == ("invert", "blur", "zoom-out")
    plain = test_part.pixels.astype(np.float32) / 255
    for k in (0, 2):  # transforms without randomness
        seen = TRANSFORMS[views.names[k]](torch.from_numpy(plain), np.random.default_rng(0))
        bytes_ = (seen.clamp(0, 1) * 255).round().byte().numpy()
        assert np.array_equal(views.test.images.pixels[views.test.client == k], bytes_)
    assert np.array_equal(views.test.images.labels[views.test.client == 1], test_part.labels)
    own = views.train.source[views.train.client == 0]
    assert np.array_equal(views.train.images.pixels[views.train.client == 0], 255 - data.train.pixels[own])


def test_an_image_that_several_clients_see_counts_once_in_an_interval():
    hits = np.random.default_rng(0).integers(0, 2, 200).astype(np.float64)
    once = mean_over_images(hits, np.arange(200))
    thrice = mean_over_images(np.tile(hits, 3), np.tile(np.arange(200), 3))
    assert thrice == once
    assert once[1] < once[0] < once[2]


def test_runs_that_do_not_separate_content_and_style_are_refused(tmp_path):
    with pytest.raises(VitrailError, match="not the folder of a run"):
        load_run(tmp_path)
    for shared in ("everything", "nothing"):
        (tmp_path / "settings.toml").write_text(f'method = "padpaf"\nshared = "{shared}"\n')
        with pytest.raises(VitrailError, match=r"method=padpaf does not separate.*share the content only"):
            load_run(tmp_path)
    for method in ("fedgan", "ditto", "padpafvae"):
        (tmp_path / "settings.toml").write_text(f'method = "{method}"\n')
        with pytest.raises(VitrailError, match=f"method={method} does not separate"):
            load_run(tmp_path)
