#!/usr/bin/env bash
# The learners on a machine with a CUDA GPU: equality table, tests, speed, model FLOPs utilisation and memory.
#
#     scripts/gpu_check.sh              under 8 minutes on one H200; PYTHON=... chooses the interpreter
#     SIZES=tiny scripts/gpu_check.sh   a quick look, also without a GPU
#
# Needs torch, transformers and numpy; the tests also pytest and hypothesis, and are left out without them.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
SIZES=${SIZES:-"0.5b 1b"}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} TOKENIZERS_PARALLELISM=false GOMP_SPINCOUNT=4000
DAPO_TEST_DEVICE=$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
export DAPO_TEST_DEVICE

"$PYTHON" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__,
    torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'

echo; echo "== Equality"
failed=0
"$PYTHON" scripts/gpu_check.py || failed=1

echo; echo "== Tests of the learner on $DAPO_TEST_DEVICE"
if "$PYTHON" -c 'import pytest, hypothesis' 2>/dev/null; then
    "$PYTHON" -m pytest -q -o addopts= tests/unit/test_single_learner.py tests/unit/test_packed_attention.py || failed=1
else
    echo "left out: pytest and hypothesis are not installed"
fi

echo; echo "== Speed and memory"
for size in $SIZES; do
    for learner in single fsdp; do
        "$PYTHON" scripts/bench/learner.py --size "$size" --learner $learner --dtype bfloat16 || failed=1
    done
    "$PYTHON" scripts/bench/learner.py --size "$size" --learner fsdp --dtype bfloat16 --checkpointing --budget 65536 || failed=1
    "$PYTHON" scripts/bench/learner.py --size "$size" --learner single --dtype bfloat16 --longest 8192 --checkpointing \
        --budget 32768 --prompts 4 || failed=1
done
exit $failed
