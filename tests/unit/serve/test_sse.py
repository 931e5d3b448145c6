"""The framing of events: one block each, whatever is inside, for every reader."""

import json

import pytest
import sseclient

from serve import sse

# every character that some reader takes for the end of a line, and what breaks JSON or a terminal
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
TEXTS = [LINE_ENDS, "\x00\x1b[0m\x7f", "quote \" and ' and \\", "data: x\n\nevent: y\n\n", "😀 é \ud83d", ""]


def read(wire: bytes) -> list[tuple[str, str]]:
    """What a reader that is not ours makes of it."""

    return [(event.event, event.data) for event in sseclient.SSEClient(iter([wire])).events()]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_an_event_is_one_block_of_ascii_whatever_its_text(text: str) -> None:
    wire = sse.event("response.output_text.delta", {"delta": text})
    name, data, *rest = wire.decode("ascii").splitlines()
    assert (name, rest) == ("event: response.output_text.delta", [""])
    assert data.startswith("data: ")
    assert wire.endswith(b"}\n\n")
    assert wire.count(b"\n") == 3
    ((told, value),) = read(wire)
    assert told == "response.output_text.delta"
    assert json.loads(value) == {"delta": text}


def test_an_event_without_a_name_has_its_data_only() -> None:
    assert sse.data({"a": [1, None]}) == b'data: {"a": [1, null]}\n\n'


def test_a_named_event_is_its_data_behind_its_name() -> None:
    assert sse.event("ping", {"a": 1}) == b'event: ping\ndata: {"a": 1}\n\n'


def test_events_in_a_row_stay_apart() -> None:
    wire = sse.event("a", {"n": 1}) + sse.KEEP_ALIVE + sse.event("b", {"n": 2}) + sse.DONE
    assert read(wire) == [("a", '{"n": 1}'), ("b", '{"n": 2}'), ("message", "[DONE]")]


@pytest.mark.parametrize(
    "text", [text for text in TEXTS if "\ud83d" not in text] + ["\x80\x9f\xa0“”€\u2027\u202a"], ids=ascii
)
def test_events_that_somebody_else_wrote_end_lines_for_no_reader(text: str) -> None:
    wire = b"data: " + json.dumps({"delta": text}, ensure_ascii=False).encode() + b"\n\n"
    made = sse.without_line_ends(wire + wire).decode("utf-8")
    assert made.splitlines() == made.split("\n")[:-1]
    assert [json.loads(data) for _, data in read(made.encode())] == [{"delta": text}] * 2
    assert not set(made) & {"\x7f", *map(chr, range(0x80, 0xA0))}


@pytest.mark.parametrize("text", ["plain", "“é€漢😀”", "\\u2028"])
def test_what_ends_no_line_stays_as_somebody_else_wrote_it(text: str) -> None:
    assert sse.without_line_ends(text.encode()) == text.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_is_refused_and_not_sent(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        sse.event("a", {"n": value})


@pytest.mark.parametrize("name", ["é", "a\u2028b"])
def test_a_name_is_ascii(name: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        sse.event(name, {})
