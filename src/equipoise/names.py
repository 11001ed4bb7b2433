"""Short names of normalizers, the same in Python and on the command line.

This module imports nothing heavy, so that the command can show them without loading the library.
"""

from typing import Literal, get_args

NormalizerName = Literal["none", "rw", "sym", "col", "user", "item", "dan"]
_CLASSES = "NoNorm RandomWalk Symmetric ColumnNorm UserNorm ItemNorm DAN"

# the class of each name, in `normalize`
NORMALIZERS = dict(zip(get_args(NormalizerName), _CLASSES.split(), strict=True))
