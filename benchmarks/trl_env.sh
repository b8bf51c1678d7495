#!/usr/bin/env bash
# Make the virtual environment in which the TRL and hand-written peers run.
#
#   benchmarks/trl_env.sh [FOLDER]        (default: .venv-trl beside this script)
#
# A second call finds the stamp of the same requirements and returns at once. torch is
# installed first and pinned, so that nothing installed afterwards can move it. Where pip's
# configuration does not already offer a CPU build, name PyTorch's own index to avoid the
# CUDA libraries:  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${1:-$here/.venv-trl}"
python="${PYTHON:-python3}"
torch="torch==2.13.0"
packages=("trl==1.16.*" "transformers" "accelerate" "datasets" "tokenizers" "numpy")
wanted="$torch ${packages[*]}"
stamp="$venv/.forge-benchmark-requirements"

if [[ -x "$venv/bin/python" && -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    exit 0
fi

[[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "$torch"
"$venv/bin/python" -m pip install --quiet "$torch" "${packages[@]}"
"$venv/bin/python" -c 'import datasets, torch, transformers, trl'
printf '%s' "$wanted" > "$stamp"
