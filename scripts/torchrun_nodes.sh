#!/bin/bash
# `dapo train RECIPE [KEY=VALUE ...]` by plain torchrun, for clusters without Slurm: the same line on every node.
#
#   NODES=2 HEAD=node1 scripts/torchrun_nodes.sh my.yaml learner=fsdp_bf16
#
# The nodes find each other at HEAD:PORT, HEAD being one of them; each starts one process a GPU. `run.dir` is in a folder
# that all of them see. Ctrl-C or SIGTERM on one node stops the run after its step, with a checkpoint, as long as that
# takes at most SHUTDOWN_S seconds. The environment may set GPUS (a node), PORT, TORCHRUN (the command), SHUTDOWN_S, and
# LOCAL_ADDR (this node's name, where the others do not know it by its own).
set -euo pipefail

NODES="${NODES:?set it to the number of nodes}"
HEAD="${HEAD:?set it to the name of one of the nodes, the same on all}"
GPUS="${GPUS:-$(nvidia-smi --list-gpus | wc -l)}"
PORT="${PORT:-29400}"
read -ra torchrun <<< "${TORCHRUN:-torchrun}"

options=(--nnodes="$NODES" --nproc-per-node="$GPUS" --rdzv-id=dapo --rdzv-backend=c10d --rdzv-endpoint="$HEAD:$PORT"
    --shutdown-timeout="${SHUTDOWN_S:-1800}")
if [[ -n "${LOCAL_ADDR:-}" ]]; then
    options+=(--local-addr="$LOCAL_ADDR")
fi
# The launch keys say what was started: they go into the manifest, and a recipe's own would be another number.
exec "${torchrun[@]}" "${options[@]}" -m dapo_cli train "$@" launch.nodes="$NODES" launch.processes_per_node="$GPUS" \
    launch.rendezvous="$HEAD:$PORT"
