#!/usr/bin/env bash
# The chaos campaign (docs/reliability.md): runs are killed, starved, damaged and lied to by the seed.
#   scripts/chaos.sh                          the cases of CI
#   scripts/chaos.sh --times 10               ten times as many
#   scripts/chaos.sh --hours 8 --seed 7       as many as fit, from another seed
#   scripts/chaos.sh --area crashes --case 5  one case again
# Exit code 0: nothing was wrong. --help lists areas and options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_workspace requirements/workspace.txt requirements/dev.txt
cd "$FORGE_ROOT"
exec "$FORGE_VENV/bin/python" -m tests.chaos "$@"
