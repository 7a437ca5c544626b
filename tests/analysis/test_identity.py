"""Identity probes on CelebA with attributes as clients; on a small data set in CelebA's file format."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.analysis.probes import probe_identities, split_each_identity
from vitrail.analysis.trained import load_run
from vitrail.data import load
from vitrail.utils.errors import Malformed

PEOPLE = 3  # in the test part, each with their own color


def faces(folder, identities=True):
    """24 training and 60 test images; two attributes, of which every image has at least one."""
    folder.mkdir(parents=True)
    parts, names = "0" * 24 + "2" * 60, [f"{i + 1:06}.jpg" for i in range(84)]
    who = [100 + i for i in range(24)] + [7 + i % PEOPLE for i in range(60)]
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for name, person in zip(names, who, strict=True):
            out = io.BytesIO()
            pixels = rng.integers(0, 60, (218, 178, 3))
            pixels[..., person % 3] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(out, "JPEG")
            archive.writestr(f"img_align_celeba/{name}", out.getvalue())
    rows = [f"{n} {1 if i % 2 else -1} {-1 if i % 3 and i % 2 else 1}" for i, n in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join(["84", "Male Young", *rows]))
    (folder / "list_eval_partition.txt").write_text("\n".join(f"{n} {p}" for n, p in zip(names, parts, strict=True)))
    if identities:
        (folder / "identity_CelebA.txt").write_text("\n".join(f"{n} {w}" for n, w in zip(names, who, strict=True)))
    return folder


@pytest.fixture
def celeba(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path / "home"))
    return faces(tmp_path / "assets" / "celeba")


def test_identities_are_probed_on_a_run_by_attributes(celeba, tmp_path):
    vitrail.train(
        "padpaf", data="celeba", size=16, clients=2, partition="attributes", width=4, latent_dim=8, style_depth=2, rounds=1,
        workers=1, eval_every=0, grids=0, labels="ignore", out=str(tmp_path / "run"),
    )  # fmt: skip
    run = load_run(tmp_path / "run")
    data = load("celeba", size=16)
    assert run.views.names == ("Male", "Young")
    for part, view in ((data.train, run.views.train), (data.test, None)):
        if view is not None:
            for k in (0, 1):
                assert np.array_equal(view.source[view.client == k], np.flatnonzero(part.attributes[:, k]))
    trained, _ = probe_identities(run)
    found = {m.name: m for m in trained.measures}
    assert list(found) == [f"top-{k} from {w}" for w in ("content", "style") for k in (1, 10, 50)]
    assert found["top-1 from content"].value > 0.6  # people differ in color; a random guess gives 1/3
    assert found["top-10 from content"].value == 1  # there are three people
    assert "3 people" in found["top-1 from content"].note


def test_identities_are_read_from_the_file_which_is_optional(celeba, tmp_path, monkeypatch):
    data = load("celeba", size=16)
    assert data.test.identities.tolist() == [7 + i % PEOPLE for i in range(60)]
    assert data.train.take(np.array([2, 0])).identities.tolist() == [102, 100]
    (celeba / "identity_CelebA.txt").write_text("000001.jpg x\n")
    with pytest.raises(Malformed, match="an identity number"):
        load("celeba", size=16)
    (celeba / "identity_CelebA.txt").write_text("000001.jpg 4\n")
    with pytest.raises(Malformed, match=r"no line for 000002\.jpg"):
        load("celeba", size=16)
    (celeba / "identity_CelebA.txt").unlink()
    assert load("celeba", size=16).test.identities is None


def test_test_identities_all_occur_among_those_the_probe_is_fitted_on():
    who = np.random.default_rng(0).integers(0, 40, 100)
    fit, test = split_each_identity(who)
    assert set(who[test]) <= set(who[fit])
    assert not set(fit) & set(test)
    assert {p for p in who if (who == p).sum() > 1} == set(who[test])
