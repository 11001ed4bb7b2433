"""The families of linear autoencoders: LAE, EASE, RLAE and their denoising forms.

Each is B = I - P diag(s) on the same P = (X^T W X + L)^-1; only the vector s differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.automatic import Auto
from equipoise.errors import SettingError
from equipoise.models.autoencoder import LinearAutoencoder, Vector
from equipoise.normalize import check_number


@dataclass(kw_only=True, eq=False)
class LAE(LinearAutoencoder):
    """Linear autoencoder: ridge regression of the interactions on themselves.

    Minimises ||X - X B||^2 + tr(B^T L B) with L = l2*I + dropout/(1-dropout)*D_I.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (DLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> eq.LAE(l2=1.0).fit(data).recommend([["tea"]], k=1).items
    [['milk']]
    """

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return penalty


@dataclass(kw_only=True, eq=False)
class EASE(LinearAutoencoder):
    """Linear autoencoder with a zero diagonal (Steck, WWW 2019).

    Minimises ||X - X B||^2 + tr(B^T L B) subject to diag(B) = 0.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (EDLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> model = eq.EASE(l2=1.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3)).fit(data)
    >>> model.recommend(["bob"], k=1).items
    [['milk']]
    """

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return 1 / diagonal


@dataclass(kw_only=True, eq=False)
class RLAE(LinearAutoencoder):
    """Linear autoencoder with a bounded diagonal (Moon et al., SIGIR 2023).

    Minimises ||X - X B||^2 + tr(B^T L B) subject to diag(B) <= diag_bound.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (RDLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    diag_bound
        xi, between 0 (EASE) and 1 (LAE).
    """

    diag_bound: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= check_number("diag_bound", self.diag_bound) <= 1:
            raise SettingError(f"diag_bound must lie in [0, 1], got {self.diag_bound}")

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return np.maximum(penalty, (1 - self.diag_bound) / diagonal)


@dataclass(kw_only=True, eq=False)
class DLAE(LAE):
    """Denoising `LAE`: an LAE with `dropout`.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    """

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class EDLAE(EASE):
    """Denoising `EASE`: an EASE with `dropout` (Steck, NeurIPS 2020).

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    """

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class RDLAE(RLAE):
    """Denoising `RLAE`: an RLAE with `dropout` (Moon et al., SIGIR 2023).

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    diag_bound
        xi, between 0 (EDLAE) and 1 (DLAE).
    """

    dropout: float | Auto | None = 0.5
