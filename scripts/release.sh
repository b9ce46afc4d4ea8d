#!/bin/sh
# Builds wheel and sdist of the last commit twice, compares them, checks their sizes, and writes the sha256 of both:
# release.sh PYTHON OUT. The same commit gives the same bytes, in any folder and at any time. PYTHON needs `build` and
# `hatchling` at the versions of constraints.txt; nothing is downloaded.
set -eu
python=${1:-python3} out=${2:-dist}
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac # it is called elsewhere

root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel) || {
    echo "release: this is no git repository; a release is built from a commit" >&2
    exit 2
}
if [ -n "$(git -C "$root" status --porcelain --untracked-files=no)" ]; then
    echo "release: there are changes that are not committed; commit or stash them first" >&2
    exit 2
fi
"$python" -c 'import build, hatchling' || {
    echo "release: '$python' needs: pip install --constraint constraints.txt build hatchling" >&2
    exit 2
}
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ -n "$(ls -A "$out")" ]; then
    echo "release: '$out' is not empty; name a new folder" >&2
    exit 2
fi

# Only what is committed goes in, with the commit's time and nothing of this machine. Built twice, in two folders.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022
for build in first second; do
    mkdir -p "$tree/$build"
    git -C "$root" archive HEAD | tar -x -C "$tree/$build"
    (cd "$tree/$build" && "$python" scripts/release_check.py)
    (cd "$tree/$build" && "$python" -m build --no-isolation --outdir "$tree/$build-dist" .)
done
diff --recursive "$tree/first-dist" "$tree/second-dist" || {
    echo "release: two builds of the same commit differ" >&2
    exit 1
}
(cd "$tree/first" && "$python" scripts/release_check.py --dist "$tree/first-dist")
cp "$tree/first-dist"/* "$out"
(cd "$out" && "$python" -c '
import hashlib, pathlib
names = sorted(path.name for path in pathlib.Path().iterdir())
lines = [f"{hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest()}  {name}\n" for name in names]
pathlib.Path("SHA256SUMS").write_text("".join(lines))')
cat "$out/SHA256SUMS"
