"""`python -m serve`: options → engine → service → HTTP, and the orderly end. The only place that picks an engine."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import platformdirs

from engine.api import Engine, EngineDied, EngineStuck
from serve.config import Config, ConfigError, RunConfig, load
from serve.server import Server, listen, serve
from serve.service import Service
from serve.stopping import Stopping
from serve.store import Store, StoreError
from serve.template import ChatTemplate
from serve.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("strata")

EXIT_USAGE = 2
EXIT_ENGINE = 3
MAX_OPEN_FILES = 65_536
SIGNAL_POLL_S = 0.1
END_S = 15.0
"""How long workers have to end after their requests are over, in seconds."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker: dict[str, object] = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            **self._worker,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up_log(form: str, worker: int | None = None) -> None:
    """Log to stderr, each line with the worker's number. Whatever the console's code page is, printing never raises."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a replaced stream need not have it
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    who = "" if worker is None else f" worker {worker}"
    text = logging.Formatter(f"%(asctime)s{who} %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(worker) if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def build_llama(config: Config) -> Engine:
    from engine.llamacpp import LlamaEngine
    from engine.model import ensure_default_model

    path = Path(config.model) if config.model else ensure_default_model()
    if not path.is_file():
        raise ConfigError(f"model: no such file: {path}")
    return LlamaEngine(
        path, parallel=config.parallel or 1, context=config.context, log=config.run.log, silence_s=config.silence_s
    )


def build_managed(config: Config) -> Engine:
    from engine.managed import ManagedUpstream

    run = config.run
    try:
        return ManagedUpstream(
            config.upstream_command[0],
            url=config.upstream[0] if config.upstream else None,
            model=config.model,
            key=config.upstream_key,
            parallel=config.parallel,
            cwd=run.cwd,
            env=run.env,
            log=run.log,
            silence_s=config.silence_s,
        )
    except ValueError as error:
        raise ConfigError(f"upstream: {error}") from None


def build_upstream(config: Config) -> Engine:
    from engine.upstream import SLOTS, UpstreamEngine
    from engine.upstream_pool import UpstreamPool

    if config.upstream_command:
        return build_managed(config)
    several = len(config.upstream) > 1
    members: dict[str, Engine] = {}
    for number, url in enumerate(config.upstream, 1):
        try:
            member = UpstreamEngine(
                url,
                model=config.model,
                key=config.upstream_key,
                slots=config.parallel or SLOTS,
                silence_s=config.silence_s,
                who=f"upstream {number}" if several else None,
            )
        except ValueError as error:
            raise ConfigError(f"upstream: {error}") from None
        if member.url in members:
            raise ConfigError(f"upstream: {member.url} is given twice; a server cannot stand in for itself")
        members[member.url] = member
    return UpstreamPool(members, queue_wait_s=config.limits.queue_wait_s) if several else next(iter(members.values()))


def build_strata(config: Config) -> Engine:
    from engine.pipe import StrataEngine

    run = config.run
    exe = Path(cast("str", run.exe))
    if not exe.is_absolute():  # the config's cwd is what a relative exe means; CreateProcess would not look there
        beside = Path(run.cwd or ".") / exe
        exe = beside.resolve() if beside.exists() or len(exe.parts) > 1 else exe
    return StrataEngine(
        str(exe),
        list(run.args),
        cwd=run.cwd,
        log=run.log,
        env=run.env,
        lazy=True,
        model=run.model_name or "strata",
        parallel=config.parallel,
        silence_s=config.silence_s,
    )


def build_fake(config: Config) -> Engine:
    from engine.fake.harness import FakeEngine, script_path
    from engine.pipe import StrataEngine

    try:
        path = script_path(cast("str", config.script))
    except (OSError, ValueError) as error:
        raise ConfigError(f"script: {error}") from None
    folder = Path(tempfile.mkdtemp(prefix="strata-fake-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fake = FakeEngine(path, folder)
    return StrataEngine(
        fake.exe,
        fake.args,
        lazy=True,
        kind="fake",
        model="fake",
        parallel=config.parallel,
        silence_s=config.silence_s,
    )


BUILDERS = {"llama": build_llama, "upstream": build_upstream, "strata": build_strata, "fake": build_fake}


def prompt_side(run: RunConfig, engine: Engine) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Tokenizer and template of an engine that speaks tokens."""
    if engine.facts.speaks == "chat":
        return None, None
    spec = run.tokenizer or "bytes"
    own = Path(spec) / "chat_template.jinja"  # exported beside the tokenizer
    default = own if own.is_file() else Path(__file__).with_name("chat_template.jinja")
    try:
        return load_tokenizer(spec), ChatTemplate(run.chat_template or default)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: {error}") from None


def open_store(config: Config) -> Store | None:
    """The store that the options name; None where nothing is to be kept."""
    if config.store == "none":
        return None
    default = Path(platformdirs.user_data_dir("strata-serve", appauthor=False)) / "responses.db"
    try:
        return Store(
            Path(config.store) if config.store else default,
            max_age_s=config.store_max_age_s,
            max_bytes=config.store_max_bytes,
        )
    except StoreError as error:
        raise ConfigError(f"store: {error}; name another file with --store FILE, or --store none") from None


