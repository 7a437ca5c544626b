"""From pictures to noise and back in another style; routing; new clients; grids in the report."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vitrail
from tests.analysis.conftest import SMALL
from vitrail.analysis.adaptation import adapt
from vitrail.analysis.anonymity import measure_anonymity, through
from vitrail.analysis.latents import SIZE, _fakes, learn_maps
from vitrail.analysis.routing import Router, measure_routing
from vitrail.analysis.trained import open_run
from vitrail.cli.main import app
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.personal import load_personal
from vitrail.methods.padpaf.losses import barlow_twins
from vitrail.report import write_report
from vitrail.utils.errors import VitrailError
from vitrail.utils.state import load as load_state


@pytest.fixture(scope="module")
def maps(opened):
    return learn_maps(opened.trained, steps=60)


def ask(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


# -- Algorithm 2 --------------------------------------------------------------------------------------------------


def test_the_first_loss_is_barlow_twins_of_the_picture_and_its_reconstruction(opened):
    """Lines 4 to 9 written out, with the paper's objective."""
    from vitrail.utils.rng import Rng

    draw = Rng((0,)).child("maps", "training").torch()
    names = list(opened.trained.generators)
    client = names[int(torch.randint(len(names), (1,), generator=draw))]
    x, _, _ = _fakes(opened.trained, client, SIZE, draw)
    begun = learn_maps(opened.trained, steps=1, latent=0)
    start = learn_maps(opened.trained, steps=5, latent=0)
    assert start.losses[0] == begun.losses[0]
    fresh = replace(begun, losses=[])
    with torch.no_grad():
        again = fresh.reconstruct(x, client)
        D = opened.trained.D_c
        plain = barlow_twins(D.project(D.features(x)), D.project(D.features(again))).item()
    assert begun.losses[0] == pytest.approx(plain, rel=0.1)  # the maps have taken one step since
    assert start.losses[0] != pytest.approx(start.losses[-1])


def test_learning_brings_reconstructions_nearer(opened):
    losses = learn_maps(opened.trained, steps=60, latent=0).losses
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:10])


def test_re_styling_is_the_generator_of_the_other_client_on_this_content(opened, maps, folder):
    x = opened.views.test.x[:4]
    z_c = maps.content_of(x)
    z_s = torch.randn(
        4, 8, generator=__import__("vitrail.utils.rng", fromlist=["Rng"]).Rng((5,)).child("restyle").torch()
    )
    with torch.no_grad():
        plain = load_personal(folder, "blur").net(torch.cat([z_c, z_s], 1))
    assert maps.restyle(x, "blur", seed=5).equal(plain)
    assert z_c.square().mean(1).allclose(torch.ones(4), atol=1e-3)
    assert not maps.restyle(x, "invert", seed=5).equal(plain)


def test_anonymity_leaves_the_reference_client_out_and_asks_both_questions(opened, maps, monkeypatch):
    monkeypatch.setattr("vitrail.metrics.oracle.LEAST_STEPS", 30)
    monkeypatch.setattr("vitrail.metrics.oracle.EPOCHS", 0)
    before, after = measure_anonymity(opened, maps, "blur")
    others = int((opened.views.test.client != 1).sum())
    assert [m.n_real for m in (*before.measures, *after.measures)] == [others] * 8
    assert [m.name.split(",")[0] for m in after.measures] == ["label", "label", "client", "client"]
    assert "chance: 50.0%" in after.measures[-1].note
    sent = through(maps, opened.views.test, "blur")
    assert sent.pixels.shape == opened.views.test.pictures.pixels.shape
    assert not np.array_equal(sent.pixels, opened.views.test.pictures.pixels)


def test_restyle_draws_pictures_above_and_their_new_style_below(folder, tmp_path):
    Image.fromarray(np.full((20, 20), 200, np.uint8)).save(tmp_path / "a.png")
    out = tmp_path / "out.png"
    done = ask("restyle", folder, tmp_path / "a.png", "--to", "blur", "--steps", 3, "-o", out)
    assert done.exit_code == 0, done.output
    with Image.open(out) as image:
        assert image.size == (8 * (8 + 4), 8 * (2 * (8 + 2) + 2))
        assert image.getpixel((40, 40)) == 200
    assert ask("restyle", folder, "--to", "blurr").exception
    assert ask("restyle", folder, "--measure").exception


