#!/usr/bin/env bash
# Make (or bring up to date) the virtual environment .venv with Forge and its plugins.
# With --engines also vLLM, TorchTitan, Monarch and TorchStore: their CPU builds on a machine without
# an NVIDIA GPU, about 3.5 GB in all.
# FORGE_VENV names another folder, PYTHON another interpreter.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
files=(requirements/workspace.txt)
case "$*" in
    "") ;;
    --engines)
        if has_nvidia_gpu; then say "an NVIDIA GPU: engines for CUDA"; else say "no NVIDIA GPU: engines for CPU"; fi
        files+=("$(engines_file)")
        ;;
    *) die "install.sh takes --engines or nothing, not: $*" ;;
esac
install_workspace "${files[@]}"
say "installed: source ${FORGE_VENV#"$PWD"/}/bin/activate, then: forge doctor"
