"""A model folder is made, checked and loaded, and says in one line what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from forge_core import ConfigError, DataError, ModelInit, ModelSection
from forge_models.folder import check_folder, load_model, load_tokenizer, materialize

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "rope_theta": 5000.0,
}


def _section(**changes: object) -> ModelSection:
    init = {"config": TINY, "characters": "0123456789+= \n", **changes}
    return ModelSection(init=ModelInit(**init))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return materialize(_section(), tmp_path_factory.mktemp("model") / "m", seed=3)


def test_init_makes_a_folder_that_transformers_loads(made: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(made)
    assert model.config.vocab_size == 16
    assert model.config.rope_parameters["rope_theta"] == 5000.0
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)


def test_the_seed_decides_the_weights_and_nothing_else_does(made: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    again = materialize(_section(), tmp_path / "again", seed=3)
    assert torch.equal(state, torch.random.get_rng_state())
    other = materialize(_section(), tmp_path / "other", seed=4)
    named = materialize(_section(seed=3), tmp_path / "named", seed=4)
    digests = [(f / "model.safetensors").read_bytes() for f in (made, again, named, other)]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_the_tokenizer_is_one_token_a_character_and_comes_back(made: Path) -> None:
    tokenizer = load_tokenizer(made)
    ids = tokenizer("12 + 3=\n")["input_ids"]
    assert len(ids) == 8
    assert tokenizer.decode([*ids, 1], skip_special_tokens=True) == "12 + 3=\n"
    with pytest.raises(Exception, match="UNK"):
        tokenizer("12x")


def test_a_path_is_checked_and_returned(made: Path) -> None:
    assert materialize(ModelSection(path=made), Path("unused"), seed=0) == made
    assert materialize(ModelSection(name=str(made)), Path("unused"), seed=0) == made
    assert not Path("unused").exists()


def test_load_model_gives_type_and_weights(made: Path) -> None:
    model = load_model(made, "bfloat16")
    assert model.dtype == torch.bfloat16
    assert not model.training


def _without(made: Path, folder: Path, *names: str) -> Path:
    folder.mkdir()
    for file in made.iterdir():
        if file.name not in names:
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_an_incomplete_folder_names_what_is_missing(
    made: Path, tmp_path: Path, missing: str, message: str
) -> None:
    folder = _without(made, tmp_path / "m", missing)
    with pytest.raises(DataError, match=message) as raised:
        materialize(ModelSection(path=folder), tmp_path, seed=0)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_lacking_shard_is_named(made: Path, tmp_path: Path) -> None:
    folder = _without(made, tmp_path / "m", "model.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    missing = r"model-00001-of-00002\.safetensors, named in .*, is missing"
    with pytest.raises(DataError, match=missing):
        check_folder(folder)


def test_an_unknown_model_type_is_refused_with_the_near_one(made: Path, tmp_path: Path) -> None:
    folder = _without(made, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen33"}))
    with pytest.raises(DataError, match=r"'qwen33'.*did you mean qwen3"):
        check_folder(folder)


def test_weights_that_do_not_fit_the_config_are_refused(made: Path, tmp_path: Path) -> None:
    folder = _without(made, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    config["layer_types"] = ["full_attention"] * 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"weights have no model\.layers\.2"):
        load_model(folder)


def test_a_truncated_weight_file_is_one_line(made: Path, tmp_path: Path) -> None:
    folder = _without(made, tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="model folder") as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        (ModelSection(), ConfigError, "give path"),
        (ModelSection(name="Qwen/Qwen3-0.6B"), DataError, "download it first"),
        (ModelSection(path=Path("nowhere")), DataError, "no such folder"),
    ],
)
def test_a_section_without_a_folder_says_what_to_do(
    section: ModelSection, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        materialize(section, tmp_path, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"hidden_sise": 32}}, "hidden_sise.*did you mean hidden_size"),
        ({"config": {"hidden_size": "many"}}, "hidden_size"),
        ({"config": {**TINY, "num_attention_heads": 0}}, "model.init.config"),
        ({"config": {"vocab_size": 5}}, "vocab_size"),
        ({"architecture": "qwen33"}, "qwen33"),
        ({"characters": "aba"}, "'a' is in it twice"),
        ({"characters": ""}, "empty"),
    ],
)
def test_a_wrong_init_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        materialize(_section(**changes), tmp_path / "m", seed=0)
