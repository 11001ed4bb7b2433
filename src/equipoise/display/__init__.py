"""Drawings, plots and the HTML of objects in notebooks."""
