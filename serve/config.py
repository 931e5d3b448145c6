"""Options: command line over `--config` (JSON) over defaults. Checks each value; starts nothing."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from engine.api import SamplingValue
from serve.command_line import split_command
from serve.service import Access, Limits

SECONDS_A_DAY = 86_400
ENGINES = ("llama", "strata", "upstream", "fake")


class ConfigError(ValueError):
    """An option is wrong; the message names it."""


def seconds(text: object) -> float:
    value = float(cast("str", text))
    if not 0 <= value < math.inf:
        raise ValueError("not a time in seconds")
    return value


def days(text: object) -> float:
    value = float(cast("str", text))
    if not 0 < value < math.inf:
        raise ValueError("not a time in days")
    return value


def count(text: object) -> int:
    if isinstance(text, bool) or (isinstance(text, float) and not text.is_integer()):
        raise ValueError("not a whole number")
    value = int(cast("str", text))
    if value < 0:
        raise ValueError("negative")
    return value


def positive(text: object) -> int:
    value = count(text)
    if value == 0:
        raise ValueError("must be at least 1")
    return value


def port_number(text: object) -> int:
    value = count(text)
    if value > 65_535:
        raise ValueError("larger than 65535")
    return value


def string(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError("not a string")
    return text


PORT = "{port}"
"""What stands in `upstream-command` for the port that the engine chooses."""


def command(given: object) -> tuple[str, ...]:
    """A program and its arguments: one line of text, or an array of them in the file."""
    if isinstance(given, list):
        words = tuple(string(word) for word in cast("list[object]", given))
    else:
        words = split_command(string(given))
    if not words or not words[0]:
        raise ValueError("no command")
    return words


@dataclass(frozen=True, slots=True)
class Option:
    """One option. Its key in the config file is the name with `_`. `array`: one value may itself be an array of strings
    there; several are an array of arrays."""

    name: str
    parse: Callable[[object], object]
    default: object
    help: str
    repeat: bool = False
    array: bool = False
    choices: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


OPTIONS = (
    Option("engine", string, None, "what runs the model (default: llama)", choices=ENGINES),
    Option("model", string, None, "a GGUF file for --engine llama (default: SmolLM2-135M-Instruct)"),
    Option("parallel", positive, None, "requests at once (default: 1; a pipe engine: its batch slots)"),
    Option("context", positive, 4096, "tokens of context for each request of --engine llama"),
    Option("upstream", string, (), "URL of an OpenAI-compatible server (repeatable); implies the engine", repeat=True),
    Option(
        "upstream-command",
        command,
        (),
        "command that starts an OpenAI-compatible server on port {port}; it is run, watched and restarted",
        repeat=True,
        array=True,
    ),
    Option("upstream-key", string, None, "API key for the upstream"),
    Option(
        "upstream-api",
        string,
        "chat",
        "what Responses are made of: the upstream's chat completions, or its own responses, passed on and checked",
        choices=("chat", "responses"),
    ),
    Option("script", string, None, "script of the fake engine: a JSON file, or the name of one that ships"),
    Option("workers", positive, 1, "processes that share the port and the work of --upstream; not on Windows"),
    Option("host", string, "127.0.0.1", "address to listen on"),
    Option("port", port_number, 8095, "port to listen on; 0: any free one"),
    Option("api-key", string, None, "require this key (also STRATA_API_KEY)"),
    Option("heartbeat-s", seconds, 10.0, "longest silence on a stream"),
    Option("silence-s", seconds, 300.0, "an engine silent for so long has failed"),
    Option("queue-wait-s", seconds, 300.0, "longest wait for a free slot"),
    Option("queue-grace-s", seconds, 1.0, "a waiting stream sends its headers after this"),
    Option("queue-max", count, 64, "requests that may wait"),
    Option("drain-s", seconds, 30.0, "time for running requests at shutdown"),
    Option("max-body-mib", positive, 16, "largest request body in MiB"),
    Option(
        "store", string, None, "file that keeps responses, or none (default: in your data folder; also STRATA_STORE)"
    ),
    Option("store-max-days", days, 30.0, "kept responses are deleted after so many days"),
    Option("store-max-mib", positive, 1024, "the oldest kept responses are deleted above this size"),
    Option("cors-origin", string, (), "web origin that may use the API ('*': any)", repeat=True),
    Option("trusted-origin", string, (), "web origin whose requests are taken without CORS headers", repeat=True),
    Option("log-format", string, "text", "form of the log on stderr", choices=("text", "json")),
)

STRATA_KEYS: Mapping[str, str] = {
    "engine_silence_s": "silence_s",
    "cors_origins": "cors_origin",
    "trusted_origins": "trusted_origin",
}
"""Keys of Strata's run config that have another name here."""

MAX_WORKERS = 64

