#!/bin/bash
# A scheduler and 16 workers under Slurm; every node sees the folders and the Python environment.
#   sbatch examples/cluster/slurm.sh
# Not tried here: there was no Slurm to try it on.
#SBATCH --ntasks=17
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=4G
#SBATCH --time=04:00:00
set -e
file=$PWD/scheduler-$SLURM_JOB_ID.json
export POLARS_MAX_THREADS=4 OPENBLAS_NUM_THREADS=4
srun --ntasks=1 --exact dask scheduler --scheduler-file "$file" &
until [ -s "$file" ]; do sleep 1; done
srun --ntasks=16 --exact dask worker --scheduler-file "$file" --nthreads 4 --nworkers 1 \
  --memory-limit 15GiB --local-directory "${TMPDIR:-/tmp}" &
address=$(python -c "import json; print(json.load(open('$file'))['address'])")
equipoise fit events/ model --engine neighbourhood --cluster "$address"
equipoise recommend model --all --out lists --cluster "$address"
