#!/usr/bin/env bash
# Everything that needs a CUDA device, in one command of at most nine minutes: the tests marked gpu,
# then the GPU benchmarks, each in a process of its own with a time limit. Needs a Python with torch
# and transformers, and no network: what else is missing is taken from the folder gpu-wheels, which
# scripts/gpu-wheels.sh fills. Makes no environment and installs nothing.
#     bash scripts/gpu.sh [--out FOLDER] [--tiny] [PART ...]
# --tiny tries everything at small sizes on the CPU. Parts: python benchmarks/gpu.py --help
# Another interpreter: PYTHON=/path/to/python3; another folder of wheels: FORGE_WHEELS=FOLDER
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
path="$("$python" "$root/scripts/gpu_site.py" --target "$site" --wheels "${FORGE_WHEELS:-$root/gpu-wheels}")"
PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" "$python" "$root/benchmarks/gpu.py" "$@"
