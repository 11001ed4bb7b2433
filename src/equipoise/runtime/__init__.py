"""The machine a program runs on: memory, threads, compiled loops."""
