"""Tuning: search settings with as few solves as the algebra allows.

A solve depends on beta, l2 and dropout; every family, alpha, gamma and diag_bound is read off it.
"""

from equipoise.tuning.contrast import Contrast, contrast
from equipoise.tuning.frontier import frontier_svg
from equipoise.tuning.search import tune
from equipoise.tuning.space import PAPER
from equipoise.tuning.tuned import Progress, Tuned

__all__ = ["PAPER", "Contrast", "Progress", "Tuned", "contrast", "frontier_svg", "tune"]
