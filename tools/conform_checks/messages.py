"""Grammar of Anthropic's Messages streams: the start, blocks one after another, the closing."""

from __future__ import annotations

from tools.conform_checks.bench import Bench, found, over
from tools.conform_checks.chats import missing
from tools.conform_checks.check import Check
from tools.conform_checks.talk import Talk
from tools.probe.target import Api
from tools.probe.values import as_int, as_object, as_text, at, shown

ONLY = ("messages",)
_DELTAS = {"text": ("text_delta", "citations_delta"), "tool_use": ("input_json_delta",)}
_THINKING = ("thinking_delta", "signature_delta")


def _start(bench: Bench, api: Api) -> str | None:
    return found(bench.streams(api), "two-starts", "stop-without-start") or over(bench.streams(api), _starts)


def _starts(talk: Talk) -> str | None:
    first = next((each for each in talk.events if each.kind != "ping"), None)
    if first is None or first.kind != "message_start":
        return f"it begins with {shown(first.kind if first else None)}, not message_start"
    message = as_object(first.value.get("message"))
    if (text := missing("messages", message)) is not None:
        return f"message_start {text}"
    if message["content"] != [] or message["stop_reason"] is not None:
        return f"message_start has content {shown(message['content'])}, stop_reason {shown(message['stop_reason'])}"
    usage = as_object(message["usage"])
    if as_int(usage.get("input_tokens")) is None or as_int(usage.get("output_tokens")) is None:
        return f"message_start has the usage {shown(usage)}, without both counts"
    return None


def _blocks(bench: Bench, api: Api) -> str | None:
    talks = bench.streams(api)
    return found(talks, "blocks-overlap", "delta-outside", "open-block") or over(talks, _in_order)


def _in_order(talk: Talk) -> str | None:
    kinds: list[str] = []
    for each in talk.events:
        index = as_int(each.value.get("index"))
        if each.kind == "content_block_start":
            if index != len(kinds):
                return f"block {len(kinds)} starts with the index {shown(index)}"
            kinds.append(as_text(at(each.value, "content_block", "type")) or "")
        elif each.kind == "content_block_delta" and index is not None and index < len(kinds):
            delta, block = as_text(at(each.value, "delta", "type")) or "", kinds[index]
            if delta not in _DELTAS.get(block, _THINKING):
                return f"a {delta} in a {block} block"
    return None


def _closing(bench: Bench, api: Api) -> str | None:
    return over(bench.streams(api), _closes, _unfailed)


def _unfailed(talk: Talk) -> bool:
    return talk.telling.error is None


def _closes(talk: Talk) -> str | None:
    kinds = [each.kind for each in talk.events if each.kind != "ping"]
    if kinds[-2:] != ["message_delta", "message_stop"]:
        return f"it ends with {', '.join(kinds[-2:]) or 'nothing'}, not message_delta and message_stop"
    deltas = [each.value for each in talk.events if each.kind == "message_delta"]
    reasons = [at(delta, "delta", "stop_reason") for delta in deltas]
    if len([reason for reason in reasons if reason is not None]) != 1:
        return f"stop_reason is told {len(reasons)} times: {shown(reasons)}"
    if "stop_sequence" not in as_object(deltas[-1].get("delta")):
        return f"message_delta has no stop_sequence: {shown(deltas[-1])}"
    if as_int(at(deltas[-1], "usage", "output_tokens")) is None:
        return f"message_delta has no usage.output_tokens: {shown(deltas[-1])}"
    started, stopped = kinds.count("content_block_start"), kinds.count("content_block_stop")
    if started != stopped:
        return f"{started} blocks started, {stopped} stopped"
    return None


CHECKS = (
    Check(
        "message-start",
        "grammar",
        "breach",
        "A stream begins with message_start: all fields, no content yet, no stop_reason, both counts.",
        "Anthropic API reference, streaming; vLLM #45367, ogx #5521; measured: Claude Code retries for ever",
        ONLY,
        _start,
    ),
    Check(
        "blocks-in-order",
        "grammar",
        "breach",
        "Blocks come one after another, numbered from 0, each with deltas of its own kind, and each is stopped.",
        "Anthropic API reference, streaming",
        ONLY,
        _blocks,
    ),
    Check(
        "message-closing",
        "grammar",
        "breach",
        "One message_delta with stop_reason, stop_sequence and output_tokens closes the message, then message_stop.",
        "Anthropic API reference, streaming; plano #898",
        ONLY,
        _closing,
    ),
)
