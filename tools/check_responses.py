"""Finds out whether a server's Responses API calls an answer completed that the token limit has cut.

    python -m tools.check_responses http://127.0.0.1:8080/v1
    python -m tools.check_responses https://api.example.com/v1 --model NAME --json found.json

Asks for a text and for a tool call that cannot fit, streamed and not, and for a short text that does fit; says
AFFECTED, OK or UNSEEN (with the reason) of each, with the evidence. Some twenty short requests at most; it changes
nothing at the server.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from tools.outputs import check_outputs
from tools.probe.asking import LONG_PROMPT, SHORT_PROMPT, TOOL_PROMPT, adapted, asking, first_model
from tools.probe.connection import fetch
from tools.probe.cut_answer import Judged, Judgement, Made, judge_cut, judge_whole, of_response, of_stream
from tools.probe.exits import COULD_NOT_RUN, LIE, TRUTHFUL, CouldNotRun
from tools.probe.live import Refused, hint, told_by, watch
from tools.probe.options import add_reports, add_server, parser, target_of
from tools.probe.report import JUnitCase, Reporter, run_checker, table
from tools.probe.stopping import stopping
from tools.probe.target import Target
from tools.probe.telling import HOW_ENDED
from tools.probe.values import Json, as_object, parsed, shown

TEXT_LIMIT = 16
"""The least that the API takes."""
CALL_LIMITS = (16, 32, 64, 128, 256, 512)
"""Until one of them cuts a call in its arguments: what stands before them differs between models."""
TEXT_BEFORE_CALL = 64
"""A model that has written so many tokens of text makes no call any more."""
WHOLE_LIMIT = 512
SILENCE_S = 120.0
MOST_SILENCES = 4
"""So many of them is the longest that one answer may take."""
STATUSES_TO_ADAPT = (400, 422)
STYLES = {Judgement.OK: "bold green", Judgement.AFFECTED: "bold red", Judgement.UNSEEN: "yellow"}


@dataclass(frozen=True, slots=True)
class Item:
    """What was found of one kind of answer."""

    id: str
    verdict: Judgement
    evidence: str
    remarks: tuple[str, ...]
    took_s: float


class Asker:
    """Asks the server. What it refuses of a request is left out of the next ones, too."""

    def __init__(
        self, target: Target, model: str, *, silence_s: float, verify: bool, stop: threading.Event | None = None
    ) -> None:
        self._target = target
        self._model = model
        self._silence_s = silence_s
        self._verify = verify
        self._stop = stop
        self._refusals: list[str] = []

    def text(self, prompt: str, limit: int, *, stream: bool) -> Made:
        """Raises: CouldNotRun: there is no answer to judge."""
        return self._ask(asking("responses", self._model, prompt, max_tokens=limit, stream=stream), limit)

    def call(self, limit: int, *, stream: bool) -> Made:
        """Raises: CouldNotRun: there is no answer to judge."""
        body = asking("responses", self._model, TOOL_PROMPT, max_tokens=limit, stream=stream, tool="named")
        return self._ask(body, limit)

    def _ask(self, body: Json, limit: int) -> Made:
        for refusal in self._refusals:
            body = adapted(body, refusal) or body
        while True:
            try:
                return self._streamed(body, limit) if body["stream"] else self._whole(body, limit)
            except Refused as refused:
                less = adapted(body, refused.told) if refused.status in STATUSES_TO_ADAPT else None
                if less is None:
                    raise
                self._refusals.append(refused.told)
                body = less

    def _streamed(self, body: Json, limit: int) -> Made:
        seen = watch(
            self._target,
            "responses",
            body,
            limit=limit,
            endless=limit != WHOLE_LIMIT or "tools" in body,
            silence_s=self._silence_s,
            until_s=MOST_SILENCES * self._silence_s,
            verify=self._verify,
            stop=self._stop,
        )
        return of_stream(seen.witness, limit)

    def _whole(self, body: Json, limit: int) -> Made:
        request = self._target.post("responses", body)
        answer = fetch(
            self._target,
            request,
            silence_s=self._silence_s,
            until_s=MOST_SILENCES * self._silence_s,
            verify=self._verify,
            stop=self._stop,
        )
        where, end = self._target.shown, answer.reader.end
        if answer.status != 200:
            told = told_by(answer.body)
            what = f"answered with status {answer.status}: {shown(told, 300)}"
            if not answer.status:
                what = f"gave no answer: {HOW_ENDED[end] if end else ''} {answer.reader.end_note}".rstrip()
            what += hint(self._target, answer.status, answer.reader.end_s)
            raise Refused(f"{where} {what}", answer.status, told)
        try:
            value = parsed(answer.body)
        except ValueError as error:
            how = HOW_ENDED[end] if end else "it has no end"
            raise CouldNotRun(f"{where} answered with no JSON ({error}; {how}): {shown(answer.body, 300)}") from None
        return of_response(as_object(value), limit)


# --- items -------------------------------------------------------------------------------------------


def cut_text(asker: Asker, *, stream: bool) -> Judged:
    made = asker.text(LONG_PROMPT, TEXT_LIMIT, stream=stream)
    if made.cut or not made.ended or made.lies:
        return judge_cut(made)
    return Judged(Judgement.UNSEEN, f"the model ended by itself within {TEXT_LIMIT} tokens: {shown(made.text)}")


def cut_call(asker: Asker, *, stream: bool) -> Judged:
    instead: Made | None = None
    for limit in CALL_LIMITS:
        made = asker.call(limit, stream=stream)
        if made.cut_call is not None or not made.ended:
            return judge_cut(made)
        if made.cut is False and made.calls:
            return Judged(
                Judgement.UNSEEN, f"the call was whole within {limit} tokens: {shown(made.calls[0].arguments)}"
            )
        if made.cut and instead is None:
            instead = made
        if made.cut is False or (made.text and not made.calls and limit >= TEXT_BEFORE_CALL):
            break  # it ended, or writes a text: more room changes nothing
    if instead is None:
        return Judged(Judgement.UNSEEN, "the model made no tool call; ask another --model")
    judged = judge_cut(instead)
    judged.evidence = f"no call was made; of what was cut in its place: {judged.evidence}"
    if judged.verdict is Judgement.OK:
        judged.verdict = Judgement.UNSEEN
    return judged


def whole_text(asker: Asker, *, stream: bool) -> Judged:
    return judge_whole(asker.text(SHORT_PROMPT, WHOLE_LIMIT, stream=stream))


CHECKS: dict[str, Callable[[Asker], Judged]] = {
    "truncated text": lambda asker: cut_text(asker, stream=False),
    "truncated text, streamed": lambda asker: cut_text(asker, stream=True),
    "truncated tool call": lambda asker: cut_call(asker, stream=False),
    "truncated tool call, streamed": lambda asker: cut_call(asker, stream=True),
    "whole text": lambda asker: whole_text(asker, stream=False),
    "whole text, streamed": lambda asker: whole_text(asker, stream=True),
}

WHOLE = frozenset({"whole text", "whole text, streamed"})
NEED_TOOLS = frozenset({"truncated tool call", "truncated tool call, streamed"})


def _run(asker: Asker, reporter: Reporter, stop: threading.Event, *, tools: bool) -> list[Item]:
    items: list[Item] = []
    checks = {id_: check for id_, check in CHECKS.items() if tools or id_ not in NEED_TOOLS}
    with reporter.progress() as progress:
        task = progress.add_task("", total=len(checks))
        for id_, check in checks.items():
            progress.update(task, description=id_)
            begun = time.perf_counter()
            try:
                judged = check(asker)
            except CouldNotRun as error:
                if not items and not stop.is_set():
                    raise
                judged = Judged(Judgement.UNSEEN, str(error))
            if stop.is_set():
                if not items:
                    raise KeyboardInterrupt
                rest = [one for one in checks if one not in {item.id for item in items}]
                items += [Item(one, Judgement.UNSEEN, "stopped before it was seen", (), 0.0) for one in rest]
                break
            took_s = time.perf_counter() - begun
            items.append(Item(id_, judged.verdict, judged.evidence, tuple(judged.remarks), took_s))
            progress.advance(task)
    return items


# --- reports -----------------------------------------------------------------------------------------


def _show(items: list[Item], target: Target, model: str, reporter: Reporter) -> None:
    made = table(reporter.cell(f"{target.shown}/responses, model {model}"), "item", "", "evidence")
    for item in items:
        evidence = "\n".join([item.evidence, *item.remarks])
        made.add_row(item.id, Text(item.verdict, style=STYLES[item.verdict]), Text(reporter.cell(evidence)))
    reporter.show(made)
    counts = Counter(item.verdict for item in items)
    if counts[Judgement.AFFECTED]:
        line = (
            "answers that were cut are told as whole: compare usage.output_tokens with the limit before you trust one"
        )
        reporter.say(f"AFFECTED: {line}")
    elif counts[Judgement.UNSEEN]:
        reporter.say("nothing untrue was seen, but not all could be seen: ask another --model, or --no-tools")
    else:
        reporter.say("OK: cut answers say that they are")


def _case(item: Item) -> JUnitCase:
    detail = "\n".join([item.evidence, *item.remarks])
    match item.verdict:
        case Judgement.AFFECTED:
            return JUnitCase("responses", item.id, "failure", "AFFECTED", detail, item.took_s)
        case Judgement.UNSEEN:
            return JUnitCase("responses", item.id, "skipped", "UNSEEN", detail, item.took_s)
        case Judgement.OK:
            return JUnitCase("responses", item.id, "passed", "", detail, item.took_s)


def _status(items: list[Item]) -> int:
    verdicts = {item.verdict for item in items}
    if Judgement.AFFECTED in verdicts:
        return LIE
    return COULD_NOT_RUN if Judgement.UNSEEN in verdicts else TRUTHFUL


def _check(args: argparse.Namespace, reporter: Reporter) -> int:
    check_outputs(args.json, args.junit)
    target, _ = target_of(args.url, "responses", reporter.secret)
    verify = not args.insecure
    with stopping() as stop:
        model: str = args.model or first_model(target, verify=verify, stop=stop)
        asker = Asker(target, model, silence_s=args.silence_s, verify=verify, stop=stop)
        items = _run(asker, reporter, stop, tools=not args.no_tools)
    _show(items, target, model, reporter)
    if args.json is not None:
        told = [
            {
                "id": item.id,
                "verdict": item.verdict,
                "evidence": item.evidence,
                "remarks": item.remarks,
                "took_s": item.took_s,
            }
            for item in items
        ]
        reporter.write_json(args.json, {"server": target.shown, "model": model, "items": told})
    if args.junit is not None:
        reporter.write_junit(args.junit, "check_responses", map(_case, items))
    return _status(items)


def main(argv: list[str] | None = None) -> int:
    made = parser("check_responses", __doc__)
    made.add_argument("url", help="http://HOST:PORT, a base URL (…/v1), or the full one of /v1/responses")
    add_server(made, with_api=False)
    made.add_argument("--no-tools", action="store_true", help="leave tool calls out: the model makes none")
    silence = f"give an answer up after so long without a byte (default: {SILENCE_S:g})"
    made.add_argument("--silence-s", type=float, default=SILENCE_S, help=silence)
    add_reports(made)
    args = made.parse(argv)
    if args.silence_s <= 0:
        made.error("--silence-s must be above 0")
    return run_checker(lambda reporter: _check(args, reporter), args.api_key)


if __name__ == "__main__":
    sys.exit(main())
