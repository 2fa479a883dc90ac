"""What a user installs: a namespace that nobody owns, imports that stay light, a wheel with everything."""

import os
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PORTIONS = ("model", "runtime", "checker")

# What no process may load that only serves: the checker and what it brings.
CHECKER = {"click", "kvsan.checker", "msgspec", "networkx", "rich", "z3"}


def stray_inits(root: Path) -> list[Path]:
    return sorted(root.glob("*/kvsan/__init__.py"))


def files_under(folder: Path, root: Path) -> set[str]:
    """Files by their path from `root`, without what tools leave behind."""
    return {
        path.relative_to(root).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after `statement`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / portion) for portion in PORTIONS)}
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


# --- the namespace ---


def test_no_portion_owns_the_namespace() -> None:
    # With one, the wheel still works and an editable install loses the other two portions.
    assert stray_inits(ROOT) == []


def test_a_portion_that_owns_the_namespace_is_found(tmp_path: Path) -> None:
    stray = tmp_path / "model" / "kvsan" / "__init__.py"
    stray.parent.mkdir(parents=True)
    stray.touch()
    assert stray_inits(tmp_path) == [stray]


def test_portions_import_side_by_side() -> None:
    names = {f"kvsan.{portion}" for portion in PORTIONS}
    assert names <= loaded_by("import kvsan.model, kvsan.runtime, kvsan.checker")


# --- what an import loads ---


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("kvsan.model.ops", CHECKER | {"kvsan.runtime", "numpy", "torch"}),
        ("kvsan.model.order", CHECKER | {"kvsan.runtime", "numpy", "torch"}),
        ("kvsan.model.hazard", CHECKER | {"kvsan.runtime", "numpy", "torch"}),
        ("kvsan.runtime", CHECKER | {"torch"}),
        # these run inside an engine, from a base install
        ("kvsan.checker.clocks", CHECKER - {"kvsan.checker"} | {"torch"}),
        ("kvsan.checker.online", CHECKER - {"kvsan.checker"} | {"torch"}),
        ("kvsan.checker.verdict", CHECKER - {"kvsan.checker"} | {"torch"}),
    ],
)
def test_import_stays_light(module: str, forbidden: set[str]) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert loaded & forbidden == set()


def test_a_heavy_import_is_seen() -> None:
    assert {"networkx", "z3"} <= loaded_by("import kvsan.runtime, networkx, z3") & CHECKER


# --- what is built ---


@dataclass(frozen=True)
class Built:
    """The names in a sdist, and the names and texts in the wheel that was built from that sdist."""

    sdist: set[str]
    wheel: set[str]
    entry_points: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    # From the sdist, as a packager does it: a file that the sdist lacks is missing from such a wheel, and one
    # straight from the working tree would hide that. No network is needed: hatchling is in the test extra.
    out = tmp_path_factory.mktemp("dist")
    run = [sys.executable, "-m"]
    subprocess.run([*run, "hatchling", "build", "-t", "sdist", "-d", str(out)], cwd=ROOT, check=True)
    (sdist,) = out.glob("kvsan-*.tar.gz")
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*run, "pip", "wheel", *offline, "-w", str(out), str(sdist)], cwd=out, check=True)
    (wheel,) = out.glob("kvsan-*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        (entry_points,) = (name for name in in_wheel if name.endswith(".dist-info/entry_points.txt"))
        return Built(in_sdist, in_wheel, archive.read(entry_points).decode())


def test_sdist_holds_what_the_tests_need(built: Built) -> None:
    needed = {"LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", "scripts/bootstrap"}
    for folder in (*PORTIONS, "tests"):
        needed |= files_under(ROOT / folder, ROOT)
    assert needed - built.sdist == set()


def test_wheel_is_one_namespace(built: Built) -> None:
    tops = {name.partition("/")[0] for name in built.wheel}
    (dist_info,) = tops - {"kvsan"}
    assert dist_info.endswith(".dist-info")
    assert "kvsan/__init__.py" not in built.wheel


def test_wheel_holds_every_file_of_every_portion(built: Built) -> None:
    # Data too: py.typed, JSON schemas, traces.
    expected = {name for portion in PORTIONS for name in files_under(ROOT / portion, ROOT / portion)}
    assert {f"kvsan/{portion}/py.typed" for portion in PORTIONS} <= expected
    assert {name for name in built.wheel if name.startswith("kvsan/")} == expected


def test_wheel_has_the_command(built: Built) -> None:
    parser = ConfigParser()
    parser.read_string(built.entry_points)
    assert dict(parser["console_scripts"]) == {"kvsan": "kvsan.checker.__main__:main"}


def test_wheel_has_the_pytest_plugin(built: Built) -> None:
    parser = ConfigParser()
    parser.read_string(built.entry_points)
    assert dict(parser["pytest11"]) == {"kvsan": "kvsan.checker.testing.plugin"}
    assert "kvsan/checker/testing/plugin.py" in built.wheel
