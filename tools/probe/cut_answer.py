"""One answer of the Responses API under a small token limit -> whether it was cut, and whether it says so.

It asks nothing. Source: OpenAI API reference, "The response object": `status`, `incomplete_details`, `output`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.probe.response_telling import ResponseTelling
from tools.probe.values import Json, as_int, as_list, as_object, as_text, at, is_json, shown
from tools.probe.witness import Witness

LAST_WORDS = ("two thousand", "2000")
"""Where one of these stands, the long text is whole."""


class Judgement(enum.StrEnum):
    OK = "OK"
    AFFECTED = "AFFECTED"
    UNSEEN = "UNSEEN"
    """It could not be seen, because the answer was not what was needed to see it."""


@dataclass(frozen=True, slots=True)
class CallMade:
    name: str
    arguments: str
    status: str | None

    @property
    def whole(self) -> bool:
        return is_json(self.arguments)


@dataclass(frozen=True, slots=True)
class Made:
    """What an answer says. `lies`: what a stream says against itself; `ended`: it came to its end; `how` it did not."""

    limit: int
    status: str | None
    reason: str | None
    tokens: int | None
    text: str
    calls: tuple[CallMade, ...]
    lies: tuple[str, ...] = ()
    ended: bool = True
    how: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def cut_call(self) -> CallMade | None:
        return next((call for call in self.calls if not call.whole), None)

    @property
    def cut(self) -> bool | None:
        """Whether the limit cut it. None: it does not say how many tokens it has, and one cannot see it."""
        if self.cut_call is not None:
            return True
        if self.tokens is not None:
            return self.tokens >= self.limit
        if self.status == "incomplete":
            return True
        return None if self.calls or not self.text else not any(word in self.text.lower() for word in LAST_WORDS)


@dataclass(slots=True)
class Judged:
    verdict: Judgement
    evidence: str
    remarks: list[str] = field(default_factory=list[str])


def of_response(response: Json, limit: int, *, lies: Sequence[str] = (), remarks: Sequence[str] = ()) -> Made:
    """What the object of a body, or of a stream's last event, says."""
    texts: list[str] = []
    calls: list[CallMade] = []
    for item in map(as_object, as_list(response.get("output"))):
        if item.get("type") == "function_call":
            status = as_text(item.get("status"))
            calls.append(CallMade(as_text(item.get("name")) or "", as_text(item.get("arguments")) or "", status))
        texts += [as_text(at(part, "text")) or "" for part in as_list(item.get("content"))]
    return Made(
        limit=limit,
        status=as_text(response.get("status")),
        reason=as_text(at(response, "incomplete_details", "reason")),
        tokens=as_int(at(response, "usage", "output_tokens")),
        text="".join(texts),
        calls=tuple(calls),
        lies=tuple(lies),
        remarks=tuple(remarks),
    )


def of_stream(witness: Witness, limit: int) -> Made:
    """What a stream says, after its witness was closed."""
    telling = witness.telling
    assert isinstance(telling, ResponseTelling)
    lies = [finding.text for finding in telling.findings.all() if finding.kind == "lie"]
    others = {"cut", "breach"}
    remarks = [f"{finding.kind}: {finding.text}" for finding in telling.findings.all() if finding.kind in others]
    if telling.marker is not None:
        made = of_response(telling.response, limit, lies=lies, remarks=remarks)
        streamed = tuple(CallMade(call.name, call.text, None) for call in telling.calls.values())
        return made if made.calls or not streamed else _with_calls(made, streamed)
    ended = witness.end is not None and not witness.end.cut
    cut = [finding.text for finding in telling.findings.all() if finding.kind == "cut"]
    streamed = tuple(CallMade(call.name, call.text, None) for call in telling.calls.values())
    text = "".join(telling.text)
    how = "; ".join(cut) or telling.error or "it has no end"
    return Made(limit, None, None, None, text, streamed, tuple(lies), ended and bool(lies), how, tuple(remarks))


def _with_calls(made: Made, calls: tuple[CallMade, ...]) -> Made:
    return Made(
        made.limit,
        made.status,
        made.reason,
        made.tokens,
        made.text,
        calls,
        made.lies,
        made.ended,
        made.how,
        made.remarks,
    )


def judge_cut(made: Made) -> Judged:
    """Of an answer that the limit cut (`made.cut` is true, or it is a stream without an end)."""
    what = _evidence(made)
    if not made.ended:
        return Judged(Judgement.UNSEEN, f"no end was told, so that nothing is claimed: {made.how}", list(made.remarks))
    wrong = list(made.lies)
    call = made.cut_call
    if made.status == "completed" and not wrong:
        wrong.append("it was cut, and says completed")
    if call is not None and call.status == "completed":
        wrong.append(f"the call of {call.name!r} says completed, and its arguments are not JSON: a client may run it")
    if made.status == "incomplete" and made.reason == "content_filter":
        wrong.append("it was cut by the token limit, and says content_filter")
    if made.status is None and not wrong:
        wrong.append("it has no status")
    if wrong:
        return Judged(Judgement.AFFECTED, "; ".join([what, *wrong]), list(made.remarks))
    remarks = list(made.remarks)
    if made.status == "incomplete" and made.reason is None:
        remarks.append("incomplete_details has no reason; max_output_tokens was due")
    if made.status != "incomplete":
        remarks.append(f"status {made.status!r}, where incomplete was due")
    return Judged(Judgement.OK, what, remarks)


def judge_whole(made: Made) -> Judged:
    """Of a short answer that had room to end by itself."""
    what = _evidence(made)
    remarks = list(made.remarks)
    if not made.ended:
        return Judged(Judgement.UNSEEN, f"no end was told: {made.how}", remarks)
    if made.tokens is not None and made.tokens >= made.limit:
        return Judged(Judgement.UNSEEN, f"the model did not end by itself: {what}", remarks)
    if made.lies:
        return Judged(Judgement.AFFECTED, "; ".join([what, *made.lies]), remarks)
    if made.status == "completed":
        return Judged(Judgement.OK, what, remarks)
    if made.status == "failed":
        return Judged(Judgement.UNSEEN, f"it failed: {what}", remarks)
    why = f"it ended by itself, and does not say completed: {what}"
    return Judged(Judgement.AFFECTED if made.tokens is not None else Judgement.UNSEEN, why, remarks)


def _evidence(made: Made) -> str:
    reason = f" ({made.reason})" if made.reason else ""
    tokens = "an unknown number" if made.tokens is None else str(made.tokens)
    parts = [
        f"status {made.status!r}{reason}" if made.status else "no status",
        f"{tokens} of at most {made.limit} tokens",
    ]
    if (call := made.cut_call or next(iter(made.calls), None)) is not None:
        state = f", {call.status}" if call.status else ""
        parts.append(f"call of {call.name!r}{state}: arguments end in {shown(call.arguments[-40:])}")
    elif made.text:
        parts.append(f"text ends in {shown(made.text[-40:])}")
    return ", ".join(parts)
