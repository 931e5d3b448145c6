"""Chat messages to a prompt, by a Jinja template as model makers publish them.

`ChatTemplate` gives the text, `encode_prompt` the token ids, in which nothing that a message says can become a control
token. It knows no roles and no format (those are the template's) and does not check messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn, cast

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serve.tokenizer import Tokenizer

DEFAULT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
RESERVED = frozenset({"add_generation_prompt", "messages", "raise_exception", "self", "strftime_now", "tools"})
"""Template variables that a request cannot set."""

DEFAULT_THINKING_END = "\n</think>\n\n"
"""Source: the chat templates of Qwen3 and of DeepSeek-R1's distillations (2026-11)."""

_PLACEHOLDERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # Unicode's noncharacters for a program's own use
# what a template can raise when it meets values that it was not written for
_TEMPLATE_FAULTS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class ChatTemplate:
    """A chat template from a file. Rendering may be called from any thread.

    Raises: ValueError: the file cannot be read or is not a template.
    """

    def __init__(self, path_to_jinja: str | Path = DEFAULT_TEMPLATE) -> None:
        try:
            self.source = Path(path_to_jinja).read_text(encoding="utf-8")
            self._template = _environment().from_string(self.source)
        except OSError as error:
            raise ValueError(f"chat template: {str(path_to_jinja)!r} cannot be read ({error.strerror})") from None
        except (jinja2.TemplateError, UnicodeDecodeError) as error:
            raise ValueError(f"chat template: {str(path_to_jinja)!r} is not a template ({error})") from None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt's text. `messages` and `tools` are OpenAI's; `kwargs` are further variables of the template.
        The arguments of tool calls may be JSON text: the template gets them as objects where they are.

        Raises: ValueError: the template refuses the messages, or fails on them.
        """
        variables: dict[str, object] = {"add_generation_prompt": True, "bos_token": "", "eos_token": "", **kwargs}
        variables["messages"] = [_with_arguments(message) for message in messages]
        variables["tools"] = list(tools) if tools else None
        try:
            return self._template.render(variables)
        except _TEMPLATE_FAULTS as error:
            raise ValueError(str(error) or f"the chat template failed: {type(error).__name__}") from None


def encode_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None = None,
    options: Mapping[str, object] | None = None,
    prefill: str = "",
    *,
    continued: str = "",
) -> list[int]:
    """The prompt's token ids. `options` are further variables of the template, as a request gives them; `prefill` is
    how the answer begins, by us, and `continued` how it begins by the request.

    The template's own control tokens become control tokens; where a message, a tool or an option spells one, it
    stays text: before the template sees it, the spelling is broken by a character that occurs nowhere else, and what is
    on its two sides is encoded apart, so that neither side spells the token, whatever the template does to the text.

    Raises: ValueError: the template refuses the messages or fails on them, or an option is reserved.
    """
    options = options or {}
    for name in options:
        if name in RESERVED or not name.isidentifier():
            raise ValueError(f"the template variable {name[:80]!r} cannot be set")
    values: list[object] = [list(messages), list(tools or ()), dict(options), continued]
    mark = _unused(json.dumps(values, ensure_ascii=False, default=str))
    spellings = "|".join(map(re.escape, tokenizer.specials))
    starts = re.compile(f"(?=(?:{spellings}))([\\s\\S])") if spellings else None
    marked_messages, marked_tools, marked_options, begun = (_marked(value, starts, mark) for value in values)
    text = template.render(
        cast(list[Mapping[str, object]], marked_messages),
        cast(list[Mapping[str, object]], marked_tools),
        **cast(dict[str, object], marked_options),
    )
    parts = f"{text}{begun}{prefill}".split(mark)
    return [token_id for part in parts for token_id in tokenizer.encode(part, parse_special=True)]


def forced_call(template: ChatTemplate, name: str | None) -> str:
    """How an answer begins that must be a call of the tool `name` (None: of any), in the template's own form."""
    if name is None:
        return "<tool_call>\n"
    if "<function=" in template.source:
        return f"<tool_call>\n<function={name}>\n"
    return f'<tool_call>\n{{"name": "{name}", "arguments": '


def thinking_end(template: ChatTemplate) -> str:
    """How the template ends the thinking of a turn that it shows, line breaks included: that is what its model was
    taught to write. A template that shows none ends it as most do."""
    thought, said = _PLACEHOLDERS[:2]
    turn = {"role": "assistant", "reasoning_content": thought, "content": said}
    try:
        text = template.render([{"role": "user", "content": "?"}, turn], add_generation_prompt=False)
    except ValueError:
        return DEFAULT_THINKING_END
    end = text.partition(thought)[2].partition(said)[0]
    return end if end.strip() == "</think>" else DEFAULT_THINKING_END


def _marked(value: object, starts: re.Pattern[str] | None, mark: str) -> object:
    """`value` with the mark behind the first character of every control token's spelling."""
    if starts is None:
        return value
    if isinstance(value, str):
        return starts.sub(rf"\1{mark}", value)
    if isinstance(value, Mapping):
        fields = cast(Mapping[str, object], value)
        return {str(_marked(key, starts, mark)): _marked(item, starts, mark) for key, item in fields.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, starts, mark) for item in cast(Sequence[object], value)]
    return value


def _unused(text: str) -> str:
    for char in _PLACEHOLDERS:
        if char not in text:
            return char
    raise ValueError("the messages use all of Unicode's noncharacters U+FDD0 to U+FDEF; leave one out")


def _with_arguments(message: Mapping[str, object]) -> Mapping[str, object]:
    """The message with the arguments of its tool calls as objects, where they are JSON objects."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_parsed(call) for call in cast(list[object], calls)]}


def _with_parsed(call: object) -> object:
    call_fields = _fields(call)
    function = _fields(call_fields.get("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    if not isinstance(parsed, dict):
        return call
    return {**call_fields, "function": {**function, "arguments": cast(dict[str, object], parsed)}}


def _fields(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else {}


# --- the environment that published templates expect ---------------------------------------------------


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception  # pyright: ignore[reportArgumentType] - any callable
    environment.globals["strftime_now"] = _strftime_now  # pyright: ignore[reportArgumentType] - any callable
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which Jinja's own filter writes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
