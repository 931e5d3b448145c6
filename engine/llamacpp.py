"""The `llama` engine: a llama.cpp server as our own supervised child, driven by the upstream client.

It says how llama.cpp is run. Lives and failures are `engine.chat_child`'s, and llama.cpp's parameters are
`engine.llama_child`'s.

Source: llama.cpp build 11549 in xllamacpp 2026.10.11549, with SmolLM2-135M-Instruct, seen on 2026-11-30:
- 200 and the head come when the request has a slot and its prompt is being read; with all slots busy nothing comes.
- A prompt over the slot's context: 400, type `exceed_context_size_error`. An answer that fills the context: `length`.
- `stop` strings end with `stop`, without saying which; `logprobs` come in `choices[0].logprobs`, one entry a token.
- `response_format` json_schema is kept by a grammar; a schema that it cannot read is 400 `invalid_request_error`.
- `tools`: SmolLM2's template has none, so they are dropped without a word and the answer is text, `tool_choice:
  "required"` too. Streamed tool calls of llama.cpp itself were not seen with this model.
- Images without a projector: 500 `server_error`. A wrong or missing key: 401.
- A closed connection frees the slot within some 30 ms.
"""

from __future__ import annotations

import re
import secrets
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from engine.api import EngineInfo
from engine.chat_child import CONNECT_S, ChatChild, ServedLife
from engine.llama_child import KEY_VARIABLE
from engine.supervisor import ChildSpec
from engine.upstream import UpstreamEngine

NAME = "llama.cpp"

_LISTENING = re.compile(rb"LISTENING (http://127\.0\.0\.1:\d+) context=(\d+)")


def default_threads() -> int:
    """One for each core, but one core is left for the rest: llama.cpp's threads wait for each other, so one that has to
    share its core slows all of them down.

    Measured on two cores that other programs kept busy (2026-11-30, SmolLM2): 2 tokens/s with two threads, 22 with one.
    """
    usable = len(psutil.Process().cpu_affinity() or ()) if hasattr(psutil.Process, "cpu_affinity") else 0
    usable = usable or psutil.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable - 1))


class LlamaEngine(ChatChild):
    """A llama.cpp server with `parallel` slots of `context` tokens each, for the GGUF file at `model_path`.

    `log`: a file that llama.cpp's log is appended to. `silence_s`: seconds without data after which the child is
    ended. `start_timeout_s`: seconds that loading may take (None: any time). `threads`: for computing on the CPU (None:
    `default_threads`). Thread-safe; the constructor starts nothing.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        parallel: int = 1,
        context: int = 4096,
        log: str | None = None,
        silence_s: float = 300.0,
        start_timeout_s: float | None = None,
        model_name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._model_path = Path(model_path).resolve()
        self._context = context
        self._log = log
        self._threads = threads or default_threads()
        name = model_name or self._model_path.stem
        super().__init__(
            EngineInfo("llama", name, "chat", parallel, context),
            silence_s=silence_s,
            start_timeout_s=start_timeout_s,
            goodbye=b"QUIT\n",
        )

    @property
    def facts(self) -> EngineInfo:
        """`max_context` is a slot's, as llama.cpp told it once it ran (it rounds up)."""
        return self._facts

    def _spec(self, life: ServedLife) -> ChildSpec:
        life.key = secrets.token_urlsafe(32)
        child = Path(__file__).with_name("llama_child.py")
        options = {
            "--model": str(self._model_path),
            "--alias": self._facts.model,
            "--parallel": str(self._facts.slots),
            "--context": str(self._context),
            "--threads": str(self._threads),
        }
        arguments = [f"{name}={value}" for name, value in options.items()]
        argv = (sys.executable, "-P", "-u", "-X", "utf8", str(child), *arguments)
        return ChildSpec(argv, env={KEY_VARIABLE: life.key}, log_path=self._log, name=NAME)

    def _on_line(self, number: int, line: bytes) -> bool:
        found = _LISTENING.fullmatch(line)
        if found is None:
            return False
        life = self._lives[number]
        life.upstream = UpstreamEngine(
            found[1].decode(),
            model=self._facts.model,
            key=life.key,
            slots=self._facts.slots,
            kind="llama",
            connect_s=CONNECT_S,
            silence_s=self._silence_s,
            who=NAME,
        )
        self._facts = replace(self._facts, max_context=int(found[2]) or self._facts.max_context)
        return True
