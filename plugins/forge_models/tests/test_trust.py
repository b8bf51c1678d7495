"""What a model folder may do: its code and its pickles are left alone unless they are asked for."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forge_core import DataError, Forge, Message, ModelSection, PromptRefused
from forge_models.chat_template import render
from forge_models.folder import check_folder, load_model, load_tokenizer, materialize
from forge_testing.command import process_environ, run_in_process
from forge_testing.foreign_code import with_foreign_model, with_foreign_tokenizer
from forge_testing.runs import small_config
from forge_testing.shapes import tiny_shape

ROOT = Path(__file__).parents[3]
KEY = "set model.trust_remote_code=true if you trust it"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "ran.txt"


@pytest.fixture
def foreign(tiny_model: Path, tmp_path: Path, marker: Path) -> Path:
    return with_foreign_model(tiny_model, tmp_path / "foreign", marker)


@pytest.fixture(scope="module")
def arcee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a type that transformers has no tokenizer for, so that it would ask for the folder's."""
    init = {"architecture": "arcee", "config": tiny_shape(), "characters": "0123456789+="}
    section = ModelSection.model_validate({"init": init})
    return materialize(section, tmp_path_factory.mktemp("arcee"), seed=0)


def _refused(*command: str, cwd: Path) -> str:
    """The one line of a ``forge`` command that is answered "y" whatever it asks."""
    done = subprocess.run(
        [sys.executable, "-m", "forge_core", *command],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=process_environ(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "Traceback" not in done.stderr
    return line


@pytest.mark.parametrize(
    "command",
    [
        ("run", "quickstart", "--dry-run", "model.init=null", "model.path=foreign"),
        ("run", "quickstart", "model.init=null", "model.path=foreign"),
        ("plan", "quickstart", "model.init=null", "model.path=foreign"),
        ("generate", "foreign", "1+1="),
        ("chat", "foreign"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_a_command_refuses_a_folder_that_needs_code(
    foreign: Path, tmp_path: Path, marker: Path, command: tuple[str, ...]
) -> None:
    line = _refused(*command, cwd=tmp_path)
    assert "model folder foreign: needs Python code that comes with it" in line
    assert "modeling_foreign.ForeignConfig" in line
    assert KEY in line
    assert not marker.exists()


def test_a_tokenizer_s_code_does_not_run_whatever_is_answered(
    arcee: Path, tmp_path: Path, marker: Path
) -> None:
    folder = with_foreign_tokenizer(arcee, tmp_path / "foreign", marker)
    dry_run = ("run", "quickstart", "--dry-run", "model.init=null", "model.path=foreign")
    for command in (("generate", "foreign", "1+1="), dry_run):
        line = _refused(*command, cwd=tmp_path)
        assert "model folder foreign: needs Python code that comes with it" in line
        assert KEY in line
        assert not marker.exists()
    tokenizer = load_tokenizer(folder, trust_remote_code=True)
    assert type(tokenizer).__name__ == "ForeignTokenizer"
    assert marker.exists()


def test_code_that_is_trusted_runs(foreign: Path, marker: Path, tiny_model: Path) -> None:
    for load in (check_folder, load_model):
        with pytest.raises(DataError, match=r"model\.trust_remote_code=true"):
            load(foreign)
    assert not marker.exists()
    model = load_model(foreign, trust_remote_code=True)
    assert type(model).__name__ == "ForeignModel"
    assert marker.exists()
    expected = load_model(tiny_model).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_code_beside_a_model_that_transformers_has_is_left_alone(
    foreign: Path, marker: Path
) -> None:
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    assert type(load_model(foreign)).__name__ == "Qwen3ForCausalLM"
    load_tokenizer(foreign)
    assert not marker.exists()


def test_a_kernel_of_a_hub_is_code(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["attn_implementation"] = "somebody/kernel"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"kernel 'somebody/kernel'.*trust_remote_code=true"):
        load_model(folder)


@pytest.mark.parametrize("sharded", [False, True])
def test_pickled_weights_are_read_only_if_allowed(
    tiny_model: Path, tmp_path: Path, sharded: bool
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if sharded:
        torch.save(weights, folder / "pytorch_model-00001-of-00001.bin")
        names = dict.fromkeys(weights, "pytorch_model-00001-of-00001.bin")
        index = {"metadata": {}, "weight_map": names}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    for load in (check_folder, load_model):
        with pytest.raises(DataError, match=r"pickled.*set model\.allow_pickle=true") as raised:
            load(folder)
        assert "\n" not in str(raised.value)
    loaded = load_model(folder, allow_pickle=True).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


class _Code:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def test_a_pickle_that_is_code_does_not_run_even_if_pickles_are_allowed(
    tiny_model: Path, tmp_path: Path, marker: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Code(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="hold more than tensors, and are not read"):
        load_model(folder, allow_pickle=True)
    assert not marker.exists()


def test_a_chat_template_is_rendered_in_a_sandbox(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    for attack in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
    ):
        tokenizer.chat_template = attack
        with pytest.raises(PromptRefused, match="unsafe"):
            render([Message("user", "hello")], tokenizer)


def _calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Every call in the packages' code: file, call, and the last part of what is called."""
    packages = [ROOT / "forge_core", ROOT / "benchmarks", *(ROOT / "plugins").glob("*/forge_*")]
    for file in [path for package in packages for path in package.rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file, node, ast.unparse(node.func)


def test_every_place_that_loads_a_model_says_whether_code_may_run() -> None:
    loads = [
        (file, call, name)
        for file, call, name in _calls()
        if name.startswith("Auto") and name.endswith((".from_pretrained", ".from_config"))
    ]
    assert len(loads) > 5
    for file, call, name in loads:
        given = [keyword.arg for keyword in call.keywords]
        assert "trust_remote_code" in given, f"{file}:{call.lineno}: {name}"


def test_templates_are_rendered_in_one_place() -> None:
    """By transformers, whose environment is the sandbox that is tested above."""
    renders = {file for file, _, name in _calls() if name.endswith("apply_chat_template")}
    assert renders == {ROOT / "plugins" / "forge_models" / "forge_models" / "chat_template.py"}
    assert not [file for file, _, name in _calls() if name.startswith(("jinja2.", "Template"))]


def test_no_text_is_ever_evaluated() -> None:
    """Neither a dataset's nor a model's: a reward that runs programs has to start them itself."""
    names = ("eval", "exec", "os.system", "yaml.load", "yaml.unsafe_load", "yaml.full_load")
    found = [f"{file}:{call.lineno}" for file, call, name in _calls() if name in names]
    assert not found


def test_every_torch_load_takes_tensors_only() -> None:
    loads = [(file, call) for file, call, name in _calls() if name == "torch.load"]
    assert loads
    for file, call in loads:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("weights_only") == "True", f"{file}:{call.lineno}"


def test_a_run_with_trusted_code_trains_and_its_checkpoint_asks_again(
    foreign: Path, tmp_path: Path, marker: Path
) -> None:
    """Two stages, so that the second loads what the first has saved, code included."""
    training = {"steps": 1, "batch_size": 4}
    stages = {
        "sft": {"recipe": {"use": "sft"}, "training": training},
        "grpo": {"recipe": {"use": "grpo", "group_size": 2}, "training": training},
    }
    config: dict[str, Any] = small_config(
        model={"path": str(foreign), "trust_remote_code": True},
        checkpointing={"output_dir": str(tmp_path / "runs")},
        trackers={"console": None},
        stages=stages,
    )
    run = Forge().run(config).folder
    assert marker.exists()
    marker.unlink()
    line = _refused("generate", str(run), "1+1=", cwd=tmp_path)
    assert KEY in line
    assert not marker.exists()
    asked = run_in_process("generate", str(run), "1+1=", "model.trust_remote_code=true")
    assert asked.exit_code == 0, asked.stderr
    assert marker.exists()


PICKLES = ("pickle", "cloudpickle", "dill", "marshal", "joblib", "shelve")
UNPICKLES = {
    "forge_rewards/process.py",
    "forge_rewards/child.py",
    "forge_local/rank.py",
    "forge_local/wire.py",
    "forge_local/worker.py",
    "forge_monarch/rank.py",
    "forge_monarch/ranks.py",
    "forge_titan/safe_state.py",
    "forge_torch/transports/device_buffers.py",
    "forge_vllm/worker_extension.py",
}


def test_every_place_that_unpickles_stands_in_the_threat_model() -> None:
    """A new one is a new way in: say in SECURITY.md who can reach it."""
    found = set()
    for file, _, name in _calls():
        module, _, function = name.rpartition(".")
        loads = module in PICKLES and function in ("load", "loads")
        if loads or "Unpickler" in name:
            path = file.relative_to(ROOT)
            found.add("/".join(path.parts[2:] if path.parts[0] == "plugins" else path.parts))
    assert {path for path in found if "forge_testing/" not in path} == UNPICKLES
    page = (ROOT / "SECURITY.md").read_text()
    for path in UNPICKLES:
        assert f"`{Path(path).stem}`" in page or path.removesuffix(".py") in page, path
