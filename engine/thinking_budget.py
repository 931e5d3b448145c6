"""What servers of chat completions call the most tokens of thinking: llama.cpp and vLLM; others have no word for it.

It reads and writes a request body's fields; it owns no connection.

Source: llama.cpp build 11549 as seen on 2026-11-30 (`reasoning_budget_tokens` and `thinking_budget_tokens` are one
field: -1 is no limit, less is 400, the end that it puts in counts as completion tokens; `reasoning_budget`,
`thinking_budget` and `thinking_token_budget` change nothing); vLLM vllm/sampling_params.py and
v1/engine/input_processor.py (`thinking_token_budget`, at least 0; a server without a reasoning parser refuses every
request that has it), 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.prompt_count import LLAMA, VLLM

NAMES = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")
"""The names that a request may use; the first one that is there counts."""


def with_budget(body: Mapping[str, object], owner: object, budget: int | None) -> dict[str, object]:
    """The body with its budget under the server's own name. `owner` is the `owned_by` of the server's models; a server
    of another kind gets the body as it came. `budget` is one that the body does not have: it goes to llama.cpp only,
    because clients send it by habit, and vLLM may refuse it."""
    given = next((body[name] for name in NAMES if body.get(name) is not None), None)
    rest = {name: value for name, value in body.items() if name not in NAMES}
    if owner == LLAMA:
        most = budget if given is None else given
        return rest if most is None else {**rest, NAMES[0]: most}
    if owner == VLLM and given is not None:
        return rest if given == -1 else {**rest, NAMES[2]: given}
    return dict(body)
