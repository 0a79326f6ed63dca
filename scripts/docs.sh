#!/usr/bin/env bash
# Build the site of docs/ into build/site. Dead links and missing anchors fail, and so do pages that the navigation does
# not name once. The tools are in an environment of their own: dependency group "docs".
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
tools=.venv/docs
wanted=$(sed -n 's/^docs = //p' pyproject.toml)
if [[ ! -f $tools/wanted || $(<"$tools/wanted") != "$wanted" ]]; then
  python -m uv venv -q --clear --python .venv/bin/python "$tools"
  python -m uv pip install -q --python "$tools/bin/python" --group docs
  echo "$wanted" >"$tools/wanted"
fi
diff <(cd docs && find . -name '*.md' | sed 's|^\./||' | sort) <(grep -o '"[a-z_/]*\.md"' zensical.toml | tr -d '"' | sort) ||
  { echo "The navigation in zensical.toml has to name each page of docs/ once: < is missing there, > is no page." >&2 && exit 1; }
"$tools/bin/zensical" build --strict --clean
