"""Registries: what happens to plugins (entry points) whose names are already used."""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

GROUP = "vitrail.doctest"  # a registry of this group is not recorded
BUILTIN = {"floor": ("math:floor", "round down"), "ceil": ("math:ceil", "round up")}


def install(folder: Path, package: str, *entries: str) -> None:
    """Write the metadata of an installed package with entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *entries]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_plugin_named_like_a_built_in_makes_this_name_an_error_with_the_remedy(site: Path) -> None:
    install(site, "clashing", "floor = cmath:exp", "exp = cmath:exp")
    registry: Registry[object] = Registry("function", GROUP, BUILTIN)
    with pytest.raises(VitrailError, match=r"'floor' is math:floor, but .* cmath:exp .*; rename .* \(clashing\)"):
        registry["floor"]
    assert "rename the entry point" in registry.summary("floor")


def test_other_names_work_next_to_a_clash(site: Path) -> None:
    install(site, "clashing", "floor = cmath:exp", "exp = cmath:exp")
    registry: Registry[object] = Registry("function", GROUP, BUILTIN)
    import cmath
    import math

    assert list(registry) == ["floor", "ceil", "exp"]
    assert (registry["ceil"], registry["exp"], registry.summary("ceil")) == (math.ceil, cmath.exp, "round up")
    assert registry.name_of(cmath.exp) == "exp"


def test_two_plugins_of_one_name_are_an_error_unless_they_are_the_same_object(site: Path) -> None:
    install(site, "one", "exp = cmath:exp", "sin = cmath:sin")
    install(site, "two", "exp = cmath:exp", "sin = math:sin")
    assert len(metadata.entry_points(group=GROUP)) == 4
    registry: Registry[object] = Registry("function", GROUP, BUILTIN)
    assert registry["exp"].__name__ == "exp"  # type: ignore[attr-defined]
    with pytest.raises(VitrailError, match=r"'sin' is .*:sin, but"):
        registry["sin"]


METHOD = "import dataclasses, vitrail\nfrom {base} import {name} as Base\n"
METHOD += "@vitrail.register_method('{plugin}')\n@dataclasses.dataclass(frozen=True)\nclass {new}(Base): pass\n"


@pytest.mark.parametrize("plugins", ["pa,pb", "pb, pa"])
@pytest.mark.parametrize("first", ["vitrail", "pa", "pb"])
def test_a_plugin_may_import_another_one_in_any_order(plugins: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "pa.py").write_text(METHOD.format(base="vitrail", name="BaseMethod", plugin="pa", new="MA"))
    (tmp_path / "pb.py").write_text(METHOD.format(base="pa", name="MA", plugin="pb", new="MB"))
    env = {**os.environ, "VITRAIL_PLUGINS": plugins}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), env.get("PYTHONPATH"))))
    code = f"import {first}\nfrom vitrail.methods.registry import METHODS\nprint(list(METHODS)[-2:])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "['pa', 'pb']\n", done.stderr


def test_a_module_that_cannot_be_imported_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_PLUGINS", "no_such_plugin")
    registry: Registry[object] = Registry("function", GROUP, BUILTIN)
    for _ in range(2):
        with pytest.raises(VitrailError, match="VITRAIL_PLUGINS: cannot import no_such_plugin"):
            list(registry)


def test_a_class_that_is_also_an_entry_point_is_found_by_any_process(site: Path) -> None:
    install(site, "one", "exp = cmath:exp")
    registry: Registry[object] = Registry("function", GROUP, BUILTIN)
    import cmath

    registry.add("exp", cmath.exp)
    registry.add("sin", cmath.sin)
    assert registry.added("exp") is None
    assert registry.added("sin") is cmath.sin


def test_an_entry_that_a_module_of_vitrail_plugins_adds_is_found_by_any_process(tmp_path: Path) -> None:
    """It may be a function of another package, such as a mechanism of this one under a new name."""
    text = "import vitrail\nfrom vitrail.privacy.clipping import noised\n"
    (tmp_path / "pm.py").write_text(text + "vitrail.register_mechanism('mean-image', 'noised means')(noised)\n")
    env = {**os.environ, "VITRAIL_PLUGINS": "pm"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), env.get("PYTHONPATH"))))
    code = "from vitrail.privacy.mechanism import MECHANISMS as m\nprint('mean-image' in m, m.added('mean-image'))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "True None\n", done.stderr


def test_the_generated_docstring_of_a_dataclass_is_no_summary() -> None:
    @dataclass
    class Plain:
        x: int = 0

    registry: Registry[object] = Registry("class", GROUP)
    registry.add("plain", Plain)
    assert registry.summary("plain") == ""
