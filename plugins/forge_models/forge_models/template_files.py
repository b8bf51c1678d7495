"""Whether a model's tokenizer can render chats, judged by its files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import DataError
from forge_models.folder import TOKENIZER_FILES

if TYPE_CHECKING:
    from forge_core import ModelSection, Task

FILES = ("chat_template.jinja", "chat_template.json")
"""Where a template may be, beside ``tokenizer_config.json`` and ``additional_chat_templates/``."""


def check_prompts(model: ModelSection, tasks: Sequence[Task]) -> None:
    """Refuse prompts that are chats where the model's tokenizer has no chat template.

    Raises:
        DataError: names the first such task.
    """
    chat = next((task for task in tasks if not isinstance(task.prompt, str)), None)
    if chat is not None and lacks_chat_template(model):
        raise DataError(
            f"the prompt of task {chat.id!r} is a chat, but the model's tokenizer has no chat "
            "template; use plain prompts or another model"
        )


def lacks_chat_template(model: ModelSection) -> bool:
    """Whether the model's tokenizer has no chat template; False where that is not known yet."""
    if model.init is not None:
        return True  # a tokenizer of characters
    folder = model.path or Path(model.name)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return False
    if any((folder / name).is_file() for name in FILES):
        return False
    if any((folder / "additional_chat_templates").glob("*.jinja")):
        return False
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False  # loading the tokenizer says what is wrong with the file
    return not (isinstance(config, dict) and config.get("chat_template"))
