"""`serve.test_fatal_recovery` itself in a Windows Python, from a folder named in Korean."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.windows.rig import LOCALES, ROOT, WINDOWS, lend_python, run_python, shown

pytestmark = [pytest.mark.wine, pytest.mark.timeout(600)]

TESTS = len(re.findall(r"^    def test_", (ROOT / "serve/test_fatal_recovery.py").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("locale", LOCALES if WINDOWS else ("ko_KR", "de_DE"))
def test_fatal_recovery_passes_from_a_folder_named_in_korean(locale: str, tmp_path: Path) -> None:
    project = tmp_path / "프로젝트 (x86) & it's 100% ^ !"
    for package in ("engine", "serve"):
        shutil.copytree(ROOT / package, project / package, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "임시 폴더").mkdir()
    lend_python(project / "파이썬")
    temporary = shown(project / "임시 폴더")
    done = run_python(
        locale, ["-m", "unittest", "serve.test_fatal_recovery", "-v"], [project], timeout_s=500, cwd=project,
        python=project / "파이썬/python.exe", TEMP=temporary, TMP=temporary,
    )  # fmt: skip
    said = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, said
    assert re.search(rf"^Ran {TESTS} tests in .*\n\nOK$", said.replace("\r", ""), re.M), said
    assert "skipped" not in said
