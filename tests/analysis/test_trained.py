"""A run opened for use: the networks are those of training, the pictures those that clients would see."""

import numpy as np
import pytest
import torch

from vitrail.analysis.trained import open_run
from vitrail.analysis.views import mean_over_pictures
from vitrail.data import load
from vitrail.data.transforms import TRANSFORMS
from vitrail.experiment.personal import load_personal
from vitrail.methods.base import ServerMessage
from vitrail.metrics.evaluation import split_validation
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


def test_a_clients_generator_is_the_one_that_sample_draws_from(opened, folder):
    z = torch.randn(3, 16, generator=Rng((1,)).torch())
    with torch.no_grad():
        assert opened.trained.generators["blur"](z).equal(load_personal(folder, "blur").net(z))


def test_an_untrained_network_is_what_clients_begin_with(opened):
    """A client that learns nothing in its first round has the first style."""
    method = type(opened.trained.method)(**{**vars(opened.trained.method), "lr": 1e-12})
    server = method.server_init(Rng((opened.settings.seed,)).child("server", "init"))
    told = ServerMessage(0, {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()})
    own = opened.views.train.pictures.take(np.arange(8)).without_labels()
    state, _ = method.client_round({}, told, own, Rng((1,)))
    begun = type(opened.trained).of(method, server, {"a": state})
    x = opened.views.test.x[:6]
    assert torch.allclose(begun.style("a", x), opened.untrained.style("blur", x), atol=1e-3)
    assert torch.allclose(begun.content(x), opened.untrained.content(x), atol=1e-2)
    assert not torch.allclose(opened.trained.content(x), opened.untrained.content(x), atol=1e-2)


def test_clients_are_judged_by_held_out_pictures_through_their_own_transform(opened):
    data = load("digits", size=8)
    _, judging = split_validation(data.test)
    views = opened.views
    assert views.names == ("invert", "blur", "zoom-out")
    plain = judging.pixels.astype(np.float32) / 255
    for k in (0, 2):  # those that draw nothing
        seen = TRANSFORMS[views.names[k]](torch.from_numpy(plain), np.random.default_rng(0))
        bytes_ = (seen.clamp(0, 1) * 255).round().byte().numpy()
        assert np.array_equal(views.test.pictures.pixels[views.test.client == k], bytes_)
    assert np.array_equal(views.test.pictures.labels[views.test.client == 1], judging.labels)
    held = views.train.shows[views.train.client == 0]
    assert np.array_equal(views.train.pictures.pixels[views.train.client == 0], 255 - data.train.pixels[held])


def test_a_picture_that_several_clients_see_counts_once_in_an_interval():
    hits = np.random.default_rng(0).integers(0, 2, 200).astype(np.float64)
    once = mean_over_pictures(hits, np.arange(200))
    thrice = mean_over_pictures(np.tile(hits, 3), np.tile(np.arange(200), 3))
    assert thrice == once
    assert once[1] < once[0] < once[2]


def test_what_is_no_run_of_padpaf_is_refused(tmp_path):
    with pytest.raises(VitrailError, match="no run's folder"):
        open_run(tmp_path)
    for shared in ("everything", "nothing"):
        (tmp_path / "settings.toml").write_text(f'method = "padpaf"\nshared = "{shared}"\n')
        with pytest.raises(VitrailError, match=f"shared {shared}.*shared=content alone"):
            open_run(tmp_path)
    (tmp_path / "settings.toml").write_text('method = "fedgan"\n')
    with pytest.raises(VitrailError, match="padpaf alone"):
        open_run(tmp_path)
