"""Ways to cut data into a part to learn from and parts to evaluate on.

================  =============================  ================================
function          who is evaluated               what is hidden
================  =============================  ================================
`strong`          users the model never saw      a fifth of their items
`weak`            all users                      a fifth of each user's items
`leave_last_out`  all users                      each user's last item
`time_cut`        users active after a date      what they used from that date on
`new_items`       users of hidden items          all events of some items
`sessions`        sessions the model never saw   the next item, after every event
`folds`           all users, in n splits         as `strong` or `weak`
`from_parts`      as published                   as published
================  =============================  ================================
"""

from equipoise.data.split.item_split import new_items
from equipoise.data.split.parts import Part, Split, from_parts
from equipoise.data.split.session_split import reveal, sessions
from equipoise.data.split.temporal import leave_last_out, time_cut
from equipoise.data.split.user_split import folds, strong, weak

__all__ = [
    "Part",
    "Split",
    "folds",
    "from_parts",
    "leave_last_out",
    "new_items",
    "reveal",
    "sessions",
    "strong",
    "time_cut",
    "weak",
]
