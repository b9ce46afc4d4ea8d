#!/bin/sh
# Makes the virtual environment and installs bcls with one extra: setup.sh PYTHON VENV EXTRA
set -eu
python=$1 venv=$2 extra=$3

command -v "$python" >/dev/null || {
    echo "setup: '$python' was not found; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3 ..." >&2
    exit 2
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: bcls needs Python 3.11 or newer, '$python' is $("$python" --version 2>&1); use make PYTHON=python3.11 ..." >&2
    exit 2
}

# system PACKAGE...: installs packages of Debian and Ubuntu, or prints what to install.
system() {
    if ! command -v apt-get >/dev/null; then
        echo "setup: install $* with your system's package manager, then run make again" >&2
        return 1
    elif [ "$(id -u)" = 0 ]; then
        run=""
    elif command -v sudo >/dev/null; then
        run="sudo"
    else
        echo "setup: as root, run 'apt-get install $*', then run make again" >&2
        return 1
    fi
    echo "setup: running '${run:+$run }apt-get install -y $*' now"
    $run apt-get update -q && $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

# Debian ships the module that makes virtual environments in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "setup: Python's venv module is missing; the system package 'python3-venv' brings it"
    system python3-venv || exit 2
fi

# Asked for pip, not for the folder: a set-up that was cut short is made again.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || {
    echo "setup: making the virtual environment $venv"
    "$python" -m venv --clear "$venv"
}
echo "setup: installing bcls[$extra] at the versions in constraints.txt (a minute or two the first time)"
pip() { "$venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
# On the platform of requirements.lock every file is compared with its hash. The last command then installs bcls alone,
# and the CUDA libraries if torch is a CUDA build, which requires exact versions of them.
if "$venv/bin/python" -c 'import platform, sys
sys.exit((platform.python_implementation(), sys.version_info[:2], platform.system(), platform.machine())
    != ("CPython", (3, 11), "Linux", "x86_64"))'; then
    lock="$venv/lock"
    mkdir -p "$lock"
    # Alone, since pip prefers the CUDA build of PyPI to a CPU build in a folder, whose hash it does not know in advance.
    pip download --no-deps --constraint constraints.txt --dest "$lock" torch
    sed -n '/^torch==/,/[^\\]$/p' requirements.lock >"$lock/torch.txt"
    pip install --no-deps --no-index --find-links "$lock" --require-hashes -r "$lock/torch.txt"
    [ "$extra" = dev ] && last='$' || last='/^# dev$/'
    sed -n "1,${last}p" requirements.lock >"$lock/all.txt"
    pip install --no-deps --require-hashes -r "$lock/all.txt"
    rm -r "$lock"
    set -- --no-build-isolation
else
    set --
fi
pip install "$@" --constraint constraints.txt --editable ".[$extra]"

[ "$extra" = dev ] || exit 0
# What the tests need besides Python packages; without it they are skipped, and the summary of the tests lists them.
if ! command -v java >/dev/null; then
    echo "setup: the tests of the caption metrics need Java"
    system default-jre-headless || echo "setup: without Java these tests are skipped" >&2
fi
for browser in chromium google-chrome; do
    command -v $browser >/dev/null && exit 0
done
echo "setup: the browser tests need Chromium"
if grep -qx ID=debian /etc/os-release 2>/dev/null; then
    system chromium
elif grep -qx ID=ubuntu /etc/os-release 2>/dev/null; then
    # Ubuntu's own package is a snap, which the tests cannot start.
    echo "setup: running 'playwright install --with-deps chromium' now"
    "$venv/bin/playwright" install --with-deps chromium
else
    echo "setup: install it with your system's package manager, or run '$venv/bin/playwright install chromium'" >&2
fi || echo "setup: without Chromium these tests are skipped" >&2
