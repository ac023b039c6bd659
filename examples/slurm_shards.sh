#!/bin/bash
# Scores a collection in a Slurm array: task i takes every COUNT-th shard, from the i-th on.
#
#   sbatch --array=0-63 examples/slurm_shards.sh '/data/pairs/*.tar' /data/scores [options of the metric]
#
# Submit it again after a failure or a time limit: finished shards are skipped, and no two tasks share one.
# When all tasks have ended: capeval shards check /data/scores
#SBATCH --job-name=capeval-shards
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --requeue
set -euo pipefail

pattern=$1 output=$2
shift 2
task=${SLURM_ARRAY_TASK_ID:?run it with sbatch --array=0-N}
count=${SLURM_ARRAY_TASK_COUNT:?run it with sbatch --array=0-N}

mapfile -t shards < <(compgen -G "$pattern" | sort)
mine=()
for ((i = task; i < ${#shards[@]}; i += count)); do mine+=("${shards[i]}"); done
[ ${#mine[@]} -gt 0 ] || { echo "no shard for task $task of $count"; exit 0; }

exec capeval shards score "${METRIC:-pacs}" --input "${mine[@]}" --output "$output" \
  --manifest "manifest-$task.json" "$@"
