"""Models: everything that ranks items for a history."""

from equipoise.models.autoencoder import LinearAutoencoder
from equipoise.models.base import Recommender
from equipoise.models.graph import BSPM, GFCF, SVDAE, TurboCF
from equipoise.models.linear import DLAE, EASE, EDLAE, LAE, RDLAE, RLAE
from equipoise.models.lowpass import LowPass
from equipoise.models.multvae import MultVAE
from equipoise.models.neural_graph import LightGCN, XSimGCL
from equipoise.models.personal import SGFCF
from equipoise.models.popular import ItemKNN, Popularity
from equipoise.models.recommendations import Explanation, Recommendations
from equipoise.models.saving import load
from equipoise.models.session import SLIS, SLIST, SLIT

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
    "SVDAE",
    "Explanation",
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
