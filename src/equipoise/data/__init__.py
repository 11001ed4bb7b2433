"""Interactions and what is known about them: ids, events, files, splits."""
