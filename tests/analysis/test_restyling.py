"""Re-styling from the command line, and its anonymity."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vitrail.analysis.latents import learn_maps
from vitrail.analysis.restyling import measure_anonymity, restyle_view
from vitrail.analysis.trained import load_run
from vitrail.cli.main import app


@pytest.fixture(scope="module")
def maps(run):
    return learn_maps(run.trained, steps=60)


def command(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_anonymity_excludes_the_reference_client_and_tests_label_and_client(run, maps, monkeypatch):
    monkeypatch.setattr("vitrail.metrics.oracle.LEAST_STEPS", 30)
    monkeypatch.setattr("vitrail.metrics.oracle.EPOCHS", 0)
    before, after = measure_anonymity(run, maps, "blur")
    others = int((run.views.test.client != 1).sum())
    assert [m.n_real for m in (*before.measures, *after.measures)] == [others] * 8
    assert [m.name.split(",")[0] for m in after.measures] == ["label", "label", "client", "client"]
    assert "random guess: 50.0%" in after.measures[-1].note
    styled = restyle_view(maps, run.views.test, "blur")
    assert styled.pixels.shape == run.views.test.images.pixels.shape
    assert not np.array_equal(styled.pixels, run.views.test.images.pixels)


def test_restyle_writes_images_above_and_restyled_ones_below(folder, tmp_path):
    Image.fromarray(np.full((20, 20), 200, np.uint8)).save(tmp_path / "a.png")
    out = tmp_path / "out.png"
    done = command("restyle", folder, tmp_path / "a.png", "--to", "blur", "--steps", 3, "-o", out)
    assert done.exit_code == 0, done.output
    with Image.open(out) as image:
        assert image.size == (8 * (8 + 4), 8 * (2 * (8 + 2) + 2))
        assert image.getpixel((40, 40)) == 200
    assert command("restyle", folder, "--to", "blurr").exception
    assert command("restyle", folder, "--measure").exception


def test_restyling_image_files_of_a_labelled_run_needs_a_label(labelled, tmp_path):
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(tmp_path / "a.png")
    assert "give the label of the images" in str(
        command("restyle", labelled, tmp_path / "a.png", "--steps", 2).exception
    )
    done = command("restyle", labelled, tmp_path / "a.png", "--label", "3", "--steps", 2, "-o", tmp_path / "o.png")
    assert done.exit_code == 0, done.output
    assert load_run(labelled).trained.classes == 10
