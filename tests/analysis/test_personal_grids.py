"""Grids of clients' generators, written at the end of a run and shown in its report."""

import json

import torch

from vitrail.analysis.trained import load_run
from vitrail.experiment.personal import COLUMNS, ROWS, content_down_style_across, load_personal
from vitrail.report import write_report
from vitrail.utils.rng import Rng


def test_each_client_has_a_grid_next_to_its_private_file(folder, labelled):
    rows = json.loads((folder / "clients" / "grids.json").read_text())
    assert [r["client"] for r in rows] == ["invert", "blur", "zoom-out"]
    assert all((folder / "clients" / r["file"]).stat().st_mode & 0o077 == 0 for r in rows)
    by_label = json.loads((labelled / "clients" / "grids.json").read_text())
    run = load_run(labelled)
    for k, row in enumerate(by_label):
        seen = run.views.train.images.labels[run.views.train.client == k]
        assert row["unseen"] == [str(d) for d in range(10) if d not in seen]
        assert len(row["unseen"]) == 5


def test_content_varies_by_row_and_style_by_column(folder):
    generator = load_personal(folder, "blur")
    x = content_down_style_across(generator).view(ROWS, COLUMNS, 1, 8, 8)
    z_c = torch.randn(ROWS, 8, generator=Rng((0,)).child("personal grid", "content").torch())
    z_s = torch.randn(COLUMNS, 8, generator=Rng((0,)).child("personal grid", "style").torch())
    with torch.no_grad():
        one = generator.net(torch.cat([z_c[2], z_s[7]])[None])
    assert torch.allclose(x[2, 7], (one[0] + 1) / 2, atol=1e-5)


def test_a_public_report_shows_no_personal_grid(folder, tmp_path):
    write_report([folder], tmp_path / "own.html")
    write_report([folder], tmp_path / "public.html", private=False)
    own, public = ((tmp_path / f"{name}.html").read_text() for name in ("own", "public"))
    assert "Generated images of each client" in own
    assert "zoom-out" in own
    assert "Generated images of each client" not in public
    assert own.count("data:image/png") == public.count("data:image/png") + 3