RUN_KEYS = ("exe", "args", "cwd", "log", "env", "tokenizer", "chat_template", "model_name", "aliases", "sampling")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What Strata's run config says about the engine."""

    exe: str | None = None
    args: tuple[str, ...] = ()
    cwd: str | None = None
    log: str | None = None
    env: Mapping[str, str] | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    model_name: str | None = None
    aliases: tuple[str, ...] = ()
    sampling: Mapping[str, SamplingValue] | None = None


@dataclass(frozen=True, slots=True)
class Config:
    engine: Literal["llama", "strata", "upstream", "fake"]
    model: str | None
    parallel: int | None
    context: int
    upstream: tuple[str, ...]
    upstream_command: tuple[tuple[str, ...], ...]
    upstream_key: str | None
    upstream_api: Literal["chat", "responses"]
    script: str | None
    workers: int
    host: str
    port: int
    silence_s: float
    store: str | None
    store_max_age_s: float
    store_max_bytes: int
    log_format: Literal["text", "json"]
    limits: Limits
    access: Access
    run: RunConfig
    ignored: tuple[str, ...]

    def share(self, number: int, slots: int) -> Config:
        """What worker `number` (from 1) gets: an equal part of the requests at once, `slots` if nobody said how many,
        and of those that may wait."""
        parallel = _part(self.parallel or slots, self.workers, number)
        limits = replace(self.limits, queue_max=_part(self.limits.queue_max, self.workers, number))
        return replace(self, parallel=parallel, limits=limits)


def _part(whole: int, parts: int, number: int) -> int:
    return whole // parts + (number <= whole % parts)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="strata-serve",
        description="OpenAI-compatible server in front of an LLM engine; every answer says truthfully how it ended.",
    )
    made.add_argument("--config", help="JSON file: a Strata run config, or these options with '_' for '-'")
    for option in OPTIONS:
        action = "append" if option.repeat else "store"
        default = "" if option.default in (None, ()) else f" (default: {option.default})"
        made.add_argument(f"--{option.name}", action=action, choices=option.choices, help=option.help + default)
    return made


