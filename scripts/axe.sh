#!/usr/bin/env bash
# Put axe-core, which looks for obstacles to keyboards and screen readers in the pages, into .venv. It is a file of the
# npm registry. Without npm the test that needs it is skipped, but fails in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh

version=4.14.1
[[ ! -f .venv/axe-$version.js ]] || exit 0
command -v npm >/dev/null || apt_install npm || {
  echo "npm is not installed, so the test that needs axe-core will be skipped." >&2
  exit 0
}
say "axe-core $version"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm pack --silent --pack-destination "$folder" "axe-core@$version" >/dev/null &&
  tar -xzf "$folder/axe-core-$version.tgz" -C "$folder" package/axe.min.js &&
  mv "$folder/package/axe.min.js" ".venv/axe-$version.js" ||
  echo "axe-core could not be downloaded, so the test that needs it will be skipped." >&2
