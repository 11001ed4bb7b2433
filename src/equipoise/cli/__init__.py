"""The command `equipoise`: thin commands over the library."""
