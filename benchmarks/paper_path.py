"""Importing this module adds the folder `paper/` to the import path."""

import sys
from pathlib import Path

PAPER = Path(__file__).resolve().parents[1] / "paper"
sys.path.insert(0, str(PAPER))
