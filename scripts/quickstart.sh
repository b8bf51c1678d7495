#!/usr/bin/env bash
# From a fresh clone to a model that visibly learns: install, then run preset quickstart.
# Arguments go to `forge run quickstart`, such as training.seed=1.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_workspace requirements/workspace.txt
say "forge run quickstart $*"
# One thread: the model is tiny, and threads that wait for one another cost more than they bring.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$FORGE_VENV/bin/forge" run quickstart "$@"
