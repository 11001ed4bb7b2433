"""Drawings, plots and what objects show in a notebook."""
