"""Linear probes of labels, clients and identities."""

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from vitrail.analysis.probes import probe_identities, probe_run, probe_scalar_per_client, top_k_hits
from vitrail.cli.main import app
from vitrail.utils.errors import VitrailError


def blobs(n, classes, seed, d=3):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    return torch.eye(classes)[y] @ torch.randn(
        classes, d, generator=torch.Generator().manual_seed(9)
    ) * 3 + torch.randn(n, d, generator=draw), y


def test_labels_and_clients_are_probed_on_trained_and_untrained_networks(run):
    trained, untrained = probe_run(run)
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
            assert (m.n_real, m.n_fake) == (len(run.views.test.client), len(run.views.train.client))
    client = {m.name: m.value for m in trained.measures}
    assert client["client from content"] > 0.6  # any network recognizes inverted images; a random guess gives 1/3


def test_the_bar_chart_shows_trained_and_untrained_networks(folder, tmp_path):
    out = tmp_path / "probes.png"
    done = CliRunner().invoke(app, ["probe", str(folder), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert (folder / "probes.json").exists(), "results are saved, too"
    pixels = np.asarray(Image.open(out).convert("RGB")).reshape(-1, 3)
    shown = [(np.abs(pixels.astype(int) - ink).sum(1) < 90).mean() for ink in ((31, 119, 180), (255, 127, 14))]
    assert all(share > 0.02 for share in shown), "bars of both colors"


def test_features_at_positions_average_to_phi_and_improve_label_probes(run):
    nets, x = run.trained, run.views.test.x[:20]
    side = nets.D_c.map(x).shape[2]
    maps = nets.content(x, side).unflatten(1, (4, -1))
    torch.testing.assert_close(maps, nets.D_c.map(x).flatten(2))
    torch.testing.assert_close(maps.mean(2), nets.content(x))
    torch.testing.assert_close(nets.style("blur", x, side).unflatten(1, (4, -1)).mean(2), nets.style("blur", x))
    mean, pooled = ({m.name: m for m in probe_run(run, positions=p)[0].measures} for p in (1, 2))
    assert (
        pooled["label from content"].value > mean["label from content"].value + 0.1
    )  # digits differ in where strokes are
    assert "2x2 positions" in pooled["label from style"].note
    assert pooled["client from style of all"].value == pytest.approx(mean["client from style of all"].value, abs=0.02)
    with pytest.raises(VitrailError, match="divides"):
        probe_run(run, positions=3)


def test_top_k_hits_equal_those_of_scikit_learn():
    (x, y), (test, truth) = blobs(300, 6, 0), blobs(200, 6, 1)
    hits = top_k_hits(x, y + 40, test, truth + 40, (1, 3, 6))
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


def test_top_k_hits_with_two_classes():
    (x, y), (test, truth) = blobs(60, 2, 0), blobs(40, 2, 1)
    hits = top_k_hits(x, y, test, truth, (1, 2))
    assert 0.7 < hits[1].mean() < 1.01
    assert hits[2].all()


def test_one_number_per_client_suffices_if_each_detects_its_own_images():
    """Feature 0 of network i shows whether an image is client i's; the others are noise."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    phi = torch.randn(400, 4, 5, generator=draw)
    phi[torch.arange(400), y, 0] += 4
    right = probe_scalar_per_client(phi[:200], y[:200], phi[200:], y[200:])
    assert right.mean() > 0.85
    blind = probe_scalar_per_client(phi[:200, :, 1:], y[:200], phi[200:, :, 1:], y[200:])
    assert blind.mean() < 0.45


def test_probing_identities_without_their_file_is_an_error(run):
    with pytest.raises(VitrailError, match="identity_CelebA"):
        probe_identities(run)
    assert np.isfinite(run.views.test.x.numpy()).all()
