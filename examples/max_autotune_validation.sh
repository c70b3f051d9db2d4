#!/usr/bin/env bash
# The announced comparison: what a model would choose, beside what max-autotune chose; after matmul_workflow.sh.
#
#     examples/max_autotune_validation.sh [FOLDER]
#
# MODEL, VALIDATION and SOLUTION name others: a checkpoint or a model's name, a data set, and what max-autotune chose.
# Without SOLUTION that is made from the data set, in a warehouse of its own. HARDWARE names the device of a data set that
# does not say it. The data must be a GPU's: a solution holds Triton kernels, of which a CPU times none.
set -euo pipefail

FOLDER=${1:-matmul_workflow}
MODEL=${MODEL:-$FOLDER/matmul_model.pt}
VALIDATION=${VALIDATION:-$FOLDER/validation.jsonl}

if [[ ! -e $VALIDATION ]]; then
    echo "error: $VALIDATION: no such file; run examples/matmul_workflow.sh $FOLDER first" >&2
    exit 1
fi
mkdir -p "$FOLDER"

if [[ -z ${SOLUTION:-} ]]; then
    SOLUTION="$FOLDER/max_autotune.json"
    warehouse="$FOLDER/validation.db"
    rm -rf "$warehouse" "$warehouse".*
    diode db upgrade --database "$warehouse"
    diode import --database "$warehouse" ${HARDWARE:+--hardware "$HARDWARE"} "$VALIDATION"
    diode export --database "$warehouse" --format max-autotune-solution --force -o "$SOLUTION"
fi

diode compare --model "$MODEL" --dataset "$VALIDATION" ${HARDWARE:+--hardware "$HARDWARE"} --max-autotune-solution "$SOLUTION" \
    --output "$FOLDER/model_performance_analysis_by_op.json"
