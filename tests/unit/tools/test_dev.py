"""tools/dev.py on a project of its own, with real environments, a real pip and no network."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.unit.tools.mini_project import DEADLINE_S, DEV, MiniProject, build_gate, make_project
from tools import dev

posix = pytest.mark.skipif(os.name == "nt", reason="signals and exec are POSIX's")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> MiniProject:
    """A project that is set up."""
    project = make_project(tmp_path_factory.mktemp("ready"))
    project.offer_all()
    done = project.run("setup")
    assert done.returncode == 0, done.stderr
    return project


def read_until(stream: IO[str] | None, word: str) -> str:
    """Read lines until one has the word; the test's own time limit is the deadline."""
    assert stream is not None
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if word in line:
            return line
    pytest.fail(f"{word!r} never came: {lines}")


# --- what a run does ---------------------------------------------------------------------------------


def test_second_run_installs_nothing_and_needs_no_index(ready: MiniProject) -> None:
    before = ready.stamp.read_bytes()
    done = ready.run("serve", PIP_FIND_LINKS=str(ready.root / "nowhere"))
    assert done.returncode == 7
    assert done.stderr == ""
    assert ready.stamp.read_bytes() == before


def test_serve_keeps_the_users_folder_options_and_exit_code(ready: MiniProject, tmp_path: Path) -> None:
    (tmp_path / "serve").mkdir()  # another project's folder of the same name
    (tmp_path / "serve" / "__main__.py").write_text("raise SystemExit('wrong package')", encoding="utf-8")
    done = ready.run("serve", "--port", "0", "--model=a b.gguf", cwd=tmp_path)
    assert done.returncode == 7
    assert done.stdout.endswith(f"cwd {tmp_path} llama True ['--port', '0', '--model=a b.gguf']\n")


