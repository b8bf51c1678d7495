#!/usr/bin/env bash
# Tests that need no torch, on each supported Python that this machine has, except the one in .venv.
# Makes a small environment for each, .venv-3.12 and so on: the kernel and the default plugins
# without torch. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$FORGE_ROOT"

TORCH_FREE=(
    tests/config tests/plugins
    plugins/forge_local/tests plugins/forge_rewards/tests plugins/forge_run/tests
    plugins/forge_doctor/tests plugins/forge_rollouts/tests plugins/forge_services/tests
    plugins/forge_console/tests plugins/forge_sft/tests/test_jsonl.py
    plugins/forge_grpo/tests/test_arithmetic.py plugins/forge_grpo/tests/test_rewards.py
)
# Of these, what imports torch or uses a model; forge doctor's own tests, which want an environment
# with everything in it; and those of forge model, which opens what it has made.
HEAVY='(import|from) (torch|transformers|safetensors)|forge_models|forge_tensors|tiny_model'
mapfile -t need_torch < <(grep -rlE --include='*.py' "$HEAVY" "${TORCH_FREE[@]}")
need_torch+=(tests/plugins/test_doctor.py plugins/forge_run/tests/test_model_command.py)

# Make the environment, unless it is there and nothing has changed since.
install_light() {
    local python=$1 venv=$2 wanted plugins
    wanted="$("$python" --version) $(cat pyproject.toml plugins/*/pyproject.toml requirements/*.txt scripts/*.sh | cksum) $FORGE_ROOT"
    [ "$(cat "$venv/.forge-installed" 2>/dev/null)" = "$wanted" ] && return
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "could not make a virtual environment with $python"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    "$venv/bin/pip" install -q -c requirements/constraints.txt -e . -e plugins/forge_local -e plugins/forge_rewards -e plugins/forge_services \
        -e plugins/forge_testing \
        editables hatchling jsonschema math-verify pytest-xdist || die "installation failed"
    # The plugins that are installed by default, without what they need.
    mapfile -t plugins < <(grep -oE '^-e plugins/\S+' requirements/workspace.txt | tr ' ' '\n')
    "$venv/bin/pip" install -q --no-deps --no-build-isolation "${plugins[@]}" \
        || die "installation failed"
    printf '%s\n' "$wanted" > "$venv/.forge-installed"
}

main_version="$("$FORGE_VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)"
for version in $PYTHON_VERSIONS; do
    [ "$version" = "$main_version" ] && continue
    if ! python="$(python_of "$version")"; then
        say "Python $version: not on this machine, so nothing was tested with it"
        continue
    fi
    say "Python $version ($python): tests that need no torch"
    venv="$FORGE_VENV-$version"
    install_light "$python" "$venv"
    PATH="$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider \
        "${TORCH_FREE[@]}" "${need_torch[@]/#/--ignore=}" "$@"
done
