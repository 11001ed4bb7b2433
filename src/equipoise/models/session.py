"""Session models: recommend the next item of a visit from its clicks so far.

All three are closed forms of one ridge regression (`session_matrices`); they differ in its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.models.session_base import SessionModel
from equipoise.models.session_matrices import Direction


@dataclass(kw_only=True, eq=False)
class SLIS(SessionModel):
    """Which items occur in the same session, whatever their order.

    Minimises sum_s w_s ||x_s - n_s C||^2 + tr(C^T L C) over the sessions s: x_s has a 1 for each
    item, n_s is x_s scaled by `row_norm`, and L = l2*I + dropout/(1-dropout)*D_I. With a
    normalizer w_s = d_s^-beta for d_s distinct items, and scores use D_I^alpha C D_I^-alpha. The
    diagonal is free, so an item may call for itself.

    Parameters
    ----------
    l2
        lambda, the ridge penalty; 1 to 100.
    dropout
        p, penalises popular items in proportion; 0 to 0.9.
    normalizer
        How sessions and items are weighted, such as `DAN(alpha, beta)`.
    row_norm
        Inputs are scaled to sum 1 ("l1") or length 1 ("l2"), which discounts long sessions; None
        leaves them.
    decay_inference
        d_inf, in clicks: the click n before the last one counts exp(-n / d_inf); None: all the
        same.
    decay_time
        d_time, in days: a session this much older than the latest counts exp(-1); None: all the
        same.
    repeats
        Whether items of the session may be recommended again.

    References
    ----------
    Choi et al., "Session-aware Linear Item-Item Models for Session-based Recommendation", WWW
    2021.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> items = ["tea", "milk", "tea", "milk", "tea"]
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2, 2], "item": items})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIS(l2=1.0).fit(data).recommend(session=["tea"], k=2).items
    [['milk', 'tea']]
    """


@dataclass(kw_only=True, eq=False)
class SLIT(SessionModel):
    """Which items come after which, the next one most.

    Minimises sum_t w_t ||f_t - p_t C||^2 + tr(C^T L C) over the splits of all sessions: f_t holds
    the clicks after t, click q weighed by exp(-(q - t - 1) / decay_position), and p_t the past.
    With `direction` "sr" the past is the last click alone; then the matrix to invert is diagonal
    and nothing is solved.

    Parameters
    ----------
    decay_position
        d_pos, in clicks: how fast the weight falls with the distance; None: not at all.
    direction
        The past: "sr" the last click, "part" all clicks so far, decayed; "all" has the whole
        session on both sides, decayed by the distance to the split.
    l2, dropout, normalizer, row_norm, decay_inference, decay_time, repeats
        As for `SLIS`; the weight d_s^-beta of a session is that of all its splits.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIT(l2=1.0).fit(data).recommend(session=["tea", "milk"], k=1).items
    [['cake']]
    """

    decay_position: float | None = 1.0
    direction: Direction = "sr"

    @property
    def _mix(self) -> float:
        return 0.0


@dataclass(kw_only=True, eq=False)
class SLIST(SLIT):
    """SLIS and SLIT in one closed form.

    Minimises `mix` times the objective of `SLIS` plus ``1 - mix`` times that of `SLIT`, with one
    penalty: M = a Xn^T W Xn + (1-a) Sn^T W' Sn + L and C = M^-1 (a Xn^T W X + (1-a) Sn^T W' T).

    Parameters
    ----------
    mix
        a, the share of whole sessions: 1 is SLIS, 0 is SLIT.
    l2, dropout, normalizer, row_norm, decay_inference, decay_time, repeats
        As for `SLIS`.
    decay_position, direction
        As for `SLIT`.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIST(l2=1.0, mix=0.3).fit(data).recommend(session=["milk"], k=2).items
    [['cake', 'milk']]
    """

    mix: float = 0.5

    @property
    def _mix(self) -> float:
        return self.mix
