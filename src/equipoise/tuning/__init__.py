"""Tuning: search settings with as few solves as the algebra allows.

A solve depends on beta, l2 and dropout; it serves every family, alpha, gamma and diag_bound.
"""

from equipoise.tuning.search import SearchProgress, Tuned, tune
from equipoise.tuning.space import PAPER

__all__ = ["PAPER", "SearchProgress", "Tuned", "tune"]