def build(config: Config) -> Service:
    """The service with an engine that is not started yet.

    Raises: ConfigError; RuntimeError: the default model cannot be had.
    """
    engine = BUILDERS[config.engine](config)
    tokenizer, template = prompt_side(config.run, engine)
    return Service(
        engine,
        tokenizer,
        template,
        config.run.model_name,
        aliases=config.run.aliases,
        sampling=config.run.sampling,
        limits=config.limits,
        access=config.access,
        store=open_store(config),
        relays_responses=config.upstream_api == "responses",
    )


def build_or_say(config: Config) -> Service | int:
    """The service, or the exit code where it cannot be made and stderr says why."""
    try:
        return build(config)
    except ConfigError as error:
        print(f"strata-serve: {error}", file=sys.stderr)  # noqa: T201 - one clear message
        return EXIT_USAGE
    except (EngineDied, RuntimeError, ImportError) as error:
        print(f"strata-serve: {error}", file=sys.stderr)  # noqa: T201 - one clear message
        return EXIT_ENGINE


def ready_line(svc: Service, http: Server) -> str:
    host, port = cast("tuple[str, int]", http.server_address[:2])
    facts = svc.engine.facts
    context = f", context {facts.max_context} tokens" if facts.max_context else ""
    return f"ready: http://{host}:{port}/v1  (model {svc.model}, engine {facts.kind}, {facts.slots} at once{context})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or Ctrl-C. Returns the exit code: 0, 2 (usage) or 3 (the engine)."""
    try:
        config = load(argv)
    except ConfigError as error:
        print(f"strata-serve: {error}", file=sys.stderr)  # noqa: T201 - before the log's form is known
        return EXIT_USAGE
    set_up_log(config.log_format)
    for key in config.ignored:
        log.info("config: %s has no meaning here", key)
    allow_open_files()
    if config.workers > 1:
        return serve_in_workers(config)
    svc = build_or_say(config)
    if isinstance(svc, int):
        return svc
    try:
        http = serve(svc, config.host, config.port)
    except OSError as error:
        return no_port(config, error)
    return run(svc, http, say_ready)


def say_ready(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the one line on stdout


def no_port(config: Config, error: OSError) -> int:
    print(f"strata-serve: port: cannot listen on {config.host}:{config.port}: {error.strerror}", file=sys.stderr)  # noqa: T201 - one clear message
    return EXIT_USAGE


def serve_in_workers(config: Config) -> int:
    """Several processes on one port, until SIGTERM or Ctrl-C. Returns the exit code."""
    from engine.upstream import SLOTS
    from serve.workers import Workers

    try:
        listener = listen(config.host, config.port)
    except OSError as error:
        return no_port(config, error)

    def work(number: int, ready: Callable[[str], None]) -> int:
        set_up_log(config.log_format, number)
        svc = build_or_say(config.share(number, SLOTS))
        if isinstance(svc, int):
            return svc
        svc.worker = number
        return run(svc, serve(svc, listener=listener), ready)

    with listener:
        workers = Workers(config.workers, work)
        return workers.run(lambda line: say_ready(f"{line}, {config.workers} workers"), config.limits.drain_s + END_S)


def allow_open_files() -> None:
    """Raise the soft limit for open files, 1024 as a rule: a stream that passes takes two. Windows has none."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class EngineStart:
    """Starts the engine on a thread of its own, so that a signal is heard while a large model loads."""

    def __init__(self, engine: Engine) -> None:
        self.error: EngineDied | None = None
        self.done = threading.Event()
        self._engine = engine
        threading.Thread(target=self._run, name="engine-start", daemon=True).start()

    def _run(self) -> None:
        try:
            self._engine.start()
        except EngineDied as error:
            self.error = error
        finally:
            self.done.set()


def run(svc: Service, http: Server, ready: Callable[[str], None]) -> int:
    """Start the engine, say `ready`, wait for the signal to stop, end everything."""
    stop = Stopping()
    try:
        code = serve_until(svc, http, stop, ready)
    finally:
        http.shutdown()
        http.server_close()
        stuck = close_engine(svc.engine)
    return code or stuck


def serve_until(svc: Service, http: Server, stop: Stopping, ready: Callable[[str], None]) -> int:
    """Blocks until `stop` is given or the engine could not be started. Returns the exit code."""
    start = EngineStart(svc.engine)
    while not start.done.wait(SIGNAL_POLL_S):  # Windows delivers no Ctrl-C into an untimed wait
        if stop.given:
            return 0
    if start.error is not None:
        if svc.engine.status().state not in ("unreachable", "ready"):  # a process of ours
            print(f"strata-serve: the engine did not start: {start.error}", file=sys.stderr)  # noqa: T201 - one clear message
            return EXIT_ENGINE
        log.warning("the upstream is not reachable yet: %s", start.error)
    # What is loaded by now stays: a full collection, for which all streams wait, need not walk through it each time.
    gc.collect()
    gc.freeze()
    ready(ready_line(svc, http))
    while not stop.wait(SIGNAL_POLL_S):
        pass
    log.info("shutting down; running requests have %g s", svc.limits.drain_s)
    svc.shutdown()
    return 0


def close_engine(engine: Engine) -> int:
    try:
        engine.close()
    except EngineStuck as error:
        log.error("%s", error)
        return EXIT_ENGINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
