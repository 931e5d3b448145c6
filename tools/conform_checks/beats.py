"""Heartbeats: no long silence while the engine makes nothing, in a form that clients bear, and none after the end."""

from __future__ import annotations

from tools.conform_checks.bench import Bench, found
from tools.conform_checks.check import Check, NotSeen
from tools.conform_checks.scenes import stalled_stream
from tools.conform_checks.talk import Talk
from tools.probe.target import APIS, Api

_FORMS = (
    *("comment-beats", "sse: empty data", "sse: bare colon", "sse: comment block after id"),
    "sse: block without data",
)


def _quiet(bench: Bench, api: Api) -> str | None:
    stalled = stalled_stream(bench, api)
    longest_s = stalled.talk.witness.silence.longest_s
    if longest_s <= bench.settings.quiet_s:
        return None
    beats = stalled.talk.telling.heartbeats.count
    return f"{longest_s:.1f} s without a byte while the engine stood still, and {beats} heartbeats in all"


def _beating(bench: Bench, api: Api) -> list[Talk]:
    """The streams with heartbeats. Raises: NotSeen: there are none."""
    talks = [talk for talk in bench.streams(api) if _beats(talk)]
    if not talks:
        talks = [talk for talk in (stalled_stream(bench, api).talk,) if _beats(talk)]
    if not talks:
        raise NotSeen("there were no heartbeats")
    return talks


def _beats(talk: Talk) -> bool:
    return bool(talk.telling.heartbeats.count) or talk.found("beat-after-end", *_FORMS) is not None


def _form(bench: Bench, api: Api) -> str | None:
    return found(_beating(bench, api), *_FORMS)


def _after_end(bench: Bench, api: Api) -> str | None:
    return found(_beating(bench, api), "beat-after-end")


CHECKS = (
    Check(
        "beats",
        "heartbeats",
        "breach",
        "While the engine stands still a stream is never silent for as long as proxies and clients bear (--quiet-s).",
        "ds4 PR #224, ds4 PR #1006; proxies cut at 30 or 60 s",
        APIS,
        _quiet,
    ),
    Check(
        "beat-form",
        "heartbeats",
        "risk",
        "A heartbeat has a form that clients bear: a comment with text, in Responses an event, in Messages a ping.",
        "codex #31539, openai-python #2722, copilot-api PR #88, mistral-vibe PR #794",
        APIS,
        _form,
    ),
    Check(
        "beat-last",
        "heartbeats",
        "risk",
        "No heartbeat comes after the end: it says that the answer goes on.",
        "better-ccflare PR #307",
        APIS,
        _after_end,
    ),
)
