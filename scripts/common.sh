# Sourced by the scripts beside it: finds a Python and makes environments.

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# A Python of exactly these versions ("3.11 3.12"), else empty: from PATH, then from pyenv.
find_python() {
    local version candidate pyenv_root
    pyenv_root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || true)}
    for version in "$@"; do
        for candidate in "python$version" python3 python "$pyenv_root/versions/$version".*/bin/python; do
            # Asking it is the only proof: pyenv's shims exist for versions that do not run.
            if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
                "$candidate" -c 'import sys; print(sys.executable)'
                return
            fi
        done
    done
}

# The Python of this version ("3.11") with the lowest patch: Debian's, from PATH or from pyenv; else empty.
find_oldest_patch() {
    local version=$1 candidate pyenv_root
    pyenv_root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || true)}
    for candidate in "/usr/bin/python$version" "python$version" "$pyenv_root/versions/$version".*/bin/python; do
        "$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.version_info[2], sys.executable)' \
            2>/dev/null || true
    done | sed -n "s/^$version //p" | sort -n | sed -n '1s/^[0-9]* //p'
}

find_analysis_python() {
    local python
    # The one called python3 first, whatever its version from 3.11 on.
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python3 -c 'import sys; print(sys.executable)'
        return
    fi
    python=$(find_python 3.11 3.12 3.13 3.14)
    [ -n "$python" ] || fail "Python 3.11 or newer is needed, found was" \
        "$({ python3 --version || echo 'no Python'; } 2>/dev/null). Install python3.11 (or newer) and run this again."
    echo "$python"
}

# make_venv FOLDER PYTHON PIP_ARGUMENT...: an environment with these installed, reused while nothing changed.
make_venv() {
    local folder=$1 python=$2 stamp
    shift 2
    # The project's own requirements and its compiled kernel count only where it is installed.
    stamp=$("$python" --version; case " $* " in *' --editable '*) cat pyproject.toml setup.py precision_tool/lib/io/native/*.[ch] ;; esac; echo "$@")
    if [ -x "$folder/bin/python" ] && [ "$stamp" = "$(cat "$folder/stamp" 2>/dev/null)" ]; then
        return
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module. On Debian and Ubuntu: apt-get install python3-venv"
    echo "making $folder"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "the installation into $folder failed, see above"
    echo "$stamp" >"$folder/stamp"
}

# optional_venv VARIABLE FOLDER PYTHON REQUIREMENT...: an environment that not everyone can make, its Python in VARIABLE.
optional_venv() {
    local variable=$1 folder=$2 python=$3
    shift 3
    [ -z "${!variable:-}" ] || return 0
    if [ -n "$python" ] && (make_venv "$folder" "$python" "$@"); then
        export "$variable=$PWD/$folder/bin/python"
    elif [ "${CI:-}" = true ]; then
        fail "$1 could not be installed, and CI must have it"
    else
        echo "$1 could not be installed: what needs it is left out"
    fi
}

# tensorflow115 PYTHON37: the environment of the training side.
tensorflow115() {
    optional_venv PRECISION_TOOL_TF115 .venv-tf115 "$1" 'tensorflow==1.15.5' 'protobuf<3.21' pexpect
}

# msprobe: an environment with the vendor's tools, and only what these need, and PyTorch, the oracle of its functions.
msprobe() {
    optional_venv PRECISION_TOOL_MSPROBE .venv-msprobe "$(find_analysis_python)" mindstudio-probe==26.2.0 --no-deps \
        numpy pandas python-dateutil pytz six tzdata psutil protobuf ml_dtypes h5py pyyaml tqdm einops \
        matplotlib contourpy cycler fonttools kiwisolver packaging pillow pyparsing tensorboard absl-py \
        'torch==2.13.*' filelock typing_extensions sympy mpmath networkx jinja2 markupsafe fsspec
}
