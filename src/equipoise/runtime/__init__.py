"""Memory, threads and compiled kernels of the machine."""
