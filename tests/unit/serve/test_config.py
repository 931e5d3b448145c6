"""Options: the command line over the file over the defaults; a wrong value is named."""

import json
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


def test_the_key_comes_from_the_environment_unless_given() -> None:
    assert load([], {"STRATA_API_KEY": "env"}).access.api_key == "env"
    assert load(["--api-key", "own"], {"STRATA_API_KEY": "env"}).access.api_key == "own"


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
    ],
)
def test_a_wrong_config_file_is_named(tmp_path: Path, value: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load(["--config", config_file(tmp_path, value)], {})


def test_a_usage_error_exits_2() -> None:
    with pytest.raises(SystemExit) as caught:
        load(["--no-such-option"], {})
    assert caught.value.code == 2
