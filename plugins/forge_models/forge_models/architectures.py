"""The causal language models that the installed transformers knows, read from its source.

Importing the module that lists them takes seconds, and ``forge run --dry-run`` has no other use for
it.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"


@cache
def causal_language_models() -> Mapping[str, str]:
    """Model type -> name of its class, such as ``llama`` -> ``LlamaForCausalLM``."""
    spec = importlib.util.find_spec("transformers")
    if spec is not None and spec.origin is not None:
        source = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
        if source.is_file():
            for node in ast.parse(source.read_text(encoding="utf-8")).body:
                found = _table(node)
                if found:
                    return found
    # Another layout than that of the releases we know: ask transformers itself.
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, TABLE))


def _table(node: ast.stmt) -> dict[str, str]:
    """The entries of ``TABLE = OrderedDict([(type, class), ...])``; none for another statement."""
    if not (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == TABLE
        and isinstance(node.value, ast.Call)
        and node.value.args
    ):
        return {}
    try:
        return dict(ast.literal_eval(node.value.args[0]))
    except (ValueError, TypeError):
        return {}
