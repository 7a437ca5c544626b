"""Probes of labels, clients and people."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from vitrail.analysis.identity import probe_identities
from vitrail.analysis.probes import probe_run, squeezed, top
from vitrail.cli.main import app
from vitrail.utils.errors import VitrailError


def blobs(n, classes, seed, d=3):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    return torch.eye(classes)[y] @ torch.randn(
        classes, d, generator=torch.Generator().manual_seed(9)
    ) * 3 + torch.randn(n, d, generator=draw), y


def test_a_run_is_probed_for_labels_and_clients_beside_its_first_networks(opened):
    trained, untrained = probe_run(opened)
    names = [m.name for m in trained.measures]
    assert names == [
        "label from content",
        "label from style",
        *(f"client from {w}" for w in ("content", "style", "style of all")),
    ]
    assert [m.name for m in untrained.measures] == names
    for column in (trained, untrained):
        for m in column.measures:
            assert 0 <= m.low <= m.value <= m.high <= 1
            assert (m.n_real, m.n_fake) == (len(opened.views.test.client), len(opened.views.train.client))
    client = {m.name: m.value for m in trained.measures}
    assert (
        client["client from content"] > 0.6
    )  # inverted pictures are told from others by any network; chance is a third


def test_probes_are_drawn_as_bars_trained_beside_untrained(folder, tmp_path):
    out = tmp_path / "probes.png"
    done = CliRunner().invoke(app, ["probe", str(folder), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert (folder / "probes.json").exists(), "the figures are kept all the same"
    pixels = np.asarray(Image.open(out).convert("RGB")).reshape(-1, 3)
    shown = [(np.abs(pixels.astype(int) - ink).sum(1) < 90).mean() for ink in ((31, 119, 180), (255, 127, 14))]
    assert all(share > 0.02 for share in shown), "bars of both kinds"


def test_features_at_places_have_phi_as_their_mean_and_are_probed_too(opened):
    nets, x = opened.trained, opened.views.test.x[:20]
    side = nets.D_c.map(x).shape[2]
    maps = nets.content(x, side).unflatten(1, (4, -1))
    torch.testing.assert_close(maps, nets.D_c.map(x).flatten(2))
    torch.testing.assert_close(maps.mean(2), nets.content(x))
    torch.testing.assert_close(nets.style("blur", x, side).unflatten(1, (4, -1)).mean(2), nets.style("blur", x))
    mean, places = ({m.name: m for m in probe_run(opened, places=p)[0].measures} for p in (1, 2))
    assert places["label from content"].value > mean["label from content"].value + 0.1  # digits differ in places
    assert "2x2 places" in places["label from style"].note
    assert places["client from style of all"].value == pytest.approx(mean["client from style of all"].value, abs=0.02)
    with pytest.raises(VitrailError, match="divides"):
        probe_run(opened, places=3)


def test_top_k_asks_whether_fewer_than_k_are_likelier():
    (x, y), (test, truth) = blobs(300, 6, 0), blobs(200, 6, 1)
    hits = top(x, y + 40, test, truth + 40, (1, 3, 6))
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import top_k_accuracy_score
    from sklearn.preprocessing import StandardScaler

    scale = StandardScaler().fit(x)
    model = LogisticRegression(C=0.1, max_iter=500).fit(scale.transform(x), y)
    scores = model.predict_proba(scale.transform(test))
    for k in (1, 3):
        assert hits[k].mean() == pytest.approx(top_k_accuracy_score(truth, scores, k=k), abs=0.02)
    assert hits[6].all()
    assert hits[1].mean() < hits[3].mean()


def test_top_k_of_two_people():
    (x, y), (test, truth) = blobs(60, 2, 0), blobs(40, 2, 1)
    hits = top(x, y, test, truth, (1, 2))
    assert 0.7 < hits[1].mean() < 1.01
    assert hits[2].all()


def test_one_number_of_each_client_is_enough_where_each_knows_its_own():
    """Feature 0 of network i says whether a picture is client i's; content of it is noise."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    phi = torch.randn(400, 4, 5, generator=draw)
    phi[torch.arange(400), y, 0] += 4
    right = squeezed(phi[:200], y[:200], phi[200:], y[200:])
    assert right.mean() > 0.85
    blind = squeezed(phi[:200, :, 1:], y[:200], phi[200:, :, 1:], y[200:])
    assert blind.mean() < 0.45


def test_identities_without_their_file_are_refused(opened):
    with pytest.raises(VitrailError, match="identity_CelebA"):
        probe_identities(opened)
    assert np.isfinite(opened.views.test.x.numpy()).all()
