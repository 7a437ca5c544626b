"""The notebook of the documentation runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "first-run.ipynb"

pytestmark = pytest.mark.docs


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    assert "each client sent" in printed
    assert "not private" in printed
    assert "ε = 8" in printed
    assert any("image/png" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(c.get("outputs") or c.get("execution_count") for c in notebook.cells)