def load(argv: Sequence[str] | None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read the options. Reads the config file.

    Raises: ConfigError: a value is wrong. SystemExit(2): argparse's own usage errors.
    """
    given = vars(parser().parse_args(argv))
    file = _read_config(given["config"]) if given["config"] else {}
    file = {STRATA_KEYS.get(key, key): value for key, value in file.items()}
    values = {option.key: _value(option, given[option.key], file) for option in OPTIONS}
    if values["api_key"] is None:
        values["api_key"] = environ.get("STRATA_API_KEY")
    if values["store"] is None:
        values["store"] = environ.get("STRATA_STORE")
    if values["store"] is not None and not cast("str", values["store"]).strip():
        raise ConfigError("store: given but empty; name a file, or 'none'")
    if values["api_key"] is not None and not cast("str", values["api_key"]).strip():
        raise ConfigError("api-key: given but empty; set a key or leave it out")
    run = _run_config(file)
    engine = values["engine"] or _implied_engine(values, run)
    _check_engine(cast("str", engine), values, run)
    known = {option.key for option in OPTIONS} | set(RUN_KEYS)
    return Config(
        engine=cast("Literal['llama', 'strata', 'upstream', 'fake']", engine),
        limits=Limits(
            heartbeat_s=cast("float", values["heartbeat_s"]),
            queue_wait_s=cast("float", values["queue_wait_s"]),
            queue_grace_s=cast("float", values["queue_grace_s"]),
            queue_max=cast("int", values["queue_max"]),
            drain_s=cast("float", values["drain_s"]),
            max_body_bytes=cast("int", values["max_body_mib"]) * 2**20,
        ),
        access=Access(
            api_key=cast("str | None", values["api_key"]) or "",
            cors_origins=cast("tuple[str, ...]", values["cors_origin"]),
            trusted_origins=cast("tuple[str, ...]", values["trusted_origin"]),
        ),
        run=run,
        ignored=tuple(sorted(set(file) - known)),
        model=cast("str | None", values["model"]),
        parallel=cast("int | None", values["parallel"]),
        context=cast("int", values["context"]),
        upstream=cast("tuple[str, ...]", values["upstream"]),
        upstream_command=cast("tuple[tuple[str, ...], ...]", values["upstream_command"]),
        upstream_key=cast("str | None", values["upstream_key"]),
        upstream_api=cast("Literal['chat', 'responses']", values["upstream_api"]),
        script=cast("str | None", values["script"]),
        workers=cast("int", values["workers"]),
        host=cast("str", values["host"]),
        port=cast("int", values["port"]),
        silence_s=cast("float", values["silence_s"]),
        store=cast("str | None", values["store"]),
        store_max_age_s=cast("float", values["store_max_days"]) * SECONDS_A_DAY,
        store_max_bytes=cast("int", values["store_max_mib"]) * 2**20,
        log_format=cast("Literal['text', 'json']", values["log_format"]),
    )


def _value(option: Option, given: object, file: Mapping[str, object]) -> object:
    raw = given if given is not None else file.get(option.key)
    if raw is None:
        return option.default
    try:
        if option.repeat:
            one = option.array and given is None and _is_words(raw)
            return tuple(option.parse(item) for item in ([raw] if one else _items(raw)))
        value = option.parse(raw)
    except (TypeError, ValueError) as error:
        why = str(error) if "convert" not in str(error) and "literal" not in str(error) else "not a number"
        raise ConfigError(f"{option.name}: {str(raw)[:80]!r}: {why}") from None
    if option.choices and value not in option.choices:
        raise ConfigError(f"{option.name}: {str(raw)[:80]!r} is not one of {', '.join(option.choices)}")
    return value


def _items(raw: object) -> list[object]:
    return cast("list[object]", raw) if isinstance(raw, list) else [raw]


def _is_words(raw: object) -> bool:
    words = cast("list[object]", raw) if isinstance(raw, list) else []
    return bool(words) and all(isinstance(word, str) for word in words)


def _read_config(path: str) -> dict[str, object]:
    try:
        value: object = json.loads(Path(path).read_text(encoding="utf-8-sig"))  # Notepad adds a BOM
    except OSError as error:
        raise ConfigError(f"config: {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"config: {path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"config: {path} must hold a JSON object")
    return cast("dict[str, object]", value)


def _implied_engine(values: Mapping[str, object], run: RunConfig) -> str:
    if values["upstream"] or values["upstream_command"]:
        return "upstream"
    if values["script"]:
        return "fake"
    return "strata" if run.exe else "llama"


def _check_engine(engine: str, values: Mapping[str, object], run: RunConfig) -> None:
    commands = cast("tuple[tuple[str, ...], ...]", values["upstream_command"])
    if engine == "upstream" and not values["upstream"] and not commands:
        raise ConfigError("upstream: --engine upstream needs --upstream URL or --upstream-command COMMAND")
    if commands:
        _check_commands(engine, commands, cast("tuple[str, ...]", values["upstream"]))
    if engine != "upstream" and values["upstream_api"] != "chat":
        raise ConfigError(
            f"upstream-api: --engine {engine} has no Responses API of its own to pass on; leave it out, or give "
            "--upstream URL"
        )
    if values["workers"] != 1:
        _check_workers(engine, values)
    if engine == "fake" and not values["script"]:
        raise ConfigError("script: --engine fake needs --script FILE; `python -m engine.fake --list` shows what ships")
    if engine == "strata" and not run.exe:
        raise ConfigError("config: --engine strata needs --config FILE with 'exe'")


def _check_workers(engine: str, values: Mapping[str, object]) -> None:
    count, parallel = cast("int", values["workers"]), cast("int | None", values["parallel"])
    if engine != "upstream" or values["upstream_command"]:
        raise ConfigError(f"workers: {count} need an --upstream URL; an engine that we start ourselves has one process")
    if sys.platform == "win32":
        raise ConfigError(f"workers: {count} on Windows, where processes cannot share a port; leave it out")
    if count > MAX_WORKERS:
        raise ConfigError(f"workers: {count} is more than {MAX_WORKERS}")
    if parallel is not None and parallel < count:
        raise ConfigError(f"parallel: {parallel} is less than the {count} workers that share it out")


def _check_commands(engine: str, commands: Sequence[tuple[str, ...]], urls: tuple[str, ...]) -> None:
    """One command, whose server's address is either the port that we choose or the one URL."""
    if engine != "upstream":
        raise ConfigError(f"upstream-command: --engine {engine} runs no command; leave one of the two out")
    if len(commands) > 1:
        raise ConfigError("upstream-command: more than one is not supported by this version; give one")
    if not any(PORT in word for word in commands[0]):
        if len(urls) != 1:
            raise ConfigError(
                f"upstream-command: it has no {PORT}; write {PORT} where the server's port belongs, or give the URL at "
                "which it serves by --upstream"
            )
    elif urls:
        raise ConfigError(
            f"upstream: the command has {PORT}, so its server's address is known; leave --upstream out, or write the "
            f"server's own port instead of {PORT}"
        )


def _run_config(file: Mapping[str, object]) -> RunConfig:
    texts: dict[str, str | None] = {}
    for key in ("exe", "cwd", "log", "tokenizer", "chat_template", "model_name"):
        value = file.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"config: {key}: expected a string")
        texts[key] = value
    env, sampling = file.get("env"), file.get("sampling")
    if env is not None and not isinstance(env, dict):
        raise ConfigError("config: env: expected an object")
    if sampling is not None and not isinstance(sampling, dict):
        raise ConfigError("config: sampling: expected an object")
    return RunConfig(
        **texts,
        args=_strings(file, "args"),
        aliases=_strings(file, "aliases"),
        env=None if env is None else {k: str(v) for k, v in cast("dict[str, object]", env).items()},
        sampling=cast("dict[str, SamplingValue] | None", sampling),
    )


def _strings(file: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = file.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"config: {key}: expected an array")
    return tuple(str(item) for item in cast("list[object]", value))