def test_test_runs_pytest_at_the_root_with_its_options(ready: MiniProject, tmp_path: Path) -> None:
    done = ready.run("test", "-k", "a b", "--server-command", "python -m serve", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stdout == f"pytest {ready.root} ['-k', 'a b', '--server-command', 'python -m serve']\n"


@pytest.mark.parametrize("words", [["--server-root", "a tree"], ["--server-root=a tree"]])
def test_test_of_another_tree_names_it_whole_and_needs_no_model(
    ready: MiniProject, tmp_path: Path, words: list[str]
) -> None:
    done = ready.run("test", "-x", *words, "-q", cwd=tmp_path, MINI_NO_MODEL="1")
    options = ["-x", "-q", "--server-root", str(tmp_path / "a tree"), dev.PROMISES]
    assert done.stdout == f"pytest {ready.root} {options}\n"


def test_missing_model_ends_the_run_before_the_server(ready: MiniProject) -> None:
    for command in ("serve", "test", "setup"):
        done = ready.run(command, MINI_NO_MODEL="1")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: no model\n")


def test_serve_of_another_engine_needs_no_model(ready: MiniProject) -> None:
    done = ready.run("serve", "--engine", "fake", MINI_NO_MODEL="1")
    assert done.returncode == 7


@posix
def test_a_signal_reaches_the_server_itself(ready: MiniProject) -> None:
    with ready.running("serve", "--wait") as process:
        line = read_until(process.stdout, "pid")
        assert line.split()[1] == str(process.pid)
        process.send_signal(signal.SIGTERM)
        assert read_until(process.stdout, "told") == "told to end\n"
        assert process.wait(DEADLINE_S) == 9


def test_unknown_command_is_a_usage_error(ready: MiniProject) -> None:
    for arguments in ((), ("start",)):
        done = ready.run(*arguments)
        assert done.returncode == 2
        assert "tools/dev.py serve" in done.stderr
    assert ready.run("--help").returncode == 0
    surplus = ready.run("setup", "--fast")
    assert (surplus.returncode, surplus.stderr) == (1, "error: setup takes no options: '--fast'\n")


# --- what goes wrong ---------------------------------------------------------------------------------


def test_offline_with_a_package_missing_says_which_and_the_next_run_completes(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    done = project.run("serve")
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith(
        "error: the packages could not be installed: ERROR: No matching distribution found for mini-lla"
    )
    assert "Traceback" not in done.stderr
    assert not project.stamp.exists()
    without = project.run("serve", "--engine", "fake")  # the fake engine does not need what is missing
    assert without.returncode == 7
    assert "llama False" in without.stdout
    project.offer_all()
    assert project.run("serve").returncode == 7
    assert json.loads(project.stamp.read_text(encoding="utf-8"))["extras"] == ["llama"]


@posix
def test_interrupted_setup_says_so_and_leaves_no_stamp(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.offer_all()
    with build_gate() as gate, project.running("serve", MINI_PORT=gate.port) as process:
        with gate.wait_for_build():
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert errors.endswith("stopped; a set-up that was running is completed by the next run\n")
        assert "Traceback" not in errors
    assert not project.stamp.exists()


@posix
def test_killed_setup_is_completed_once_by_two_runs_that_wait_for_its_orphan(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.offer_all()
    with build_gate() as gate:
        with project.running("serve", MINI_PORT=gate.port) as killed:
            orphan = gate.wait_for_build()
            killed.kill()
            killed.wait(DEADLINE_S)
        with project.running("serve") as first, project.running("serve") as second:
            for process in (first, second):
                read_until(process.stderr, "waiting for it")
            orphan.close()
            said = [process.communicate(timeout=DEADLINE_S) for process in (first, second)]
            assert [process.returncode for process in (first, second)] == [7, 7]
    assert sum("installing" in errors for _, errors in said) == 1


def test_unfinished_environment_is_made_anew(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.offer_all()
    stray = project.root / ".venv" / "half-a-package"
    stray.touch()
    (project.root / ".venv" / "strata-setup-unfinished").touch()
    done = project.run("serve")
    assert done.returncode == 7
    assert "creating .venv" in done.stderr
    assert not stray.exists()
    assert project.stamp.exists()


def test_python_without_ensurepip_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] - a stub
    with pytest.raises(
        dev.SetupError, match=rf"lacks the standard module ensurepip; .*python3\.{sys.version_info[1]}-venv"
    ):
        dev.ensure_environment(tmp_path, frozenset())


def test_folder_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv.lock").mkdir()
    with pytest.raises(dev.SetupError, match=r"\.venv could not be made"):
        dev.ensure_environment(tmp_path, frozenset())


def test_damaged_pyproject_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project", encoding="utf-8")
    with pytest.raises(dev.SetupError, match=r"pyproject\.toml cannot be read"):
        dev.ensure_environment(tmp_path, frozenset())


def test_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ast.parse(DEV.read_text(encoding="utf-8"), feature_version=(3, 7))  # it gets as far as its own check
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(DEV))
    assert re.match(r"strata-serve needs Python 3\.11 or newer; this is \S+ \(.+\)", str(caught.value))


# --- decisions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "llama", "model"),
    [
        ([], True, True),
        (["--port", "0"], True, True),
        (["--help"], True, False),
        (["--engine", "llama"], True, True),
        (["--model", "x.gguf"], True, False),
        (["--model=x.gguf"], True, False),
        (["--engine=fake"], False, False),
        (["--engine", "strata", "--config", "missing.json"], False, False),
        (["--upstream", "http://127.0.0.1:1"], False, False),
        (["--script=x.json"], False, False),
        (["--config", "missing.json"], True, True),
    ],
)
def test_what_the_options_need(options: list[str], llama: bool, model: bool) -> None:
    assert dev.needs_llama(options) is llama
    assert dev.needs_default_model(options) is model


@pytest.mark.parametrize(
    ("config", "llama", "model"),
    [
        ({"engine": "llama"}, True, True),
        ({"engine": "llama", "model": "x.gguf"}, True, False),
        ({"engine": "fake"}, False, False),
        ({"upstream": ["http://127.0.0.1:1"]}, False, False),
        ({"exe": "strata", "args": []}, False, False),
        ([], True, True),
    ],
)
def test_what_a_config_needs(config: object, llama: bool, model: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert dev.needs_llama(["--config", str(path)]) is llama
    assert dev.needs_default_model([f"--config={path}"]) is model


def test_stamp_counts_what_an_install_depends_on(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"

    def stamp(text: str, *extras: str) -> dev.Stamp:
        pyproject.write_text(text, encoding="utf-8")
        return dev.wanted_stamp(tmp_path, frozenset(extras))

    made = stamp('[project]\nname = "a"\n', "llama", "test")
    assert made.serves(stamp('[project]\nname = "a"\n', "llama"))
    assert made.serves(stamp('[project]\nname = "a"\n[tool.ruff]\nline-length = 9\n'))
    assert not made.serves(stamp('[project]\nname = "b"\n'))
    assert not made.serves(stamp('[project]\nname = "a"\n', "other"))
    assert not made.serves(stamp('[project]\nname = "a"\n[build-system]\nrequires = ["x"]\n'))
    moved = dev.Stamp(made.project, made.python, "elsewhere", made.extras)
    assert not moved.serves(made)
    assert made.joined(moved) == made
    assert stamp('[project]\nname = "b"\n').joined(made).extras == {"llama", "test"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"project": "a", "python": "b", "root": "c", "extras": 1}'])
def test_damaged_stamp_is_none(tmp_path: Path, text: str) -> None:
    python = dev.venv_python(tmp_path)
    python.parent.mkdir()
    python.touch()
    stamp = dev.Stamp("a", "b", "c", frozenset({"x"}))
    dev.write_stamp(tmp_path, stamp)
    assert dev.read_stamp(tmp_path) == stamp
    (tmp_path / "strata-setup.json").write_text(text, encoding="utf-8")
    assert dev.read_stamp(tmp_path) is None


def test_stamp_without_its_python_is_none(tmp_path: Path) -> None:
    dev.write_stamp(tmp_path, dev.Stamp("a", "b", "c", frozenset()))
    assert dev.read_stamp(tmp_path) is None


def test_cause_is_pips_last_error_and_the_network_where_it_is_to_blame() -> None:
    retry = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(x)': /simple/a/\n"
    error = "      ERROR: No matching distribution found for a==1\n"
    assert dev.pip_cause([retry, error, "note: not a problem of pip\n"]) == (
        "ERROR: No matching distribution found for a==1 (network: 'NewConnectionError(x)': /simple/a/)"
    )
    assert dev.pip_cause(["Killed\n", "\n"]) == "Killed"
    assert dev.pip_cause([]) == "no message"
