#!/bin/bash
# A scheduler and 16 workers under Slurm; every node sees the folders and the Python environment.
#   sbatch examples/cluster/slurm.sh events/ model lists
#SBATCH --ntasks=17
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=4G
#SBATCH --time=04:00:00
set -e
events=$1 model=$2 lists=$3
threads=$SLURM_CPUS_PER_TASK memory=$((threads * SLURM_MEM_PER_CPU * 15 / 16))MiB
file=$PWD/scheduler-$SLURM_JOB_ID.json
export POLARS_MAX_THREADS=$threads OPENBLAS_NUM_THREADS=$threads
step=(srun --exact --cpus-per-task="$threads")
"${step[@]}" --ntasks=1 dask scheduler --port 0 --scheduler-file "$file" &
until [ -s "$file" ]; do sleep 1; done
"${step[@]}" --ntasks=$((SLURM_NTASKS - 1)) dask worker --scheduler-file "$file" \
  --nthreads "$threads" --nworkers 1 --memory-limit "$memory" --local-directory "${TMPDIR:-/tmp}" &
address=$(python -c "import json; print(json.load(open('$file'))['address'])")
equipoise fit "$events" "$model" --engine neighbourhood --cluster "$address"
equipoise recommend "$model" --all --out "$lists" --cluster "$address"
rm "$file"
