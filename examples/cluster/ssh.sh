#!/bin/sh
# A scheduler on this machine and a worker on each host, over ssh; the same Python environment and
# the same folders on all of them.
#   ADDRESS=10.0.0.5 sh examples/cluster/ssh.sh host1 host2 host3
#   equipoise fit events/ model --cluster tcp://10.0.0.5:8786
# ADDRESS is that of this machine in the private network of the hosts. The scheduler listens there
# only, because whoever reaches it can run any code. Ends with Ctrl-C, and takes the workers with
# it. Needs keys that need no password.
address=${ADDRESS:?give the address of this machine in the network of the hosts}
port=${PORT:-8786} threads=${THREADS:-4}
python=$(command -v python)
"$python" -m dask scheduler --host "$address" --port "$port" --no-dashboard &
processes=$!
trap 'kill $processes 2>/dev/null' EXIT INT TERM
for host in "$@"; do
  # ssh does not hand the environment on; with -tt the worker ends when ssh does
  ssh -tt "$host" env POLARS_MAX_THREADS="$threads" OPENBLAS_NUM_THREADS="$threads" \
    "$python" -m dask worker "tcp://$address:$port" --nworkers 1 --nthreads "$threads" --no-dashboard </dev/null &
  processes="$processes $!"
done
wait
