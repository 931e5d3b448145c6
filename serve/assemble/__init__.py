"""From token ids to the pieces of an answer: text, reasoning, tool calls. Pure; it does no I/O and keeps no clock."""

from serve.assemble.config import ParseConfig, ToolSpec
from serve.assemble.stream import TokenBytes, assemble

__all__ = ["ParseConfig", "TokenBytes", "ToolSpec", "assemble"]
