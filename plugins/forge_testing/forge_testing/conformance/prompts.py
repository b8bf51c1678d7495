"""What a prompt may be, checked for datasets and environments alike."""

from __future__ import annotations

from typing import get_args

from forge_core import Message, Role


def check_prompt(prompt: object, where: str) -> None:
    """A prompt is text that is not empty, or a tuple of messages for the policy to answer.

    Raises:
        AssertionError: it is something else; says where.
    """
    if isinstance(prompt, str):
        assert prompt, f"{where}: the prompt is empty"
        return
    assert isinstance(prompt, tuple), f"{where}: a prompt is a text or a tuple, not {prompt!r}"
    assert prompt, f"{where}: the prompt has no message"
    for message in prompt:
        assert isinstance(message, Message), f"{where}: {message!r} is no Message"
        assert message.role in get_args(Role), f"{where}: there is no role {message.role!r}"
        assert isinstance(message.content, str), f"{where}: {message.content!r} is no text"
    assert prompt[-1].role != "assistant", f"{where}: the last message is the policy's own"
