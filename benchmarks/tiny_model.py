"""Build the model folder that all peers load: a tiny Qwen3 and a character tokenizer.

    python tiny_model.py FOLDER

The model has about 0.8 million parameters, random weights from a fixed seed, and tied word
embeddings. Its completions have geometric lengths of mean `MEAN_COMPLETION_TOKENS`, by
construction: channel 0 of the residual stream is written by the embeddings only, and holds the
same value for every character. So after the final norm it acts as a bias of the output head,
and channel 0 of a token's embedding row sets that token's logit: chosen for the end of sequence
such that its mean probability over random text is 1/35, and very low for the padding token.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from workloads import MEAN_COMPLETION_TOKENS, SEED

PAD, EOS = "<pad>", "<eos>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
assert set(string.ascii_letters + string.digits) <= set(CHARACTERS)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the printable ASCII characters and the line feed."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 with the calibrated end-of-sequence probability."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = config.initializer_range
        for token, bias in ((tokenizer.eos_token_id, 0.0), (tokenizer.pad_token_id, -20.0)):
            embedding[token] = 0.0
            embedding[token, 0] = bias
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        embedding[tokenizer.eos_token_id, 0] = _eos_weight(model, tokenizer.eos_token_id)
    return model


def _eos_weight(model: Qwen3ForCausalLM, eos: int) -> float:
    """Bisect for the embedding weight which gives the wanted mean end-of-sequence probability."""
    ids = torch.randint(eos + 1, model.config.vocab_size, (64, 64))
    hidden = model.model(input_ids=ids).last_hidden_state
    logits = model.lm_head(hidden)
    low, high = 0.0, 10.0
    while high - low > 1e-6:
        weight = (low + high) / 2
        logits[..., eos] = weight * hidden[..., 0]
        probability = logits.softmax(-1)[..., eos].mean().item()
        low, high = (weight, high) if probability < 1 / MEAN_COMPLETION_TOKENS else (low, weight)
    return weight


def build(folder: str | Path) -> None:
    """Save the model and its tokenizer into the folder."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    build(folder)
    print(folder)


if __name__ == "__main__":
    main()