def test_labels_steer_what_is_restyled(labelled, tmp_path):
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(tmp_path / "a.png")
    assert "say what the pictures show" in str(ask("restyle", labelled, tmp_path / "a.png", "--steps", 2).exception)
    done = ask("restyle", labelled, tmp_path / "a.png", "--label", "3", "--steps", 2, "-o", tmp_path / "o.png")
    assert done.exit_code == 0, done.output
    opened = open_run(labelled)
    assert opened.trained.method.task.classes == 10


# -- routing ------------------------------------------------------------------------------------------------------


def test_a_picture_goes_to_the_client_that_is_surest(opened):
    """By hand: SciPy's Mahalanobis distance to each client's own features, and D itself."""
    from scipy.spatial.distance import mahalanobis

    router, names, train = Router.of(opened), opened.views.names, opened.views.train
    x = opened.views.test.x[::97]
    own = {}
    for k, name in enumerate(names):
        mine = train.x[torch.from_numpy(train.client == k)]
        with torch.no_grad():
            own[name] = opened.trained.style(name, mine).double().numpy(), opened.trained.D_s[name](mine).numpy()
    for picture in x:
        far, says, scaled = {}, {}, {}
        for name, (phi, d) in own.items():
            covariance = np.cov(phi.T)
            inverse = np.linalg.inv(covariance + 1e-3 * np.diag(covariance).mean() * np.eye(len(covariance)))
            far[name] = mahalanobis(opened.trained.style(name, picture[None])[0].numpy(), phi.mean(0), inverse)
            with torch.no_grad():
                says[name] = opened.trained.D_s[name](picture[None]).item()
            scaled[name] = (says[name] - d.mean()) / d.std(ddof=1)
        assert router.route(picture[None]) == [min(names, key=far.__getitem__)]
        assert router.route(picture[None], "scaled") == [max(names, key=scaled.__getitem__)]
        assert router.route(picture[None], "plain") == [max(names, key=says.__getitem__)]


def test_routing_is_measured_on_held_out_pictures_of_every_client(opened):
    measures, table = measure_routing(opened, Router.of(opened))
    assert table.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert measures[0].value == pytest.approx(np.diag(table).mean())
    assert measures[0].n_real == len(opened.views.test.client)


def test_the_verb_names_a_client_for_each_picture(folder, tmp_path):
    Image.fromarray(np.full((30, 30, 3), 90, np.uint8)).save(tmp_path / "a.png")
    said = ask("route", folder, tmp_path / "a.png").output
    assert said.split(": ")[1].strip() in ("invert", "blur", "zoom-out")
    done = ask("route", folder, "-o", tmp_path / "r.png")
    assert "routed rightly" in done.output
    assert (tmp_path / "r.png").exists()


# -- new clients --------------------------------------------------------------------------------------------------


def test_new_clients_begin_with_the_content_of_the_run_and_a_fresh_style(folder, tmp_path):
    curves = adapt(folder, "domains:solarize,erase", 2, tmp_path / "new", samples=20)
    assert list(curves) == ["adapted", "from scratch"]
    assert all(list(by) == [1, 2] and set(by[1]) == {"solarize", "erase"} for by in curves.values())
    kept = json.loads((tmp_path / "new" / "adaptation.json").read_text())
    assert kept["curves"]["adapted"]["2"] == curves["adapted"][2]
    assert (tmp_path / "new" / "adaptation.png").exists()
    assert (tmp_path / "new" / "adapted.png").exists()
    before = load_state(folder / "checkpoint.safetensors")["federation"]["server"]
    after, scratch = (
        load_state(tmp_path / "new" / name / "checkpoint.safetensors")["federation"]["server"]
        for name in ("adapted", "from-scratch")
    )
    moved = np.abs(after["generator"] - before["generator"]).max()
    assert 0 < moved <= 2 * 0.011  # two steps of the server's Adam from where the run ended
    assert np.abs(scratch["generator"] - before["generator"]).max() > moved
    assert np.array_equal(after["seed"], before["seed"])
    assert after["rounds"] == 2
    earlier, later = (
        load_state(p / "clients" / f"{c}.safetensors")["state"]
        for p, c in ((folder, "blur"), (tmp_path / "new" / "adapted", "erase"))
    )
    assert later["t"] < 2 * earlier["t"]  # its own steps alone, of a larger share of the pictures
    assert not (tmp_path / "new" / "adapted" / "clients" / "blur.safetensors").exists()


