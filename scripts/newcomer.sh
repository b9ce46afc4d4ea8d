#!/bin/sh
# Runs the commands of the README in a fresh clone and prints the time of each: newcomer.sh PHOTOS CAPTIONS.csv
# (a folder of photos, and a table with the columns image and caption).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd) photos=$(cd "$1" && pwd) captions=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

timed() {
    begin=$(date +%s)
    "$@" >"$place/output" 2>&1 || { tail -n 20 "$place/output"; echo "failed: $*"; exit 1; }
    echo "$(($(date +%s) - begin)) s  $*"
}

git clone -q "$here" "$place/bcls"
cd "$place/bcls"
timed make demo
PATH="$PWD/.venv/bin:$PATH"
timed pip install -c constraints.txt ".[search,web]"
timed bcls index "$photos" --out photos.index
timed bcls search photos.index "a dog on the beach" -k 5
timed bcls data import folder "$photos" --captions "$captions" --held-out 0.1 --out mine
timed bcls train --config configs/flickr8k/recommended.yaml --data mine --out run
timed bcls evaluate run --data mine --split test --labels minilm
# The first Python block of the README is the loss in a loop of one's own.
sed -n '/^```python$/,/^```$/p' README.md | sed -n '2,/^```$/p' | sed '$d' >loss.py
timed python loss.py
