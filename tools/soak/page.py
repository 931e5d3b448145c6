"""A run's report: tables for the terminal, one HTML file that needs nothing beside it, and JSON. It judges nothing."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from tools.probe.report import JUnitCase, Reporter, table
from tools.probe.values import Json
from tools.soak.judge import Judgement, growth_text, unit_of
from tools.soak.record import Ending, Evidence, Fault, Record, Sample, Watched
from tools.soak.settings import Settings

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:left;
vertical-align:top}th{background:#f4f4f4}.bad{color:#b00020;font-weight:600}.good{color:#1c7c3c}img{max-width:100%}
code{overflow-wrap:anywhere}"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything of a run that a report tells."""

    settings: Settings
    watched: Watched
    model: str | None
    record: Record
    judgement: Judgement
    took_s: float
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        bad = [item.name for item in self.judgement.items if item.bad]
        return "truthful" if not bad else "not truthful: " + ", ".join(bad)


Rows = Sequence[tuple[str, ...]]


def _stream_rows(outcome: Outcome) -> Rows:
    by_api = outcome.judgement.by_api
    endings = [ending for ending in Ending if any(counts.get(ending) for counts in by_api.values())]
    rows = [(ending.value, *(str(counts.get(ending, 0)) for counts in by_api.values())) for ending in endings]
    return [*rows, ("all", *(str(sum(counts.values())) for counts in by_api.values()))]


def _item_rows(outcome: Outcome) -> Rows:
    items = outcome.judgement.items
    return [(item.name, "BAD" if item.bad else "ok", "\n".join((item.text, *item.evidence))) for item in items]


def _series_rows(outcome: Outcome) -> Rows:
    made: list[tuple[str, ...]] = []
    for line in outcome.judgement.lines:
        unit, scale = unit_of(line.name)
        values = [f"{value / scale:,.0f} {unit}".rstrip() for value in (line.first, line.last, line.highest)]
        made.append((line.name, *values, growth_text(line)))
    return made


def _fault_rows(outcome: Outcome) -> Rows:
    made: list[tuple[str, ...]] = []
    for report in outcome.judgement.faults:
        fault = report.fault
        what = f"not made: {fault.error}" if fault.error else f"{fault.how}{_for(fault)}"
        hit, others = _counted(report.endings), _counted(report.others)
        times = _s(report.last_ending_s), others, _s(report.recovered_s)
        made.append((f"{fault.at_s:.1f} s", fault.kind, what, hit, *times))
    return made


def _counted(endings: Mapping[Ending, int]) -> str:
    return ", ".join(f"{count} {ending.value}" for ending, count in endings.items()) or "none"


def _for(fault: Fault) -> str:
    return f", for {fault.for_s:g} s" if fault.for_s else ""


def _s(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


_SERIES_HEAD = ("series", "first", "last", "highest", "slope")
_FAULT_HEAD = ("at", "fault", "what", "in mid-answer", "they ended after", "others open then", "next first token after")
SHOWN_FAULTS = 12


def show(outcome: Outcome, reporter: Reporter) -> None:
    """On the terminal."""
    _show_table(reporter, "streams", ("ending", *outcome.judgement.by_api), _stream_rows(outcome))
    if rows := _fault_rows(outcome):
        _show_table(reporter, f"faults, the last {SHOWN_FAULTS}", _FAULT_HEAD, rows[-SHOWN_FAULTS:])
    if rows := _series_rows(outcome):
        _show_table(reporter, "what was watched", _SERIES_HEAD, rows)
    _show_table(reporter, "verdict", ("", "", "found"), _item_rows(outcome))
    for note in (*outcome.watched.missing, *outcome.notes):
        reporter.say(f"note: {note}")
    reporter.say(outcome.verdict, style="green" if outcome.judgement.truthful else "red")


def _show_table(reporter: Reporter, title: str, head: Iterable[str], rows: Rows) -> None:
    made = table(title, *head)
    for row in rows:
        made.add_row(*(reporter.cell(cell) for cell in row), style="red" if "BAD" in row else None)
    reporter.show(made)


# --- files -------------------------------------------------------------------------------------------


def page(outcome: Outcome, picture: bytes | None, reporter: Reporter) -> str:
    """The HTML file."""
    kind = "good" if outcome.judgement.truthful else "bad"
    facts = [*_fact_rows(outcome), *(("not watched", text) for text in outcome.watched.missing)]
    facts += [("note", text) for text in outcome.notes]
    image = f'<img alt="the run over time" src="data:image/png;base64,{base64.b64encode(picture or b"").decode()}">'
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>soak</title>",
        f"<style>{_STYLE}</style><h1>Soak: <span class={kind}>{_text(reporter, outcome.verdict)}</span></h1>",
        _html_table(reporter, ("", "", "found"), _item_rows(outcome)),
        "<h2>The run</h2>",
        _html_table(reporter, ("", ""), facts),
        image if picture is not None else "<p>Without plots: matplotlib was not installed.</p>",
        "<h2>Streams</h2>",
        _html_table(reporter, ("ending", *outcome.judgement.by_api), _stream_rows(outcome)),
        "<h2>Faults</h2>",
        _html_table(reporter, _FAULT_HEAD, _fault_rows(outcome)) if outcome.judgement.faults else "<p>None.</p>",
        "<h2>What was watched</h2>",
        _html_table(reporter, _SERIES_HEAD, _series_rows(outcome)) if outcome.judgement.lines else "<p>Nothing.</p>",
    ]
    return "\n".join(parts) + "\n</html>\n"


