"""A saved raw stream, as `curl -N -i` writes it -> the head and the body that a witness is told.

It reads HTTP/1.1 with and without its chunked framing (`curl --raw` leaves it in), HTTP/2 as curl prints it, bodies
without a head, several heads (a proxy's, 100 Continue), files that PowerShell wrote, and curl's progress meter and last
word where stderr was saved, too. Times are not in such a file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tools.probe.answer import AnswerReader, Closing, Head, Piece
from tools.probe.exits import CouldNotRun
from tools.probe.live import NO_STREAM
from tools.probe.target import Api
from tools.probe.values import shown
from tools.probe.witness import Witness

_HEAD_START = re.compile(rb"HTTP/\d(?:\.\d)? \d{3}")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_CURL_SAYS = re.compile(rb"curl: \((\d+)\) ([^\r\n]*)\s*\Z")
_METER_HEAD = re.compile(rb"\r? +% Total +% Received [^\r\n]*\r?\n +Dload [^\r\n]*\r?\n")
_NUMBER = rb" *[\d.]+[kMGTP]?"
_METER = re.compile(rb"\r(?:%b){8}(?: +(?:--:--:--|[\d:]+|\d+d \d+h)){3} [ \d.kMGTP]{5}(?:\r?\n)?" % _NUMBER)
"""One line of it. The body goes on right after one, so that its width counts."""
_EVENTS = re.compile(rb"\s*(?:data|event|id|retry)?:")
_CURL_ENDS: Mapping[int, Closing] = {18: "unfinished", 28: "left", 52: "fin", 55: "reset", 56: "reset", 92: "reset"}
"""By curl's exit code. Source: curl's manual, "EXIT CODES"."""
_GZIP = b"\x1f\x8b"
_MARKS: tuple[tuple[Api, re.Pattern[bytes]], ...] = (
    ("responses", re.compile(rb'"type":\s*"response\.')),
    ("messages", re.compile(rb'"type":\s*"(?:message_start|content_block_|message_stop)|^event: ping', re.MULTILINE)),
    ("completions", re.compile(rb'"object":\s*"text_completion"')),
    ("chat", re.compile(rb'"object":\s*"chat\.completion|"delta":')),
)


@dataclass(frozen=True, slots=True)
class Recording:
    """`head` is None where the file has none. `framed`: the body still has HTTP/1.1's framing."""

    head_bytes: bytes
    body: bytes
    framed: bool
    closing: Closing
    closing_note: str
    notes: tuple[str, ...]


def read_recording(data: bytes) -> Recording:
    """Raises: CouldNotRun: there is nothing in it."""
    notes: list[str] = []
    data = _as_bytes(data, notes)
    data, closing, closing_note = _without_curls_words(data)
    head, body = _split_heads(data)
    if head and b"\r" not in head:
        notes.append("the line ends of the head are not HTTP's: something has changed the file")
        head = head.replace(b"\n", b"\r\n")
    if not head and not body.strip():
        raise CouldNotRun("the recording is empty; save a stream with: curl -N -i -o FILE URL …")
    chunked = b"chunked" in head.lower().replace(b" ", b"") or not head
    framed = chunked and _is_framed(body)
    lengths = re.findall(rb"(?im)^content-length: *(\d+)", head)
    if lengths and not chunked:
        framed = True
    return Recording(head, body, framed, closing, closing_note, tuple(notes))


def _as_bytes(data: bytes, notes: list[str]) -> bytes:
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            notes.append("the file is UTF-16, as PowerShell writes: line ends and bytes are no longer the server's")
            return data[len(mark) :].decode(name, "replace").replace("\r\n", "\n").encode()
    if data.startswith(codecs.BOM_UTF8) and _HEAD_START.match(data[len(codecs.BOM_UTF8) :]):
        return data[len(codecs.BOM_UTF8) :]
    return data


def _without_curls_words(data: bytes) -> tuple[bytes, Closing, str]:
    """The bytes without what curl wrote to stderr, and how it says that the connection ended."""
    end = data[-2_000:]
    found = _CURL_SAYS.search(end)
    closing: Closing = "recording"
    note = ""
    if found is not None:
        data = data[: len(data) - len(end) + found.start()]
        note = f"curl: ({int(found[1])}) {found[2].decode(errors='replace').strip()}"
        closing = _CURL_ENDS.get(int(found[1]), "reset")
    if (head := _METER_HEAD.search(data[:2_000])) is not None:
        data = _METER.sub(b"", data[: head.start()] + data[head.end() :])
        if found is None:
            closing, note = "fin", "curl saw nothing wrong"
    return data, closing, note


def _split_heads(data: bytes) -> tuple[bytes, bytes]:
    """The last head, and what is after it. A proxy's head, 100 Continue and redirects stand before it."""
    head = b""
    while _HEAD_START.match(data):
        found = _HEAD_END.search(data)
        if found is None:
            return data + b"\r\n\r\n", b""
        head, data = data[: found.end()], data[found.end() :]
    return head, data


def _is_framed(body: bytes) -> bool:
    """Whether it is chunked: its first chunk is as long as it says."""
    found = _CHUNK.match(body)
    if found is None:
        return False
    end = found.end() + int(found[1], 16)
    after = body[end : end + 2]
    return len(body) < end or after.startswith(b"\n") or b"\r\n".startswith(after)


def guess_api(recording: Recording) -> Api:
    """By what stands in it; chat where nothing does."""
    for api, mark in _MARKS:
        if mark.search(recording.body):
            return api
    return "chat"


def replay(recording: Recording, witness: Witness) -> AnswerReader:
    """Tell the witness the recording, and close it. Returns how the body ended.

    Raises: CouldNotRun: its head is none, or that of a refusal.
    """
    reader = AnswerReader()
    body = recording.body
    if recording.head_bytes:
        reader.feed(recording.head_bytes, 0.0)
        if reader.head is None:
            raise CouldNotRun(f"the recording's head is no head: {shown(recording.head_bytes)}")
        head = reader.head
        if head.status != 200:
            raise CouldNotRun(f"the recording is a refusal: status {head.status}, {shown(body)}")
        kind = (head.get("content-type") or "").partition(";")[0].strip().lower()
        if kind in NO_STREAM:
            raise CouldNotRun(f'the recording is {kind}, and no stream: ask with "stream": true')
        witness.begin(_decoded_by_curl(head, body, witness))
    for note in recording.notes:
        witness.telling.findings.add("recording", "note", note)
    if recording.framed and reader.head is None:
        reader.feed(b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", 0.0)
    if not recording.framed:
        reader.unframe()
        plain = body and not body.startswith(_GZIP)
        if recording.closing == "recording" and plain and not re.search(rb"(\n\n|\r\r|\r\n\r\n)\Z", body):
            body += b"\n\n"  # an editor may have taken it away
            text = "the recording does not end in a blank line; it is read as if it did"
            witness.telling.findings.add("recording-trimmed", "note", text)
    for piece in reader.feed(body, 0.0):
        witness.feed(Piece(0.0, piece.data))
    reader.closed(recording.closing, 0.0, recording.closing_note)
    witness.close(reader)
    return reader


def _decoded_by_curl(head: Head, body: bytes, witness: Witness) -> Head:
    """`curl --compressed` leaves the head as it was and the body decoded."""
    coding = (head.get("content-encoding") or "identity").strip().lower()
    if coding == "identity" or not _EVENTS.match(body):
        return head
    text = f"content-encoding {coding}: compressors hold events back (curl has undone it here)"
    witness.telling.findings.add("compressed", "risk", text)
    return replace(head, fields=tuple(field for field in head.fields if field[0].lower() != "content-encoding"))
