"""equipoise's models in the pipelines of other libraries: `wrappers.rectools`, `wrappers.lenskit`.

Each module needs its library; nothing else in the package imports them.
"""
