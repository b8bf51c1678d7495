"""Chat messages and tools as files write them, in the form of OpenAI or of transformers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, get_args

from forge_core import DataError, Message, Role

ROLES: tuple[str, ...] = get_args(Role)


def parse_message(item: object, where: str, *, ignore: Collection[str] = ()) -> Message:
    """One message. Keys beside ``role`` and ``content`` are kept for the chat template; null and
    what is empty counts as missing.

    Args:
        item: from JSON. Arguments of tool calls may be JSON text, as OpenAI writes them; templates
            want the object.
        where: for errors.
        ignore: keys to leave out.

    Raises:
        DataError: it is not a message; says where.
    """
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise DataError(_needed(where))
    extra = {
        key: value
        for key, value in item.items()
        if key not in ("role", "content") and key not in ignore and value not in (None, "", [], {})
    }
    if "tool_calls" in extra:
        extra["tool_calls"] = _tool_calls(extra["tool_calls"], where)
    content = item.get("content")
    if content is None and "tool_calls" in extra:
        content = ""
    if not isinstance(content, str):
        raise DataError(_needed(where))
    return Message(item["role"], content, extra)


def parse_tools(value: object, where: str) -> tuple[Mapping[str, Any], ...]:
    """Tools: a list of JSON schemas of functions, or JSON text of one.

    Raises:
        DataError: it is something else; says where.
    """
    tools = _from_json_text(value)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(f"{where} must be a list of JSON schemas of functions")
    return tuple(tools)


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DataError(f"{where}: 'tool_calls' must be a list of objects")
    parsed = []
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(f"{where}: each of 'tool_calls' needs a function with a name")
        arguments = _from_json_text(function.get("arguments") or {})
        if not isinstance(arguments, dict):
            raise DataError(f"{where}: the arguments of {function['name']!r} must be a JSON object")
        function = {**function, "arguments": arguments}
        parsed.append({**call, "function": function} if "function" in call else function)
    return parsed


def _from_json_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed


def _needed(where: str) -> str:
    return (
        f"{where} needs a role ({', '.join(ROLES)}) and a content that is text "
        "(null only beside tool_calls)"
    )
