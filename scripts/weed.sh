#!/usr/bin/env bash
# Put SeaweedFS's server, `weed`, into .venv/bin: the S3 store and the REST catalog of some tests. It is built from its
# Go module, in some minutes, and kept in the user's cache. Without Go these tests are skipped, but fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh

# Two weeks after 4.53, the image of docker-compose.yaml, and the only version that Go's proxy has.
module=github.com/seaweedfs/seaweedfs@v0.0.0-20261109003541-7506e5f91cd6
weed=${XDG_CACHE_HOME:-$HOME/.cache}/airflow-provider-rfr/weed-${module##*-}

# Inside its module, because `go install` refuses a module with replacements.
build() {
  local folder
  folder=$(GOFLAGS=-mod=mod go mod download -json "$module" | sed -n 's/^\s*"Dir": "\(.*\)",$/\1/p')
  mkdir -p "${weed%/*}"
  go build -C "$folder" -buildvcs=false -trimpath -o "$weed.$$" ./weed && mv "$weed.$$" "$weed"
}

if [[ ! -x $weed ]]; then
  command -v go >/dev/null || {
    echo "Go is not installed, so the tests that need SeaweedFS will be skipped." >&2
    exit 0
  }
  say "SeaweedFS from ${module%@*}, some minutes"
  build || {
    echo "SeaweedFS could not be built, so the tests that need it will be skipped." >&2
    exit 0
  }
fi
ln -sf "$weed" .venv/bin/weed
