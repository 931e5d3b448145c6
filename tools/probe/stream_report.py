"""A witness's stream -> a report: figures for JSON, a table for people, a case for JUnit. It judges nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tools.probe.advice import advice
from tools.probe.answer import AnswerReader
from tools.probe.beats import Beats
from tools.probe.report import JUnitCase, Reporter, table
from tools.probe.telling import HOW_ENDED, Finding, FindingKind
from tools.probe.witness import Verdict, Witness

STYLES: dict[FindingKind, str] = {"lie": "bold red", "cut": "red", "breach": "red", "risk": "yellow", "note": "dim"}


@dataclass(frozen=True, slots=True)
class Beat:
    kind: str
    count: int
    mean_s: float | None
    longest_s: float | None
    example: str


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What was seen of one stream. Times are seconds since the request was sent; None where nothing is known."""

    source: str
    api: str
    verdict: Verdict
    finish: str | None
    marker: str | None
    error: str | None
    end: str
    end_told: str
    took_s: float | None
    connect_s: float | None
    first_byte_s: float | None
    first_event_s: float | None
    first_token_s: float | None
    longest_silence_s: float | None
    silent_since_s: float | None
    longest_without_event_s: float | None
    events: int
    comments: int
    pieces: int
    output_tokens: int | None
    tool_calls: int
    bytes: int
    heartbeats: tuple[Beat, ...]
    http: str
    content_type: str | None
    content_encoding: str | None
    x_accel_buffering: str | None
    findings: tuple[Finding, ...]
    advice: str

    @property
    def untrue(self) -> bool:
        return self.verdict.untrue


def stream_report(
    source: str, witness: Witness, reader: AnswerReader, *, connect_s: float | None = None
) -> StreamReport:
    """After the witness was closed."""
    telling, head, timed = witness.telling, witness.head, witness.timed
    end = reader.end

    def time(value: float | None) -> float | None:
        return value if timed and value is not None else None

    return StreamReport(
        source=source,
        api=telling.api,
        verdict=witness.verdict,
        finish=telling.finish,
        marker=telling.marker,
        error=telling.error,
        end=str(end),
        end_told=(HOW_ENDED[end] if end else "") + (f" ({reader.end_note})" if reader.end_note else ""),
        took_s=time(reader.end_s),
        connect_s=connect_s,
        first_byte_s=time(reader.first_byte_s),
        first_event_s=time(telling.first_event_s),
        first_token_s=time(telling.first_token_s),
        longest_silence_s=time(witness.silence.longest_s),
        silent_since_s=time(witness.silence.since_s),
        longest_without_event_s=time(telling.events.longest_s),
        events=witness.sse.events,
        comments=witness.sse.comments,
        pieces=telling.token_count,
        output_tokens=telling.output_tokens,
        tool_calls=len(telling.calls),
        bytes=reader.body_bytes,
        heartbeats=tuple(_beat(beats, timed=timed) for beats in telling.heartbeats.kinds.values()),
        http=f"{head.version} {head.status}, {reader.framing}" if head else "no head",
        content_type=head.get("content-type") if head else None,
        content_encoding=head.get("content-encoding") if head else None,
        x_accel_buffering=head.get("x-accel-buffering") if head else None,
        findings=tuple(telling.findings.all()),
        advice=advice(witness, reader),
    )


def _beat(beats: Beats, *, timed: bool) -> Beat:
    mean_s, longest_s = (beats.mean_s, beats.longest_s) if timed else (None, None)
    return Beat(beats.kind, beats.count, mean_s, longest_s, beats.example)


def stream_table(report: StreamReport, reporter: Reporter) -> Group:
    """All of it, for people."""
    made = table(None, "", "")
    made.show_header = False
    rows = (
        ("server", report.source),
        ("answer", f"{report.http}, {report.content_type or 'no content-type'}"),
        ("verdict", str(report.verdict)),
        ("finish", report.finish or "none"),
        ("end marker", report.marker or "none"),
        ("how it ended", report.end_told),
        ("error", report.error or "none"),
        ("first byte, first token", f"{_seconds(report.first_byte_s)}, {_seconds(report.first_token_s)}"),
        ("took", _seconds(report.took_s)),
        ("longest silence", _silence(report)),
        ("heartbeats", _heartbeats(report)),
        ("made", _made(report)),
        ("what to do", report.advice),
    )
    for name, value in rows:
        style = ("bold red" if report.untrue else "bold green") if name == "verdict" else ""
        made.add_row(name, Text(reporter.cell(value), style=style))
    return Group(made, findings_table(report, reporter)) if report.findings else Group(made)


def findings_table(report: StreamReport, reporter: Reporter) -> Table:
    made = table(None, "kind", "what was seen", "times", "at")
    for finding in report.findings:
        at = "" if finding.at_s is None or report.took_s is None else f"{finding.at_s:.2f} s"
        what = Text(reporter.cell(finding.text))
        made.add_row(Text(finding.kind, style=STYLES[finding.kind]), what, str(finding.count), at)
    return made


def stream_case(report: StreamReport, name: str) -> JUnitCase:
    lines = [f"{finding.kind}: {finding.text}" for finding in report.findings]
    if report.untrue:
        return JUnitCase(
            report.api, name, "failure", lines[0], "\n".join([*lines, report.advice]), report.took_s or 0.0
        )
    if report.verdict is Verdict.UNSEEN:
        return JUnitCase(report.api, name, "skipped", "the end was not seen", "\n".join(lines), report.took_s or 0.0)
    return JUnitCase(report.api, name, "passed", "", "\n".join(lines), report.took_s or 0.0)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"


def _silence(report: StreamReport) -> str:
    if report.longest_silence_s is None:
        return "–"
    since = f", from {report.silent_since_s:.1f} s on" if report.silent_since_s is not None else ""
    return f"{report.longest_silence_s:.3f} s{since}; without an event {_seconds(report.longest_without_event_s)}"


def _heartbeats(report: StreamReport) -> str:
    if not report.heartbeats:
        return "none"
    told: list[str] = []
    for beat in report.heartbeats:
        every = "" if beat.mean_s is None else f", every {beat.mean_s:.1f} s (longest {beat.longest_s or 0.0:.1f} s)"
        told.append(f"{beat.count} × {beat.kind}{every}")
    return "; ".join(told)


def _made(report: StreamReport) -> str:
    tokens = "" if report.output_tokens is None else f", {report.output_tokens} tokens by its own count"
    calls = f", {report.tool_calls} tool calls" if report.tool_calls else ""
    return f"{report.pieces} pieces of the answer in {report.events} events, {report.bytes} bytes{tokens}{calls}"
