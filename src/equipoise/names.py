"""Short names of normalizers in Python and on the command line.

This module imports nothing heavy, so that the command line can list them quickly.
"""

from typing import Literal, get_args

NormalizerName = Literal["none", "rw", "sym", "col", "user", "item", "dan"]
_CLASSES = "NoNorm RandomWalk Symmetric ColumnNorm UserNorm ItemNorm DAN"

# name -> class in `normalize`
NORMALIZERS = dict(zip(get_args(NormalizerName), _CLASSES.split(), strict=True))
