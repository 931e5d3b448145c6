"""Batch files in a Windows of every pair of code pages: `tests.windows.cases` judges, here its word is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.windows.rig import LOCALES, ROOT, WINDOWS, lend_python, run_python, shown

pytestmark = [pytest.mark.wine, pytest.mark.timeout(600)]

PAGES = {
    "ko_KR": "949 949", "ja_JP": "932 932", "zh_CN": "936 936", "de_DE": "1252 850", "en_US": "1252 437",
    "ru_RU": "1251 866", "tr_TR": "1254 857",
}  # fmt: skip


@pytest.mark.parametrize("locale", LOCALES)
def test_every_case_of_a_batch_file_is_as_it_should_be(locale: str, tmp_path: Path) -> None:
    for link in (tmp_path / "한글😀(x86) & ^ !" / "py", tmp_path / "py!x!"):
        lend_python(link)
    done = run_python(locale, ["-m", "tests.windows.cases", shown(tmp_path)], [ROOT], timeout_s=500)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    failed = [line for line in lines if not line.startswith("ok ")]
    assert failed[1:] == [f"{len(lines) - 2} passed, 0 failed"], "\n".join(lines)
    assert len(lines) > 15
    assert done.returncode == 0
    if not WINDOWS:
        assert failed[0] == f"code pages: {PAGES[locale]} under Wine"
