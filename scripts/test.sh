#!/usr/bin/env bash
# Lint, format, types and all tests, in an environment of their own making (engines included).
# Arguments go to pytest, such as: bash scripts/test.sh tests/config -k explain
# Without arguments, what needs no torch is also tested on the other Pythons (scripts/pythons.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_workspace requirements/workspace.txt "$(engines_file)" requirements/dev.txt
cd "$FORGE_ROOT"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PATH="$FORGE_VENV/bin:$PATH"
# The tests' processes are more than the cores: threads that wait must not spin.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
say "ruff"
ruff check .
ruff format --check .
say "mypy"
mypy
[ $# -gt 0 ] || bash scripts/pythons.sh
say "pytest"
# Two files at a time: much of a test is waiting for a process that starts or for one that is to die.
exec pytest -n 2 --dist loadfile "$@"
