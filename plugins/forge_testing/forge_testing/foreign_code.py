"""Model folders that bring Python code with them, as some on hubs do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_MODULE = """
from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM

with Path({marker!r}).open("a") as marker:
    marker.write("ran\\n")


class ForeignConfig(Qwen3Config):
    model_type = "foreign"


class ForeignModel(Qwen3ForCausalLM):
    config_class = ForeignConfig
"""

_TOKENIZER = """
from pathlib import Path

from transformers import PreTrainedTokenizerFast

with Path({marker!r}).open("a") as marker:
    marker.write("ran\\n")


class ForeignTokenizer(PreTrainedTokenizerFast):
    pass
"""


def with_foreign_model(source: Path, folder: Path, marker: Path) -> Path:
    """A copy of a Qwen3 folder whose model type only its own code knows.

    Args:
        source: a Qwen3 model in Hugging Face layout.
        folder: is made.
        marker: gets a line each time the code runs.
    """
    shutil.copytree(source, folder)
    (folder / "modeling_foreign.py").write_text(_MODULE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "foreign"
    config["auto_map"] = {
        "AutoConfig": "modeling_foreign.ForeignConfig",
        "AutoModelForCausalLM": "modeling_foreign.ForeignModel",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_foreign_tokenizer(source: Path, folder: Path, marker: Path) -> Path:
    """A copy of a folder whose model transformers knows, and whose tokenizer only its own code.

    Args:
        source: a Llama-like model in Hugging Face layout.
        folder: is made.
        marker: gets a line each time the code runs.
    """
    shutil.copytree(source, folder)
    (folder / "tokenization_foreign.py").write_text(_TOKENIZER.format(marker=str(marker)))
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["tokenizer_class"] = "ForeignTokenizer"
    config["auto_map"] = {"AutoTokenizer": [None, "tokenization_foreign.ForeignTokenizer"]}
    file.write_text(json.dumps(config))
    return folder