def test_an_adaptation_that_was_stopped_goes_on_and_keeps_its_curve(folder, tmp_path):
    class Stopped(Exception):
        pass

    class Impatient(Callback):
        def on_round_end(self, outcome, row):
            raise Stopped

    to, samples = "domains:solarize,erase", 20
    whole = adapt(folder, to, 3, tmp_path / "whole", scratch=False, samples=samples)
    with pytest.raises(Stopped):
        adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples, watch=Impatient())
    assert list(json.loads((tmp_path / "cut" / "adaptation.json").read_text())["curves"]["adapted"]) == ["1"]
    assert adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples) == whole
    with pytest.raises(VitrailError, match="of another rounds"):
        adapt(folder, to, 4, tmp_path / "cut", scratch=False, samples=samples)
    kept = tmp_path / "cut" / "adaptation.json"
    tree = json.loads(kept.read_text())
    del tree["curves"]["adapted"]["3"]  # killed between the last checkpoint and the look at it
    kept.write_text(json.dumps(tree))
    assert adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples) == whole
    kept.unlink()
    with pytest.raises(VitrailError, match=r"holds runs, but no adaptation\.json"):
        adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples)


def test_settings_that_fit_the_earlier_clients_alone_are_not_carried_over(tmp_path):
    out = tmp_path / "run"
    vitrail.train(
        "padpaf", **SMALL, partition="domains:invert,blur,zoom-out", labels="ignore", clients_per_round=3, quorum=3, out=str(out)
    )  # fmt: skip
    assert list(adapt(out, "domains:solarize", 1, tmp_path / "new", scratch=False, samples=20)["adapted"]) == [1]
    few = adapt(
        out,
        "domains:solarize,erase",
        1,
        tmp_path / "few",
        scratch=False,
        samples=20,
        overrides={"clients_per_round": 1},
    )
    assert len(few["adapted"][1]) == 1
    assert (tmp_path / "few" / "adapted.png").exists(), "who was not asked yet is left out of it"


# -- grids --------------------------------------------------------------------------------------------------------


def test_each_client_has_a_grid_beside_its_private_file(folder, labelled):
    rows = json.loads((folder / "clients" / "grids.json").read_text())
    assert [r["client"] for r in rows] == ["invert", "blur", "zoom-out"]
    assert all((folder / "clients" / r["file"]).stat().st_mode & 0o077 == 0 for r in rows)
    by_label = json.loads((labelled / "clients" / "grids.json").read_text())
    opened = open_run(labelled)
    for k, row in enumerate(by_label):
        seen = opened.views.train.pictures.labels[opened.views.train.client == k]
        assert row["unseen"] == [str(d) for d in range(10) if d not in seen]
        assert len(row["unseen"]) == 5


def test_content_changes_down_and_style_across(folder):
    from vitrail.experiment.personal_grids import COLUMNS, ROWS, content_down_style_across
    from vitrail.utils.rng import Rng

    generator = load_personal(folder, "blur")
    x = content_down_style_across(generator).view(ROWS, COLUMNS, 1, 8, 8)
    z_c = torch.randn(ROWS, 8, generator=Rng((0,)).child("personal grid", "content").torch())
    z_s = torch.randn(COLUMNS, 8, generator=Rng((0,)).child("personal grid", "style").torch())
    with torch.no_grad():
        one = generator.net(torch.cat([z_c[2], z_s[7]])[None])
    assert torch.allclose(x[2, 7], (one[0] + 1) / 2, atol=1e-5)


def test_a_public_report_shows_no_clients_style(folder, tmp_path):
    write_report([folder], tmp_path / "own.html")
    write_report([folder], tmp_path / "public.html", private=False)
    own, public = ((tmp_path / f"{name}.html").read_text() for name in ("own", "public"))
    assert "What each client draws" in own
    assert "zoom-out" in own
    assert "What each client draws" not in public
    assert own.count("data:image/png") == public.count("data:image/png") + 3
