#!/usr/bin/env bash
# Draw the diagrams of docs/diagrams as SVG, for light and dark, into docs/images or the folder that is named.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/tools.sh diagrams
flags=(--layout elk --theme 0 --dark-theme 200 --pad 16 --scale 0.75)
for text in docs/diagrams/*.d2; do
  .venv/diagrams/bin/d2 "${flags[@]}" "$text" - >"${1:-docs/images}/$(basename "$text" .d2).svg"
done
