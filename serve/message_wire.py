"""The JSON of the Messages API that goes out, as types. No behaviour.

Source: Anthropic API reference, Messages and its streaming, and the types of anthropic-python 2.14.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias, TypedDict

MessageStopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
MessageErrorType: TypeAlias = Literal[
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]


class ThinkingTokens(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """The prompt has `input_tokens` + `cache_creation_input_tokens` + `cache_read_input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class MessageError(TypedDict):
    type: MessageErrorType
    message: str
    partial_output: NotRequired[str]
    usage: NotRequired[MessageUsage]


class MessageErrorBody(TypedDict):
    """`request_id` is in HTTP answers; a stream's error event has none."""

    type: Literal["error"]
    error: MessageError
    request_id: NotRequired[str]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """`partial_json` is ours: the arguments of a call that the token limit cut, whose `input` is empty."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]
    partial_json: NotRequired[str]


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageObject(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: MessageStopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: MessageObject


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class StopDelta(TypedDict):
    stop_reason: MessageStopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """`usage` is cumulative: it replaces what the start said."""

    type: Literal["message_delta"]
    delta: StopDelta
    usage: MessageUsage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Ping(TypedDict):
    type: Literal["ping"]


MessageEvent: TypeAlias = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessageErrorBody
)
