"""An application that waits in its folder for a file ``end``, and ends with the exit code that is in it; no Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    end = Path("end")
    while not end.exists() or not end.read_text():
        time.sleep(0.02)
    sys.exit(int(end.read_text()))


if __name__ == "__main__":
    main()
