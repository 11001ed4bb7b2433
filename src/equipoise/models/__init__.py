"""Models: everything that ranks items for a history."""

from equipoise.models.base import Recommender
from equipoise.models.baselines import ItemKNN, Popularity
from equipoise.models.features import Features
from equipoise.models.filters import BSPM, GFCF, SGFCF, SVDAE, TurboCF
from equipoise.models.linear import DLAE, EASE, EDLAE, LAE, RDLAE, RLAE, LinearAutoencoder
from equipoise.models.lowpass import LowPass
from equipoise.models.neural.graph import LightGCN, XSimGCL
from equipoise.models.neural.multvae import MultVAE
from equipoise.models.recommendations import Explanation, Recommendations
from equipoise.models.saving import load
from equipoise.models.session_neighbours import STAN, VSKNN, VSTAN
from equipoise.models.sessions import SLIS, SLIST, SLIT

__all__ = [
    "BSPM",
    "DLAE",
    "EASE",
    "EDLAE",
    "GFCF",
    "LAE",
    "RDLAE",
    "RLAE",
    "SGFCF",
    "SLIS",
    "SLIST",
    "SLIT",
    "STAN",
    "SVDAE",
    "VSKNN",
    "VSTAN",
    "Explanation",
    "Features",
    "ItemKNN",
    "LightGCN",
    "LinearAutoencoder",
    "LowPass",
    "MultVAE",
    "Popularity",
    "Recommendations",
    "Recommender",
    "TurboCF",
    "XSimGCL",
    "load",
]
