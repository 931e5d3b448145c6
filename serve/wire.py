"""The JSON that goes out, as types. No behaviour."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias, TypedDict


class ErrorObject(TypedDict):
    """Source: OpenAI API reference, error object: all four keys are required."""

    message: str
    type: str
    param: str | None
    code: str | None
    partial_output: NotRequired[str]
    partial_outputs: NotRequired[list[str]]
    usage: NotRequired[UsageObject | None]
    response_id: NotRequired[str]


class ErrorBody(TypedDict):
    error: ErrorObject


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class UsageObject(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TimingsObject(TypedDict):
    """The engine's clock. Source: llama.cpp build 11549 as seen on 2026-11-30: in bodies, and on a stream's last chunk
    (that of the usage, where there is one). A rate of nothing is null; `draft_n` is there where something was drafted.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


class FunctionDelta(TypedDict, total=False):
    name: str
    arguments: str


class ToolCallDelta(TypedDict):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class Delta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]


class ChunkChoice(TypedDict):
    index: int
    delta: Delta
    finish_reason: str | None
    logprobs: NotRequired[object]


class ChatChunk(TypedDict):
    """Source: OpenAI API reference, chat completion chunk. `error` on a closing chunk is OpenRouter's form."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[UsageObject | None]
    timings: NotRequired[TimingsObject]
    error: NotRequired[ErrorObject]


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: object
    finish_reason: str | None


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject | None
    timings: NotRequired[TimingsObject]
    error: NotRequired[ErrorObject]


class CompletionChoice(TypedDict):
    text: str
    index: int
    logprobs: object
    finish_reason: str | None


class CompletionObject(TypedDict):
    """Source: OpenAI API reference, the completion object, of which chunks have the same form. `error` as in chat."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]
    timings: NotRequired[TimingsObject]
    error: NotRequired[ErrorObject]


# --- Responses ---------------------------------------------------------------------------------------
# Source: OpenAI API reference, Responses, and the types of openai-python 3.57. These know one event less
# (`response.cancelled`) and one key less (`name` of `response.function_call_arguments.done`).

ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
IncompleteReason: TypeAlias = Literal["max_output_tokens", "content_filter"]
ResponseErrorCode: TypeAlias = Literal["server_error", "rate_limit_exceeded"]
"""Those of the public codes that we use: a code outside OpenAI's enum fails strict clients."""
RunningEventName: TypeAlias = Literal["response.queued", "response.in_progress"]
TerminalEventName: TypeAlias = Literal[
    "response.completed", "response.incomplete", "response.failed", "response.cancelled"
]


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """All five parts are required wherever there is a usage."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: ResponseErrorCode
    message: str


class IncompleteDetails(TypedDict):
    reason: IncompleteReason


class TopLogprob(TypedDict):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[TokenLogprob]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    summary: list[object]
    content: list[ReasoningText]
    status: ItemStatus


class FunctionCallItem(TypedDict):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem


class ResponseObject(TypedDict):
    """Every key is there, null where there is nothing to say: typed clients fail on a missing one."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: object
    max_output_tokens: object
    max_tool_calls: object
    metadata: object
    model: str
    output: list[OutputItem]
    parallel_tool_calls: object
    previous_response_id: object
    prompt_cache_key: object
    reasoning: object
    safety_identifier: object
    service_tier: object
    store: object
    temperature: object
    text: object
    tool_choice: object
    tools: object
    top_logprobs: object
    top_p: object
    truncation: object
    usage: ResponseUsage | None
    user: object


class LifecycleEvent(TypedDict):
    type: Literal["response.created"] | RunningEventName | TerminalEventName
    response: ResponseObject
    sequence_number: int


class ItemEvent(TypedDict):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem
    sequence_number: int


class PartEvent(TypedDict):
    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText
    sequence_number: int


class TextDeltaEvent(TypedDict):
    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[TokenLogprob]
    sequence_number: int


class TextDoneEvent(TypedDict):
    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[TokenLogprob]
    sequence_number: int


class ReasoningDeltaEvent(TypedDict):
    type: Literal["response.reasoning_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    sequence_number: int


class ReasoningDoneEvent(TypedDict):
    type: Literal["response.reasoning_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    sequence_number: int


class ArgumentsDeltaEvent(TypedDict):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str
    sequence_number: int


class ArgumentsDoneEvent(TypedDict):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str
    sequence_number: int


class ErrorEvent(TypedDict):
    """The documented flat form, and the same nested: each alone is missed by half of the clients."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None
    error: ErrorObject
    sequence_number: int


ResponseEvent: TypeAlias = (
    LifecycleEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
    | ErrorEvent
)
