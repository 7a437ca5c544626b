"""Fixtures for the tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.data.official import FILES, Remote


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of assets and an empty home folder; all official addresses are unreachable."""
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path / "home"))
    unreachable = {
        source: {name: Remote((f"http://127.0.0.1:9/{name}",), remote.md5) for name, remote in files.items()}
        for source, files in FILES.items()
    }
    monkeypatch.setattr("vitrail.data.lookup.FILES", unreachable)
    return tmp_path / "assets"
