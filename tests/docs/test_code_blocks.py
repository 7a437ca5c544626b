"""The code of the documentation runs: ```python and ```sh blocks in order, one page in one folder.

```console blocks show commands that take long or need other machines: they are only checked for names that exist.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

from vitrail.cli.main import app
from vitrail.data import load
from vitrail.experiment import settings as config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
RUNNABLE = [p for p in PAGES if any(m[2] in ("python", "sh") for m in FENCE.finditer(p.read_text("utf-8")))]

pytestmark = pytest.mark.docs


def blocks(page, *languages):
    for found in FENCE.finditer(page.read_text("utf-8")):
        if found[2] in languages:
            lines = found[3].split("\n")
            yield found[2], "\n".join(line[len(found[1]) :] for line in lines)


@pytest.fixture(scope="session")
def folder_of_images(tmp_path_factory):
    """Folders as the pages assume them: images/LABEL/*.png and hospitals/NAME/LABEL/*.png."""
    root, digits = tmp_path_factory.mktemp("pages"), load("digits", size=8).train
    for i in range(360):
        label = str(digits.labels[i])
        for place in (root / "images" / label, root / "hospitals" / ("north", "south", "west")[i % 3] / label):
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.pixels[i, 0]).save(place / f"{i}.png")
    return root


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, folder_of_images):
    for name in ("images", "hospitals"):
        (tmp_path / name).symlink_to(folder_of_images / name)
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:.",
    }
    python = []
    for language, text in [*blocks(page, "python", "sh"), ("end", "")]:
        if language == "python":
            python.append(text)
            continue
        if python:  # consecutive blocks of Python share one process
            (tmp_path / "page.py").write_text("\n".join(python))
            done = subprocess.run(
                [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, f"{chr(10).join(python)}\n{done.stdout}\n{done.stderr}"
            python = []
        if language == "sh":
            done = subprocess.run(
                ["bash", "-ec", text], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def commands(page):
    for _, text in blocks(page, "sh", "console"):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0] == "vitrail":
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_settings_of_a_page_exist(page):
    known = typer.main.get_command(app).commands
    for words in commands(page):
        assert words[0] in known, words
        if words[0] == "supernode":
            continue
        command = known[words[0]]
        context = command.make_context(words[0], list(words[1:]), resilient_parsing=False)
        overrides = dict(map(config.parse_override, context.params.get("overrides") or []))
        if words[0] in ("run", "privacy") and not re.search(r"[/.]", context.params["what"]):
            config.resolve(context.params["what"], {**overrides, "data": "digits"})
