"""Generated pages of the documentation: methods, command line, notebook, and the files that pages name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHIPPED = (
    "examples/*.py",
    "examples/three-hospitals/*",
    "examples/plugin/*.toml",
    "examples/plugin/*/**/*.py",
    "configs/**/*.toml",
    "src/vitrail/methods/**/*.py",
    "src/vitrail/analysis/latents.py",
)
_SOURCE = re.compile(r"\s*\((?:paper: ([^)]*)|(published code: [^)]*|ours))\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files that pages name."""
    pages = {"reference/methods.md": methods_page(), "reference/cli.md": cli_page(), "reference/files.md": files_page()}
    for notebook in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        path = notebook.relative_to(config.docs_dir)
        pages[str(path.with_suffix(".md"))] = notebook_page(notebook)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in shipped():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Link each `examples/...`, `configs/...` and `src/...` to the file, and each folder to the page of files."""
    known, here = shipped(), dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        name = found[1]
        if name not in known and not any(file.startswith(f"{name.rstrip('/')}/") for file in known):
            return found[0]
        return f"[`{name}`]({relpath(name if name in known else 'reference/files.md', here or '.')})"

    return re.sub(r"(?<!\[)`((?:examples|configs|src)/[\w./-]*)`", link, markdown)


def shipped() -> list[str]:
    """Return the files of examples/, configs/ and src/ that the site has, by their paths in the repository."""
    found = {p for pattern in SHIPPED for p in ROOT.glob(pattern) if p.is_file() and p.suffix != ".md"}
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


def files_page() -> str:
    """Return the page of the files of examples/ and configs/, by folder."""
    lines = [
        "# Examples and configurations",
        "",
        "After this page you have the files of the repository that other pages name. Keep their folders.",
    ]
    for folder in dict.fromkeys(dirname(name) for name in shipped() if not name.startswith("src/")):
        names = [name for name in shipped() if dirname(name) == folder]
        lines += ["", f"## {folder}/", "", *(f"- [{name.removeprefix(folder + '/')}](../{name})" for name in names)]
    return "\n".join(lines) + "\n"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown, with a link to the file."""
    title, *cells = json.loads(path.read_text("utf-8"))["cells"]
    parts = ["".join(title["source"]), f"[Download this notebook]({path.name})"]
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def methods_page() -> str:
    """Return the page of methods: for each its summary and its settings."""
    from vitrail.experiment.settings import Settings, settings_model
    from vitrail.methods.registry import METHODS

    lines = [
        "# Methods and their settings",
        "",
        "After this page you can choose a method's settings. Write them as `KEY=VALUE` on the command line, as keyword",
        "arguments of `vitrail.train`, or as lines of a TOML file. This page is generated from the code.",
        "",
        "## Settings of every run",
        "",
        *_table({name: f for name, f in Settings.model_fields.items() if name != "method"}),
    ]
    for name in METHODS:
        fields, common = settings_model(name).model_fields, Settings.model_fields
        shown = {n: f for n, f in fields.items() if n not in common or _default(f) != _default(common[n])}
        shown.pop("method", None)
        lines += ["", f"## {name}", "", _sentence(METHODS.summary(name)), "", *_table(shown)]
    return "\n".join(lines) + "\n"


def _table(fields: dict[str, Any]) -> list[str]:
    rows = ["| setting | default | paper | description |", "|---|---|---|---|"]
    for name, f in fields.items():
        text, default = f.description or "", _default(f)
        source = _SOURCE.search(text)
        cells = (
            f"`{name}`",
            f"`{default}`" if default else "",
            (source[1] or source[2]) if source else "",
            _SOURCE.sub("", text),
        )
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return rows


def _default(field: Any) -> str:
    value = field.get_default()
    return "" if value is None or str(value) == "PydanticUndefined" else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def cli_page() -> str:
    """Return the page of the command line: for each command its help, arguments and options."""
    import typer

    from vitrail.cli.main import GROUPS, app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = ["# Command line", "", "After this page you know every command and option. It is generated from the code."]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in names:
            command = commands[name]
            lines += ["", f"### vitrail {name}", "", re.sub(r"(?m)^ {4}", "", command.help or "").strip(), ""]
            lines += ["| argument or option | default | description |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_cell, _parameter(p)))} |" for p in command.params]
    return "\n".join(lines) + "\n"


def _parameter(p: Any) -> tuple[str, str, str]:
    """Return name, default and help of an argument or option."""
    option = p.param_type_name == "option"
    name = ", ".join(f"`{o}`" for o in p.opts) if option else f"`{p.metavar or p.name.upper()}`"
    has_default = isinstance(p.default, bool | int | float | str) and p.default != ""
    return name, f"`{p.default}`" if has_default else "", p.help or ""
