"""The command `equipoise`: thin commands over the library."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point of the installed script."""
    import io
    import sys

    for stream in (sys.stdout, sys.stderr):
        # A title that the terminal's encoding lacks is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")

    from equipoise.cli.app import app

    app(prog_name="equipoise")
