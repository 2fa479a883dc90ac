"""What a user installs: a namespace that nobody owns, imports that stay light, a wheel with everything."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest

import native
from sample_extension import needs_compiler, put_samples, why_not

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
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and path.suffix != ".so"  # an extension that was built in place
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
        ("kvsan.runtime.native", CHECKER | {"kvsan.model", "numpy", "torch"}),
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
    """The names in a sdist, and the names and texts in a wheel that was built from it."""

    sdist: set[str]
    wheel_name: str
    wheel: set[str]
    entry_points: str


def read_wheel(wheel: Path) -> tuple[set[str], str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        return names, archive.read(entry_points).decode()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)], cwd=ROOT, check=True)
    (sdist,) = out.glob("kvsan-*.tar.gz")
    return sdist


@pytest.fixture(scope="module", params=["", "0"], ids=["native if it can be", "pure"])
def built(sdist: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    # From the sdist, as a packager does it: a file that the sdist lacks is missing from such a wheel, and one
    # straight from the working tree would hide that. No network is needed: hatchling is in the test extra.
    out = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "wheel", *offline, "-w", str(out), str(sdist)]
    subprocess.run(pip, cwd=out, env=os.environ | {"KVSAN_BUILD_NATIVE": request.param}, check=True)
    (wheel,) = out.glob("kvsan-*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    return Built(in_sdist, wheel.name, *read_wheel(wheel))


def extensions_in(wheel: set[str]) -> set[str]:
    return {name for name in wheel if name.endswith(".so")}


def all_extensions(names: Iterable[str] = native.EXTENSIONS) -> set[str]:
    """Their paths in a wheel."""
    return {native.built_path(name, Path()).as_posix() for name in names}


def test_sdist_holds_what_the_tests_need(built: Built) -> None:
    needed = {"LICENSE", "Makefile", "README.md", "constraints.txt", "hatch_build.py", "pyproject.toml"}
    for folder in (*PORTIONS, "tests"):  # the C sources are in the portions
        needed |= files_under(ROOT / folder, ROOT)
    needed |= {"scripts/bootstrap", "scripts/native.py"}
    assert needed - built.sdist == set()
    assert extensions_in(built.sdist) == set()


def test_wheel_is_one_namespace(built: Built) -> None:
    tops = {name.partition("/")[0] for name in built.wheel}
    (dist_info,) = tops - {"kvsan"}
    assert dist_info.endswith(".dist-info")
    assert "kvsan/__init__.py" not in built.wheel


def test_wheel_holds_every_file_of_every_portion(built: Built) -> None:
    # Data too: py.typed, JSON schemas, traces.
    expected = {name for portion in PORTIONS for name in files_under(ROOT / portion / "kvsan", ROOT / portion)}
    assert {f"kvsan/{portion}/py.typed" for portion in PORTIONS} <= expected
    assert {name for name in built.wheel if name.startswith("kvsan/")} - extensions_in(built.wheel) == expected


def test_wheel_holds_the_extensions_or_is_pure(built: Built, request: pytest.FixtureRequest) -> None:
    wanted = request.node.callspec.params["built"] != "0" and not why_not()
    assert extensions_in(built.wheel) == (all_extensions(native.sources()) if wanted else set())
    assert built.wheel_name.endswith("-py3-none-any.whl") == (not extensions_in(built.wheel))


def test_wheel_has_the_command(built: Built) -> None:
    parser = ConfigParser()
    parser.read_string(built.entry_points)
    assert dict(parser["console_scripts"]) == {"kvsan": "kvsan.checker.__main__:main"}


def test_wheel_has_the_pytest_plugin(built: Built) -> None:
    parser = ConfigParser()
    parser.read_string(built.entry_points)
    assert dict(parser["pytest11"]) == {"kvsan": "kvsan.checker.testing.plugin"}
    assert "kvsan/checker/testing/plugin.py" in built.wheel


# --- the extensions, with C sources of the test's own ---

PLATFORM = f"-cp{sys.version_info.major}{sys.version_info.minor}-"


@pytest.fixture
def tree(sdist: Path, tmp_path: Path) -> Path:
    """What a sdist unpacks to, with a sample in the place of each extension's source."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # not in 3.11.2
        archive.extractall(tmp_path)
    root = tmp_path / sdist.name.removesuffix(".tar.gz")
    put_samples(root)
    return root


def build_wheel(tree: Path, kind: str = "wheel", **env: str) -> tuple[Path, str]:
    """The wheel that a frontend gets, and what it was told on stderr; `kind` is `wheel` or `editable`."""
    code = f"from hatchling import build; print(build.build_{kind}({str(tree.parent)!r}))"
    env = os.environ | {"KVSAN_BUILD_NATIVE": ""} | env
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return tree.parent / done.stdout.split()[-1], done.stderr


@needs_compiler
def test_a_wheel_with_extensions_is_for_its_platform(tree: Path) -> None:
    wheel, said = build_wheel(tree)
    assert said == ""
    assert PLATFORM in wheel.name
    assert extensions_in(read_wheel(wheel)[0]) == all_extensions()
    assert list(tree.rglob("*.so")) == []  # nothing is left in the sources


def test_a_wheel_without_a_compiler_is_pure(tree: Path) -> None:
    wheel, said = build_wheel(tree, CC="/nonexistent")
    (line,) = said.splitlines()
    assert line.startswith("kvsan: no C extensions, it works without them: ")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(read_wheel(wheel)[0]) == set()


def test_a_wheel_that_is_asked_to_be_pure(tree: Path) -> None:
    wheel, said = build_wheel(tree, KVSAN_BUILD_NATIVE="0", CC="/nonexistent")
    assert said == ""
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(read_wheel(wheel)[0]) == set()


def test_a_wheel_that_has_to_have_extensions(tree: Path) -> None:
    with pytest.raises(RuntimeError, match="KVSAN_BUILD_NATIVE=1 and no C extensions: "):
        build_wheel(tree, KVSAN_BUILD_NATIVE="1", CC="/nonexistent")
    with pytest.raises(RuntimeError, match=r"KVSAN_BUILD_NATIVE='yes'; accepted: 0 .*, 1 .*, unset"):
        build_wheel(tree, KVSAN_BUILD_NATIVE="yes")


@needs_compiler
def test_an_editable_install_has_its_extensions_in_place(tree: Path) -> None:
    wheel, said = build_wheel(tree, "editable", KVSAN_BUILD_NATIVE="1")
    assert said == ""
    assert extensions_in(read_wheel(wheel)[0]) == set()
    built = {native.built_path(name, native.portion(source)) for name, source in native.sources(tree).items()}
    assert set(tree.rglob("*.so")) == built
    # A wheel built there takes none of these, but compiles its own or none.
    pure, _ = build_wheel(tree, CC="/nonexistent")
    assert extensions_in(read_wheel(pure)[0]) == set()


def test_an_editable_install_without_a_compiler(tree: Path) -> None:
    _, said = build_wheel(tree, "editable", CC="/nonexistent")
    assert len(said.splitlines()) == 1
    assert list(tree.rglob("*.so")) == []
