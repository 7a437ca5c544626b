"""CelebA by attribute as clients, and who is on a picture; on a small data set in CelebA's files."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.analysis.identity import halves_of_each, probe_identities
from vitrail.analysis.trained import open_run
from vitrail.cli.main import app
from vitrail.data import load
from vitrail.utils.errors import Malformed

PEOPLE = 3  # in the test part, each with a colour of their own


def faces(folder, identities=True):
    """24 train pictures and 60 test pictures; two attributes, of which every picture has at least one."""
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


def test_a_run_by_attributes_is_probed_for_people(celeba, tmp_path):
    vitrail.train(
        "padpaf", data="celeba", size=16, clients=2, partition="attributes", width=4, latent_dim=8, style_depth=2, rounds=1,
        workers=1, eval_every=0, grids=0, labels="ignore", out=str(tmp_path / "run"),
    )  # fmt: skip
    opened = open_run(tmp_path / "run")
    data = load("celeba", size=16)
    assert opened.views.names == ("Male", "Young")
    for part, view in ((data.train, opened.views.train), (data.test, None)):
        if view is not None:
            for k in (0, 1):
                assert np.array_equal(view.shows[view.client == k], np.flatnonzero(part.attributes[:, k]))
    trained, _ = probe_identities(opened)
    found = {m.name: m for m in trained.measures}
    assert list(found) == [f"top-{k} from {w}" for w in ("content", "style") for k in (1, 10, 50)]
    assert found["top-1 from content"].value > 0.6  # people differ in colour; chance is a third
    assert found["top-10 from content"].value == 1  # there are three people
    assert "3 people" in found["top-1 from content"].note


def test_identities_are_those_of_the_file_and_optional(celeba, tmp_path, monkeypatch):
    data = load("celeba", size=16)
    assert data.test.identities.tolist() == [7 + i % PEOPLE for i in range(60)]
    assert data.train.take(np.array([2, 0])).identities.tolist() == [102, 100]
    (celeba / "identity_CelebA.txt").write_text("000001.jpg x\n")
    with pytest.raises(Malformed, match="the number of a person"):
        load("celeba", size=16)
    (celeba / "identity_CelebA.txt").write_text("000001.jpg 4\n")
    with pytest.raises(Malformed, match=r"no line for 000002\.jpg"):
        load("celeba", size=16)
    (celeba / "identity_CelebA.txt").unlink()
    assert load("celeba", size=16).test.identities is None


def test_nobody_is_asked_for_whom_the_probe_does_not_know():
    who = np.random.default_rng(0).integers(0, 40, 100)
    fit, ask = halves_of_each(who)
    assert set(who[ask]) <= set(who[fit])
    assert not set(fit) & set(ask)
    assert {p for p in who if (who == p).sum() > 1} == set(who[ask])
    assert app  # the verb is `vitrail probe RUN --identity`
