"""Engines that solve for P = (X^T W X + L)^-1, and the plan that chooses among them."""
