"""Importing this puts the modules of `paper/` on the path."""

import sys
from pathlib import Path

PAPER = Path(__file__).resolve().parents[1] / "paper"
sys.path.insert(0, str(PAPER))
