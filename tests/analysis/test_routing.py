"""Routing of images to clients."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from vitrail.analysis.routing import Router, measure_routing
from vitrail.cli.main import app


def command(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_an_image_is_routed_to_the_most_confident_client(run):
    """Reference: SciPy's Mahalanobis distance to each client's own features, and D itself."""
    from scipy.spatial.distance import mahalanobis

    router, names, train = Router.of(run), run.views.names, run.views.train
    x = run.views.test.x[::97]
    own = {}
    for k, name in enumerate(names):
        mine = train.x[torch.from_numpy(train.client == k)]
        with torch.no_grad():
            own[name] = run.trained.style(name, mine).double().numpy(), run.trained.D_s[name](mine).numpy()
    for image in x:
        far, d_out, scaled = {}, {}, {}
        for name, (phi, d) in own.items():
            covariance = np.cov(phi.T)
            inverse = np.linalg.inv(covariance + 1e-3 * np.diag(covariance).mean() * np.eye(len(covariance)))
            far[name] = mahalanobis(run.trained.style(name, image[None])[0].numpy(), phi.mean(0), inverse)
            with torch.no_grad():
                d_out[name] = run.trained.D_s[name](image[None]).item()
            scaled[name] = (d_out[name] - d.mean()) / d.std(ddof=1)
        assert router.route(image[None]) == [min(names, key=far.__getitem__)]
        assert router.route(image[None], "scaled") == [max(names, key=scaled.__getitem__)]
        assert router.route(image[None], "plain") == [max(names, key=d_out.__getitem__)]


def test_routing_is_measured_on_held_out_images_of_every_client(run):
    measures, table = measure_routing(run, Router.of(run))
    assert table.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert measures[0].value == pytest.approx(np.diag(table).mean())
    assert measures[0].n_real == len(run.views.test.client)


def test_the_command_prints_one_client_per_image(folder, tmp_path):
    Image.fromarray(np.full((30, 30, 3), 90, np.uint8)).save(tmp_path / "a.png")
    output = command("route", folder, tmp_path / "a.png").output
    assert output.split(": ")[1].strip() in ("invert", "blur", "zoom-out")
    done = command("route", folder, "-o", tmp_path / "r.png")
    assert "routed correctly" in done.output
    assert (tmp_path / "r.png").exists()
