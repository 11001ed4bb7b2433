"""Adapters that use equipoise's models in RecTools, LensKit and Spark.

Each module needs its library; nothing else in the package imports them.
"""
