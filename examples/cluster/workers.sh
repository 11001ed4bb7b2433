#!/bin/sh
# A scheduler and workers on this machine, as they would run on several:
#   sh examples/cluster/workers.sh 2 8786
#   equipoise fit events/ model --cluster tcp://127.0.0.1:8786
# Ends with Ctrl-C, and takes the workers with it.
number=${1:-2}
port=${2:-8786}
export POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
dask scheduler --host 127.0.0.1 --port "$port" --no-dashboard &
scheduler=$!
trap 'kill $scheduler $workers 2>/dev/null' EXIT INT TERM
dask worker "tcp://127.0.0.1:$port" --nworkers "$number" --nthreads 1 --no-dashboard &
workers=$!
wait
