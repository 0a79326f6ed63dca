#!/usr/bin/env bash
# Build the site of docs/ into build/site. Dead links and missing anchors fail, and so do pages that the navigation does
# not name once.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/tools.sh docs
diff <(cd docs && find . -name '*.md' | sed 's|^\./||' | sort) <(grep -o '"[a-z_/]*\.md"' zensical.toml | tr -d '"' | sort) ||
  { echo "The navigation in zensical.toml has to name each page of docs/ once: < is missing there, > is no page." >&2 && exit 1; }
.venv/docs/bin/python -m zensical build --strict --clean