def _fact_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    settings = outcome.settings
    return [
        ("server", outcome.watched.server),
        ("model", outcome.model or ""),
        ("seed", str(settings.seed)),
        ("took", f"{outcome.took_s:.0f} s"),
        ("load", f"{settings.clients} clients, up to {settings.max_tokens} tokens, {', '.join(settings.apis)}"),
        *(("watched", fact) for fact in outcome.watched.facts),
        *([("caches", f"memory may grow by {settings.cache_mib} MiB")] if settings.cache_mib else []),
    ]


def _text(reporter: Reporter, text: str) -> str:
    return html.escape(reporter.secret.hide(text)).replace("\n", "<br>")


def _html_table(reporter: Reporter, head: Iterable[str], rows: Rows) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{_text(reporter, cell)}</th>" for cell in head) + "</tr>"]
    for row in rows:
        mark = " class=bad" if "BAD" in row else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{_text(reporter, cell)}</td>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def as_json(outcome: Outcome) -> Json:
    judgement, record = outcome.judgement, outcome.record
    return {
        "verdict": outcome.verdict,
        "truthful": judgement.truthful,
        "items": [
            {"name": item.name, "bad": item.bad, "text": item.text, "evidence": list(item.evidence)}
            for item in judgement.items
        ],
        "seed": outcome.settings.seed,
        "server": outcome.watched.server,
        "model": outcome.model,
        "took_s": outcome.took_s,
        "load": asdict(outcome.settings),
        "watched": list(outcome.watched.facts),
        "not_watched": list(outcome.watched.missing),
        "notes": list(outcome.notes),
        "streams": {
            api: {ending.name.lower(): n for ending, n in counts.items()} for api, counts in judgement.by_api.items()
        },
        "faults": [_fault_json(outcome, number) for number in range(len(judgement.faults))],
        "series": [_series_json(outcome, number) for number in range(len(judgement.lines))],
        "samples": [_sample_json(sample) for sample in record.samples],
    }


def _fault_json(outcome: Outcome, number: int) -> Json:
    report = outcome.judgement.faults[number]
    fault = report.fault
    return {
        "kind": fault.kind,
        "at_s": fault.at_s,
        "for_s": fault.for_s,
        "how": fault.how,
        "error": fault.error,
        "mid_answer": fault.mid_answer,
        "endings": {ending.name.lower(): count for ending, count in report.endings.items()},
        "others": {ending.name.lower(): count for ending, count in report.others.items()},
        "last_ending_s": report.last_ending_s,
        "recovered_s": report.recovered_s,
    }


def _series_json(outcome: Outcome, number: int) -> Json:
    line = outcome.judgement.lines[number]
    slope = line.growth.slope
    made: Json = {"name": line.name, "first": line.first, "last": line.last, "highest": line.highest}
    made |= {"leak": line.growth.leak, "why": line.growth.why}
    if slope is not None:
        made |= {"per_stream": slope.per_stream, "error": slope.error, "points": slope.count, "span": slope.span}
    return made


def _sample_json(sample: Sample) -> Json:
    return {"at_s": round(sample.at_s, 3), "streams": sample.streams, "life": sample.life, **sample.values}


def junit_cases(outcome: Outcome) -> list[JUnitCase]:
    return [
        JUnitCase("run", item.name, "failure" if item.bad else "passed", item.text, "\n".join(item.evidence))
        for item in outcome.judgement.items
    ]


def evidence_text(evidence: Evidence) -> str:
    """The bytes of an untrue stream as a text for people."""
    seen = evidence.seen
    head = f"stream {seen.number}, {seen.api}, at {seen.begun_s:.1f} s: {seen.ending.value}\n"
    why = "".join(f"{text}\n" for text in seen.why)
    parts = [head, why, "\n--- request\n", evidence.request.decode(), "\n\n--- answer, framing included\n"]
    parts.append(evidence.begin.decode("utf-8", "replace"))
    if evidence.left_out:
        parts.append(f"\n\n--- {evidence.left_out} bytes are left out here\n\n")
    return "".join([*parts, evidence.end.decode("utf-8", "replace"), "\n"])
