#!/usr/bin/env bash
# Make (or bring up to date) the virtual environment .venv with Forge and its plugins.
# FORGE_VENV names another folder, PYTHON another interpreter.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_workspace requirements/workspace.txt
say "installed: source ${FORGE_VENV#"$PWD"/}/bin/activate, then: forge doctor"
