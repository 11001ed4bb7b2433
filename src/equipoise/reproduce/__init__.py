"""The paper's tables and figures: one small config each, ours beside the published numbers."""

from equipoise.reproduce.config import Config, Row, load_config
from equipoise.reproduce.kinds import runner
from equipoise.reproduce.tables import run_table

__all__ = ["Config", "Row", "load_config", "run_table", "runner"]
