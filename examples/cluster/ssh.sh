#!/bin/sh
# A scheduler on this machine and a worker on each host, over ssh; the same Python environment and
# the same folders on all of them.
#   sh examples/cluster/ssh.sh host1 host2 host3
#   equipoise fit events/ model --cluster tcp://$(hostname):8786
# Ends with Ctrl-C. Needs `pip install paramiko`, and keys that need no password.
threads=${THREADS:-4}
# ssh does not hand the environment on
python="env POLARS_MAX_THREADS=$threads OPENBLAS_NUM_THREADS=$threads $(command -v python)"
exec dask ssh --scheduler "$(hostname)" --nthreads "$threads" --remote-python "$python" "$@"
