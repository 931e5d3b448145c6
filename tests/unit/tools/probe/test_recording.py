"""tools/probe/recording.py: saved streams in all the ways in which people save them, curl's own among them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.scripted_upstream import DONE, LAST_CHUNK, Peer, ScriptedUpstream, chunk, sse_head, stream
from tests.unit.tools.probe import streams
from tools.probe.answer import AnswerReader, BodyEnd
from tools.probe.exits import CouldNotRun
from tools.probe.recording import guess_api, read_recording, replay
from tools.probe.witness import Verdict, Witness

BODY = streams.SAID + streams.chunk("stop") + DONE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LF_HEAD = HEAD.replace(b"\r\n", b"\n")
HEAD_2 = b"HTTP/2 200 \r\ncontent-type: text/event-stream\r\nserver: cloudflare\r\n\r\n"
METER_HEAD = (
    b"  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current\n"
    b"                                 Dload  Upload   Total   Spent    Left  Speed\n"
)
METER = b"\r  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0"
LAST_METER = b"\r100 1585k    0  583k 100     2   1921      6 --:--:--  0:01:10 --:--:--  193k\n"
FRAMED = b"".join(chunk(event + b"\n\n") for event in BODY.split(b"\n\n")[:-1])


def read(data: bytes) -> tuple[Witness, AnswerReader]:
    recording = read_recording(data)
    witness = Witness(guess_api(recording), timed=False)
    return witness, replay(recording, witness)


WHOLE: dict[str, tuple[bytes, BodyEnd]] = {
    "curl -i": (HEAD + BODY, BodyEnd.RECORDING),
    "curl -i --raw": (HEAD + FRAMED + LAST_CHUNK, BodyEnd.TERMINATOR),
    "curl -i of HTTP/2": (HEAD_2 + BODY, BodyEnd.RECORDING),
    "curl without -i": (BODY, BodyEnd.RECORDING),
    "curl --raw without -i": (FRAMED + LAST_CHUNK, BodyEnd.TERMINATOR),
    "100 Continue before": (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + BODY, BodyEnd.RECORDING),
    "a proxy before": (b"HTTP/1.1 200 Connection established\r\n\r\n" + HEAD_2 + BODY, BodyEnd.RECORDING),
    "a redirect before": (b"HTTP/1.1 307 Temporary\r\nLocation: /x\r\n\r\n" + HEAD + BODY, BodyEnd.RECORDING),
    "close delimits": (HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"") + BODY, BodyEnd.RECORDING),
    "a length": (HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(BODY)) + BODY, BodyEnd.LENGTH),
    "LF alone": (LF_HEAD + BODY, BodyEnd.RECORDING),
    "powershell": (
        b"\xff\xfe" + (LF_HEAD + BODY).decode().replace("\n", "\r\n").encode("utf-16-le"),
        BodyEnd.RECORDING,
    ),
    "gzip": (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + gzip.compress(BODY), BodyEnd.RECORDING),
    "curl --compressed": (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + BODY, BodyEnd.RECORDING),
    "curl --compressed of brotli": (
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n") + BODY,
        BodyEnd.RECORDING,
    ),
    "deflate": (
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: deflate\r\n\r\n") + zlib.compress(BODY),
        BodyEnd.RECORDING,
    ),
    "curl's meter before and after": (METER_HEAD + METER + HEAD + BODY + LAST_METER, BodyEnd.CLOSE),
    "curl's meter within": (
        METER_HEAD + METER * 3 + HEAD + BODY[:100] + METER * 2 + BODY[100:] + LAST_METER,
        BodyEnd.CLOSE,
    ),
    "curl's meter, HTTP/2": (METER_HEAD + METER + HEAD_2 + METER + BODY + LAST_METER, BodyEnd.CLOSE),
    "last line without an end": (HEAD + BODY.rstrip(b"\n"), BodyEnd.RECORDING),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_saved_stream_is_read_as_it_was(case: str) -> None:
    data, end = WHOLE[case]
    witness, reader = read(data)
    assert (reader.end, witness.verdict) == (end, Verdict.TRUTHFUL), witness.telling.findings.all()
    assert ("".join(witness.telling.text), witness.telling.finish) == ("one two", "stop")
    compressed = "compressed" in witness.telling.findings.ids("risk")
    assert compressed == any(word in case for word in ("gzip", "compressed", "deflate"))


CUT: dict[str, tuple[bytes, BodyEnd, Verdict]] = {
    "framed, no last chunk": (HEAD + FRAMED[:-30], BodyEnd.NO_TERMINATOR, Verdict.CUT),
    "framed, whole but for it": (HEAD + FRAMED, BodyEnd.NO_TERMINATOR, Verdict.BROKEN),
    "within the first chunk": (HEAD + FRAMED[:20], BodyEnd.NO_TERMINATOR, Verdict.CUT),
    "a length that is not reached": (
        HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: 9999") + streams.SAID,
        BodyEnd.SHORT, Verdict.CUT),
    "the rest is missing": (HEAD + streams.SAID, BodyEnd.RECORDING, Verdict.CUT),
    "the marker is missing": (HEAD + streams.SAID + streams.chunk("stop"), BodyEnd.RECORDING, Verdict.CUT),
    "curl saw nothing wrong": (METER_HEAD + METER + HEAD + streams.SAID + LAST_METER, BodyEnd.CLOSE, Verdict.LIE),
    "curl's meter, and then its word": (
        METER_HEAD + METER + HEAD + streams.SAID + LAST_METER + b"curl: (18) transfer closed with data remaining\n",
        BodyEnd.NO_TERMINATOR, Verdict.CUT),
    "curl said 18": (
        HEAD + streams.SAID + b"curl: (18) transfer closed with outstanding read data remaining\n",
        BodyEnd.NO_TERMINATOR, Verdict.CUT),
    "curl said 56": (
        HEAD + streams.SAID + b"curl: (56) Recv failure: Connection reset by peer\r\n", BodyEnd.RESET, Verdict.CUT),
    "curl said 92": (
        HEAD_2 + streams.SAID + b"\ncurl: (92) HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)\n",
        BodyEnd.RESET, Verdict.CUT),
    "curl said 28": (
        HEAD + streams.SAID + b"curl: (28) Operation timed out after 9 milliseconds\n", BodyEnd.LEFT, Verdict.UNSEEN),
}  # fmt: skip


@pytest.mark.parametrize("case", CUT)
def test_a_saved_stream_that_was_cut_is_told(case: str) -> None:
    data, end, verdict = CUT[case]
    witness, reader = read(data)
    assert (reader.end, witness.verdict) == (end, verdict), witness.telling.findings.all()


@pytest.mark.parametrize("name", streams.WHOLE)
def test_the_api_is_known_by_what_stands_there(name: str) -> None:
    api, body = streams.WHOLE[name]
    assert guess_api(read_recording(HEAD + body)) == api


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the recording is empty"),
        (b"\r\n", "the recording is empty"),
        (b'HTTP/1.1 401 Unauthorized\r\n\r\n{"error": 1}', "is a refusal: status 401"),
        (b"HTTP/2 503 \r\ncontent-length: 3\r\n\r\nbusy", "is a refusal: status 503"),
    ],
)
def test_what_is_no_recording_of_a_stream_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(CouldNotRun, match=says):
        read(data)


def _cut(peer: Peer) -> None:
    peer.send(sse_head(), chunk(streams.SAID))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    "more", [("-sS",), ("-sS", "--raw"), ("-sS", "--http1.0"), ("-sS", "--compressed"), (), ("--raw",)]
)
def test_what_curl_saves_is_read(more: tuple[str, ...], tmp_path: Path) -> None:
    for script, verdict in ((stream(streams.SAID, streams.chunk("stop"), DONE), Verdict.TRUTHFUL), (_cut, Verdict.CUT)):
        with ScriptedUpstream(script) as server, (tmp_path / "saved").open("wb") as file:
            command = [
                "curl",
                "-N",
                "-i",
                *more,
                "--max-time",
                "20",
                "-d",
                "{}",
                f"{server.url}/v1/chat/completions",
            ]
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=30, check=False)
        witness, reader = read((tmp_path / "saved").read_bytes())
        assert witness.verdict is verdict, (reader.end, (tmp_path / "saved").read_bytes())
        assert "".join(witness.telling.text) == "one two"
