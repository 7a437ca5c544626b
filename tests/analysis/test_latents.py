"""Algorithm 2 of PaDPaF: from images to latents, and back in another style."""

import numpy as np
import pytest
import torch

from vitrail.analysis.latents import BATCH_SIZE, _sample, learn_maps
from vitrail.experiment.personal import load_personal
from vitrail.nets.barlow_twins import barlow_twins
from vitrail.utils.rng import Rng


@pytest.fixture(scope="module")
def maps(run):
    return learn_maps(run.trained, steps=60)


def test_the_first_loss_is_barlow_twins_of_image_and_reconstruction(run):
    """Lines 4 to 9, with the paper's objective."""
    draw = Rng((0,)).child("maps", "training").torch()
    names = list(run.trained.generators)
    client = names[int(torch.randint(len(names), (1,), generator=draw))]
    x, _, _ = _sample(run.trained, client, BATCH_SIZE, draw)
    one_step = learn_maps(run.trained, steps=1, latent=0)
    five_steps = learn_maps(run.trained, steps=5, latent=0)
    assert five_steps.losses[0] == one_step.losses[0]
    with torch.no_grad():
        z_s = one_step.style[client](run.trained.style(client, x))
        reconstructed = run.trained.generators[client](torch.cat([one_step.content_latent(x), z_s], 1))  # line 8
        D = run.trained.D_c
        plain = barlow_twins(D.project(D.features(x)), D.project(D.features(reconstructed))).item()
    assert one_step.losses[0] == pytest.approx(plain, rel=0.1)  # the maps have taken one step since
    assert five_steps.losses[0] != pytest.approx(five_steps.losses[-1])


def test_training_lowers_the_reconstruction_loss(run):
    losses = learn_maps(run.trained, steps=60, latent=0).losses
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:10])


def test_restyling_uses_the_other_clients_generator_with_this_content(run, maps, folder):
    x = run.views.test.x[:4]
    z_c = maps.content_latent(x)
    z_s = torch.randn(4, 8, generator=Rng((5,)).child("restyle").torch())
    with torch.no_grad():
        plain = load_personal(folder, "blur").net(torch.cat([z_c, z_s], 1))
    assert maps.restyle(x, "blur", seed=5).equal(plain)
    assert z_c.square().mean(1).allclose(torch.ones(4), atol=1e-3)
    assert not maps.restyle(x, "invert", seed=5).equal(plain)
