"""The low-pass companion: a global, low-rank term added to a linear autoencoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.automatic import Auto
from equipoise.checks import count, non_negative, number
from equipoise.data.interactions import Interactions
from equipoise.data.storage import Stored
from equipoise.errors import FileFormatError, SettingError
from equipoise.normalize import power
from equipoise.ranking.terms import LowRank
from equipoise.solve.svd import Spectrum, companion_sketch, spectrum, sums


@dataclass(frozen=True)
class LowPass:
    """Adds the large-scale structure of the data to the scores of a linear autoencoder.

    Scores x W + strength * x D_I^-e V diag(s^softness) V^T D_I^e, where V holds the `rank`
    largest right singular vectors of D_U^-a X D_I^-b and s their singular values relative to the
    largest.

    Parameters
    ----------
    rank
        Number of singular vectors, 100 to 1000. Above 200,000 users and items a few rounds of a
        randomised method compute them in bounded memory and time, and the last ones are rough.
    strength
        Weight beside the autoencoder, 0.1 to 0.4. "auto" tries a few values on users left out of
        the fit, and takes 0 unless one of them is clearly better.
    exponent
        e, 0 to 0.5: smaller values keep more of the long tail. Independent of the dial `alpha`.
    softness
        0 weighs all vectors alike; larger values, up to 4, damp those of small singular values.
    user_exponent, item_exponent
        a and b, 0.2 to 0.5: discount of active users and popular items in the singular vectors.
        1/2 is the usual graph filter; 0.4 is often better.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> model = eq.EASE(l2=1.0, lowpass=eq.LowPass(rank=1, strength=0.2)).fit(data)
    >>> model.recommend([["tea"]], k=1).items
    [['milk']]
    """

    rank: int = 512
    strength: float | Auto = "auto"
    exponent: float = 0.5
    softness: float = 0.0
    user_exponent: float = 0.5
    item_exponent: float = 0.5

    def __post_init__(self) -> None:
        count("rank", self.rank)
        for name in ("exponent", "user_exponent", "item_exponent"):
            number(name, getattr(self, name))
        non_negative("softness", self.softness)
        if self.strength != "auto":
            non_negative("strength", self.strength)

    def fit(self, interactions: Interactions, dtype: str) -> Companion:
        """Return the companion of these data; the SVD is shared with other models.

        The strength must be a number; `leaving_out.companion_strength` finds it for "auto".
        """
        vectors, rounds = companion_sketch((interactions.n_users, interactions.n_items), self.rank)
        triples = spectrum(
            interactions,
            vectors,
            user_exponent=self.user_exponent,
            item_exponent=self.item_exponent,
            dtype=dtype,
            power_iterations=rounds,
        )
        return Companion(self, interactions, triples.first(min(self.rank, vectors)))

    def restored(self, interactions: Interactions, stored: Stored) -> Companion:
        """Return the companion that `Companion.arrays` saved."""
        m, n = interactions.n_users, interactions.n_items
        rank = min(self.rank, m, n)
        values = np.array(stored.finite("lowpass_values", (rank,)))
        right = stored.finite("lowpass_right", (rank, n))
        if values.dtype != right.dtype or (values < 0).any():
            raise FileFormatError("its low-pass companion is damaged")
        companion = Companion(self, interactions, Spectrum(values, right))
        scales = companion.term.source, companion.term.target
        if not all(np.isfinite(scale).all() for scale in scales):
            raise FileFormatError("its low-pass companion gives weights that are not finite")
        return companion


class Companion:
    """A fitted `LowPass`: the spectrum of the data, and its term of the scores."""

    def __init__(self, settings: LowPass, interactions: Interactions, triples: Spectrum) -> None:
        if settings.strength == "auto":
            raise SettingError("a LowPass with strength 'auto' is fitted as part of a model")
        self.settings, self.triples = settings, triples
        counts = sums(interactions)[1]
        values, right = triples.values, triples.right
        relative = values.astype(np.float64) / (values[0] if values[0] else 1)
        weights = settings.strength * relative**settings.softness
        self.term = LowRank(
            np.ascontiguousarray((right * weights[:, None].astype(right.dtype)).T),
            right,
            power(counts, -settings.exponent).astype(right.dtype),
            power(counts, settings.exponent).astype(right.dtype),
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that `save` writes."""
        return {"lowpass_values": self.triples.values, "lowpass_right": self.triples.right}
