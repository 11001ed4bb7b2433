#!/bin/sh
# A scheduler on this machine and a worker on each host, over ssh; the same Python environment and
# the same folders on all of them.
#   sh examples/cluster/ssh.sh host1 host2 host3
#   equipoise fit events/ model --cluster tcp://$(hostname):8786
# Ends with Ctrl-C. Needs `pip install paramiko`. Not tried here: there was one machine.
export POLARS_MAX_THREADS=4 OPENBLAS_NUM_THREADS=4
exec dask ssh --scheduler "$(hostname)" --nthreads 4 --remote-python "$(command -v python)" "$@"
