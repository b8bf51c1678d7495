#!/usr/bin/env bash
# Fetch the small packages that scripts/gpu.sh needs, as wheels for a machine without a network:
#     bash scripts/gpu-wheels.sh [FOLDER]        # default: gpu-wheels; about 15 MB
# For CPython 3.12 on x86-64 Linux; another: PYTHON_VERSION=3.13 bash scripts/gpu-wheels.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder="${1:-$FORGE_ROOT/gpu-wheels}"
version="${PYTHON_VERSION:-3.12}"
python=python3
[ -x "$FORGE_VENV/bin/python" ] && python="$FORGE_VENV/bin/python"
python="${PYTHON:-$python}"

platforms=()
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64)

rm -rf "$folder.new"
mkdir -p "$folder.new"
"$python" -m pip download -q --disable-pip-version-check --only-binary=:all: \
    --python-version "$version" --implementation cp "${platforms[@]}" \
    -c "$FORGE_ROOT/requirements/constraints.txt" -r "$FORGE_ROOT/requirements/gpu.txt" -d "$folder.new" \
    || die "the wheels could not be fetched"
size=$(du -sm "$folder.new" | cut -f1)
[ "$size" -lt 40 ] || die "the wheels take $size MB; they are meant to stay under 40"
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$(ls "$folder" | wc -l) wheels for Python $version in $folder: $size MB"
