"""Settings that hold a secret: a config is written to the run folder as it stands."""

from __future__ import annotations

import re
from typing import get_args

from pydantic import BaseModel, SecretBytes, SecretStr

_SECRET_SETTING = re.compile(
    r"(^|_)(api_key|access_key|secret_key|(api|access|auth|bearer)_token|secret|password|passwd|"
    r"credentials)$",
    re.IGNORECASE,
)
"""Narrower than for variables: ``token`` and ``key`` mean other things in settings."""


def secret_setting(settings: type[BaseModel]) -> str | None:
    """The first setting that holds a secret itself, by its type or name; None: there is none."""
    for name, field in settings.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        if kinds & {SecretStr, SecretBytes} or (str in kinds and _SECRET_SETTING.search(name)):
            return name
    return None
