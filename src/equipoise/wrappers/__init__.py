"""Adapters that use equipoise's models in RecTools and LensKit.

Each module needs its library; nothing else in the package imports them.
"""
