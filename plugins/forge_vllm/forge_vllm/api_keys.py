"""Keys that clients of an address have to show: from a file or the environment, never the config.

A config is written to the run folder, and a command line can be read by every user of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_core import ConfigError

NAMES = ("api_key_file", "api_key_env")
"""Keys of ``generator.serve`` beside vLLM's own."""

INSTEAD = (
    "a config is written to the run folder and a command line is seen by others; put the key into "
    "a file (api_key_file) or an environment variable (api_key_env)"
)


def check_sources(serve: Mapping[str, Any]) -> None:
    """Refuse sources of keys that cannot be read, as far as that is known before a start.

    Raises:
        ConfigError: both are given, one is no text, or there is no such file.
    """
    given = [name for name in NAMES if serve.get(name) is not None]
    if len(given) > 1:
        raise ConfigError("generator.serve: give api_key_file or api_key_env, not both")
    for name in given:
        if not isinstance(serve[name], str) or not serve[name]:
            raise ConfigError(f"generator.serve.{name}: must be text")
    if "api_key_file" in given:
        read_keys(serve)


def read_keys(serve: Mapping[str, Any]) -> list[str]:
    """The keys, read where the server lives; vLLM's ``VLLM_API_KEY`` where nothing is said.

    Raises:
        ConfigError: the file or the variable is not there, or holds no key.
    """
    if (file := serve.get("api_key_file")) is not None:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigError(f"generator.serve.api_key_file: {file}: {why}") from None
        where = f"api_key_file: {file}"
    elif (variable := serve.get("api_key_env")) is not None:
        text, where = os.environ.get(variable, ""), f"api_key_env: {variable}"
    elif not (text := os.environ.get("VLLM_API_KEY", "")):
        return []
    else:
        where = "VLLM_API_KEY"
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise ConfigError(f"generator.serve.{where}: holds no key")
    return keys
