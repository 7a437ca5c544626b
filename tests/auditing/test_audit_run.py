"""`vitrail audit` on real runs: claims and bounds on the terminal, in audit.json and in the report."""

import json
import shutil

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from vitrail import train
from vitrail.auditing.audit_run import audit_run, write
from vitrail.cli.privacy import audit
from vitrail.privacy import feature_sums as moments
from vitrail.report import write_report
from vitrail.report.audit import read_audit
from vitrail.utils.errors import VitrailError

TINY = {"data": "digits", "size": 8, "clients": 3, "workers": 1, "rounds": 2, "grids": 0, "eval_every": 0}


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A run that claims ε = 1."""
    out = tmp_path_factory.mktemp("audit") / "run"
    return train("moments", **TINY, local_steps=1, batch_size=10, width=0.25, epsilon=1.0, out=str(out)).folder


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A run that claims nothing."""
    out = tmp_path_factory.mktemp("audit") / "run"
    return train("fedgan", **TINY, width=4, latent_dim=8, out=str(out)).folder


def run_cli(*words):
    app = typer.Typer()
    app.command()(audit)
    return CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})


def test_a_private_run_is_audited_and_reported(private):
    done = run_cli(private, "--attacks", "canaries,membership", "--canaries", 40, "-n", 200)
    assert done.exit_code == 0, done.output
    assert "Claim, by the ledger: simulated, with noise from the seed: ε = 1 at δ = 1e-05" in done.output
    assert "ε found, at least" in done.output
    assert "No attack found more than was claimed" in done.output
    tree = json.loads((private / "audit.json").read_text())
    assert tree["refuted"] is False
    assert tree["claim"]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert all(0 <= lower["epsilon"] <= lower["claimed"] for f in tree["findings"] for lower in f["lowers"])
    page = (private / "report.html").read_text()
    assert "Lower and upper bounds on ε" in page
    assert "No attack found more than was claimed" in page


def test_a_run_without_its_noise_is_refuted_with_an_exit_code(private, monkeypatch, tmp_path):
    monkeypatch.setattr(moments, "gaussian", lambda source, n, sigma: np.zeros(n))
    out = tmp_path / "found.json"
    done = run_cli(private, "--attacks", "canaries", "--canaries", 60, "-o", out)
    assert done.exit_code == 1
    assert "An attack found more than was claimed" in done.output
    assert "(refuted)" in done.output
    assert json.loads(out.read_text())["refuted"] is True


def test_a_run_without_a_claim_is_attacked_too(public):
    found = audit_run(public, ["canaries", "membership", "copies"], samples=200)
    assert found.skipped == ["canaries"]
    names = [figure.name for finding in found.findings for figure in finding.figures]
    assert any("discriminator" in name for name in names)
    assert not found.refuted
    assert found.verdict == (
        "Nothing was claimed to be private, so nothing is refuted. An attack that fails proves nothing."
    )


def test_a_changed_ledger_is_not_used(private, tmp_path):
    copy = shutil.copytree(private, tmp_path / "copy")
    text = (copy / "ledger.json").read_text()
    assert '"private": true' in text
    (copy / "ledger.json").write_text(text.replace('"private": true', '"private": false', 1))
    found = audit_run(copy, ["membership"], samples=200)
    assert "the ledger was changed" in found.claim["by"]


def test_errors_state_what_to_do(public, tmp_path):
    with pytest.raises(VitrailError, match="did you mean canaries"):
        audit_run(public, ["canary"])
    with pytest.raises(VitrailError, match="is not the folder of a run"):
        audit_run(tmp_path)
    with pytest.raises(VitrailError, match="at least 4 are needed for a comparison"):
        audit_run(public, ["shadows"], shadows=2)


def test_a_damaged_audit_gives_a_note_in_the_report(public):
    assert read_audit(public / "audit.json") == (None, "")
    (public / "audit.json").write_text('{"findings": [{"attack": 3')
    write_report([public], public / "report.html")
    assert "audit.json could not be read" in (public / "report.html").read_text()
    write(public / "audit.json", audit_run(public, ["membership"], samples=200))
    found, problem = read_audit(public / "audit.json")
    assert problem == ""
    assert [f.attack for f in found.findings] == ["membership"]
