"""README names what there is: options, routes, and what is accepted without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.config import OPTIONS, Option
from serve.exchange import Route
from serve.parse import completion_fields, message_fields, message_tools
from serve.parse.response_fields import NO_EFFECT, NO_EFFECT_INCLUDES, SUPPORTED
from serve.parse.tools import NO_EFFECT_TOOLS
from serve.server import Handler

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*NO_EFFECT, *NO_EFFECT_INCLUDES, *NO_EFFECT_TOOLS, *SUPPORTED}))
def test_every_field_of_responses_is_named(name: str) -> None:
    assert f"`{name}`" in README or f"`{name}: " in README or f"`{name}." in README


MESSAGES = (
    *message_fields.SUPPORTED,
    *message_fields.NO_EFFECT,
    *message_fields.REFUSED,
    *message_tools.NO_EFFECT_TOOLS,
    *message_tools.UNDATED_TOOLS,
)


@pytest.mark.parametrize("name", sorted({*MESSAGES}))
def test_every_field_of_messages_is_named(name: str) -> None:
    section = README.partition("\n## Messages\n")[2].partition("\n## ")[0]
    assert f"`{name}`" in section


COMPLETIONS = (
    *completion_fields.SUPPORTED,
    *completion_fields.NO_EFFECT,
    *completion_fields.REFUSED,
    *completion_fields.MOVED,
)


@pytest.mark.parametrize("name", sorted(COMPLETIONS))
def test_every_field_of_completions_is_named(name: str) -> None:
    section = README.partition("\n## Completions\n")[2].partition("\n## ")[0]
    assert f"`{name}`" in section


@pytest.mark.parametrize("option", OPTIONS, ids=[option.name for option in OPTIONS])
def test_every_option_is_named(option: Option) -> None:
    assert f"--{option.name}" in README


@pytest.mark.parametrize("route", Handler.routes, ids=[route.path for route in Handler.routes])
def test_every_route_is_named(route: Route) -> None:
    assert route.path == "/" or route.path in README
