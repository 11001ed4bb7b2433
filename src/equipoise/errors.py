"""Errors a user can cause, each with a sentence that says what to do about it.

Every error derives from `EquipoiseError` and from the built-in exception a Python programmer would
expect, so both ``except EquipoiseError`` and ``except ValueError`` work.
"""


class EquipoiseError(Exception):
    """An error whose cause the user can fix."""

    def __str__(self) -> str:
        """Return the sentence itself; `KeyError` would put quotes around it."""
        return str(self.args[0]) if self.args else self.__class__.__name__


class DataError(EquipoiseError, ValueError):
    """Data that cannot be used as it is; names the file, line, column or cell."""


class MissingDataError(DataError):
    """A model that was saved without its training data was asked for what needs them."""


class SettingError(EquipoiseError, ValueError):
    """A parameter outside its range."""


class UnknownIdError(EquipoiseError, KeyError):
    """Users or items that the data or the model has never seen."""


class NotFittedError(EquipoiseError, AttributeError):
    """A model was used before it was fitted."""


class TooBigError(EquipoiseError, MemoryError):
    """A computation that would not fit; nothing has been allocated."""


class SolveError(EquipoiseError, ArithmeticError):
    """A linear system that could not be solved accurately."""


class FileFormatError(DataError):
    """A saved directory that is damaged, of another kind or from a newer version."""


class FetchError(EquipoiseError, OSError):
    """A data set that could not be fetched, or a service that refuses or does not answer."""


class MissingExtraError(EquipoiseError, ImportError):
    """An optional dependency is not installed."""


class ForkError(EquipoiseError, RuntimeError):
    """A forked process in which polars cannot work, because a fork does not copy its threads."""


class ClusterError(EquipoiseError, ConnectionError):
    """A cluster that does not answer, or that lost its work too often."""
