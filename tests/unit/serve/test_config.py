"""Options: the command line over the file over the defaults; a wrong value is named."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from serve.config import OPTIONS, ConfigError, load


def config_file(folder: Path, value: Any) -> str:
    path = folder / "config.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8-sig")
    return str(path)


def test_defaults() -> None:
    config = load([], {})
    assert (config.engine, config.host, config.port) == ("llama", "127.0.0.1", 8095)
    assert (config.limits.heartbeat_s, config.limits.queue_max, config.silence_s) == (10.0, 64, 300.0)
    assert config.access.api_key == ""


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, {"port": 1, "heartbeat_s": 0.5, "cors_origins": ["http://a"], "engine_silence_s": 7})
    config = load(["--config", path, "--port", "2"], {})
    assert (config.port, config.limits.heartbeat_s, config.silence_s) == (2, 0.5, 7.0)
    assert config.access.cors_origins == ("http://a",)


def test_every_option_is_a_key_of_the_file(tmp_path: Path) -> None:
    values: dict[str, Any] = {option.key: option.default for option in OPTIONS if option.default is not None}
    config = load(["--config", config_file(tmp_path, values)], {})
    assert config.ignored == ()
    assert config == load([], {})


def test_a_strata_run_config_is_read_and_unknown_keys_are_named(tmp_path: Path) -> None:
    run = {"exe": "strata", "args": ["--model", "m"], "env": {"A": "1"}, "sampling": {"top_p": 0.9}, "vision": {}}
    config = load(["--config", config_file(tmp_path, run)], {})
    assert config.engine == "strata"
    assert (config.run.exe, config.run.args, config.run.env) == ("strata", ("--model", "m"), {"A": "1"})
    assert config.run.sampling == {"top_p": 0.9}
    assert config.ignored == ("vision",)


@pytest.mark.parametrize(
    ("argv", "engine"),
    [(["--upstream", "http://x"], "upstream"), (["--script", "ok"], "fake"), (["--model", "m.gguf"], "llama")],
)
def test_the_engine_is_implied(argv: list[str], engine: str) -> None:
    assert load(argv, {}).engine == engine


def test_an_upstream_may_be_given_more_than_once(tmp_path: Path) -> None:
    both = ("http://a", "http://b")
    assert load(["--upstream", both[0], "--upstream", both[1]], {}).upstream == both
    assert load(["--config", config_file(tmp_path, {"upstream": list(both)})], {}).upstream == both


COMMAND = ("server", "-m", "my model", "--port", "{port}")


@pytest.mark.parametrize("value", ['server -m "my model" --port {port}', list(COMMAND), [list(COMMAND)]])
def test_a_command_is_a_line_or_words_and_implies_the_engine(tmp_path: Path, value: Any) -> None:
    config = load(["--config", config_file(tmp_path, {"upstream_command": value})], {})
    assert (config.engine, config.upstream_command, config.ignored) == ("upstream", (COMMAND,), ())
    if isinstance(value, str):
        assert load(["--upstream-command", value], {}).upstream_command == (COMMAND,)


def test_a_command_without_port_goes_with_its_url() -> None:
    config = load(["--upstream-command", "server", "--upstream", "http://127.0.0.1:1"], {})
    assert (config.upstream_command, config.upstream) == ((("server",),), ("http://127.0.0.1:1",))


def test_an_upstreams_own_api_may_be_named() -> None:
    assert load(["--upstream", "http://a"], {}).upstream_api == "chat"
    for given in (["--upstream", "http://a"], ["--upstream-command", "server {port}"]):
        assert load([*given, "--upstream-api", "responses"], {}).upstream_api == "responses"


def test_the_key_comes_from_the_environment_unless_given() -> None:
    assert load([], {"STRATA_API_KEY": "env"}).access.api_key == "env"
    assert load(["--api-key", "own"], {"STRATA_API_KEY": "env"}).access.api_key == "own"


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="no workers there")


@POSIX
@pytest.mark.parametrize(("options", "slots"), [((), 1024), (("--parallel", "8"), 8)])
def test_workers_share_out_what_runs_and_waits(options: tuple[str, ...], slots: int) -> None:
    config = load(["--upstream", "http://a", "--workers", "3", "--queue-max", "4", *options], {})
    shares = [config.share(number, 1024) for number in (1, 2, 3)]
    assert sum(share.parallel or 0 for share in shares) == slots
    assert max(share.parallel or 0 for share in shares) - min(share.parallel or 0 for share in shares) <= 1
    assert [share.limits.queue_max for share in shares] == [2, 1, 1]


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--port", "x"], "port"),
        (["--port", "65536"], "port"),
        (["--parallel", "0"], "parallel"),
        (["--heartbeat-s", "-1"], "heartbeat-s"),
        (["--silence-s", "nan"], "silence-s"),
        (["--queue-max", "1.5"], "queue-max"),
        (["--api-key", " "], "api-key"),
        (["--engine", "fake"], "script"),
        (["--engine", "upstream"], "upstream"),
        (["--engine", "strata"], "exe"),
        (["--upstream-command", "server"], r"upstream-command: it has no \{port\}.* --upstream"),
        (["--upstream-command", "a", "--upstream", "http://a", "--upstream", "http://b"], "upstream-command"),
        (["--upstream-command", "a {port}", "--upstream", "http://a"], r"upstream: the command has \{port\}"),
        (["--upstream-command", "a {port}", "--upstream-command", "b {port}"], "upstream-command: more than one"),
        (["--upstream-command", "a {port}", "--engine", "llama"], "upstream-command: --engine llama"),
        (["--upstream-command", " "], "upstream-command: .*no command"),
        (["--upstream-api", "responses"], "upstream-api: --engine llama has no"),
        (["--upstream-api", "responses", "--engine", "fake", "--script", "x"], "upstream-api: --engine fake"),
        (["--workers", "0"], "workers"),
        (["--workers", "2"], "workers: 2 need an --upstream URL"),
        (["--workers", "2", "--engine", "fake", "--script", "x"], "workers: 2 need an --upstream URL"),
        (["--workers", "2", "--upstream-command", "a {port}"], "workers: 2 need an --upstream URL"),
        pytest.param(["--workers", "65", "--upstream", "http://a"], "workers: 65 is more than 64", marks=POSIX),
        pytest.param(
            ["--workers", "3", "--upstream", "http://a", "--parallel", "2"],
            "parallel: 2 is less than the 3",
            marks=POSIX,
        ),
        (["--config", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_a_wrong_option_is_named(argv: list[str], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load(argv, {})


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("{", "JSON"),
        ([], "object"),
        ({"engine": "gpu"}, "engine"),
        ({"port": "x"}, "port"),
        ({"port": True}, "port"),
        ({"exe": 5}, "exe"),
        ({"args": "x"}, "args"),
        ({"env": []}, "env"),
        ({"log_format": "xml"}, "log-format"),
        ({"upstream": "http://a", "upstream_api": "messages"}, "upstream-api: 'messages' is not one of chat"),
        ({"upstream_command": 5}, "upstream-command"),
        ({"upstream_command": ["server", 8000]}, "upstream-command"),
        ({"upstream_command": [["server", 8000]]}, "upstream-command"),
    ],
)
def test_a_wrong_config_file_is_named(tmp_path: Path, value: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load(["--config", config_file(tmp_path, value)], {})


def test_a_usage_error_exits_2() -> None:
    with pytest.raises(SystemExit) as caught:
        load(["--no-such-option"], {})
    assert caught.value.code == 2
