"""Ways to cut data into a part to learn from and parts to be judged on.

| function | who is judged | what is hidden |
|---|---|---|
| `strong` | people the model never saw | a fifth of their items |
| `weak` | everybody | a fifth of each person's items |
| `leave_last_out` | everybody | each person's last item |
| `time_cut` | people active after a date | what they did from that date on |
| `sessions` | sessions the model never saw | the next item, after every event |
| `from_parts` | as published | as published |
"""

from equipoise.split.parts import Part, Split
from equipoise.split.published import from_parts
from equipoise.split.sessions import reveal, sessions
from equipoise.split.temporal import leave_last_out, time_cut
from equipoise.split.user_split import strong, weak

__all__ = [
    "Part",
    "Split",
    "from_parts",
    "leave_last_out",
    "reveal",
    "sessions",
    "strong",
    "time_cut",
    "weak",
]
