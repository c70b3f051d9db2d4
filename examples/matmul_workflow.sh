#!/usr/bin/env bash
# The announced workflow: collect timings, train a model on them, collect others to judge it by, judge it.
#
#     examples/matmul_workflow.sh [FOLDER]
#
# Small as it stands, so that any machine does it; one without a GPU with COLLECT_OPTIONS="--device cpu". For a model that is
# worth using, on a GPU:
#
#     NUM_SHAPES=1000 NUM_VALIDATION_SHAPES=100 SEARCH_SPACE=EXHAUSTIVE FOLDS=5 NUM_EPOCHS= examples/matmul_workflow.sh data
#
# SKIP_COLLECTION=1, SKIP_TRAINING=1 and SKIP_VALIDATION=1 leave out a step whose files are there. Interrupted, it may
# be started again: the sweep and the training go on where they were.
set -euo pipefail

FOLDER=${1:-matmul_workflow}
SEED=${SEED:-51}
NUM_SHAPES=${NUM_SHAPES:-15}
NUM_VALIDATION_SHAPES=${NUM_VALIDATION_SHAPES:-3}
SEARCH_SPACE=${SEARCH_SPACE:-DEFAULT}
FOLDS=${FOLDS:-1}
NUM_EPOCHS=${NUM_EPOCHS-20}  # empty: as many as the recipe has
COLLECT_OPTIONS=${COLLECT_OPTIONS:-}  # such as --device cpu, or --max-size 4096

TRAINING="$FOLDER/train.jsonl"
VALIDATION="$FOLDER/validation.jsonl"
MODEL="$FOLDER/matmul_model.pt"

mkdir -p "$FOLDER"

step() {
    printf '\n== %s\n' "$1"
    shift
    printf '$'
    printf ' %q' "$@"
    printf '\n'
    "$@"
}

if [[ -z ${SKIP_COLLECTION:-} ]]; then
    # shellcheck disable=SC2086  # several options
    step "Collect the training set" diode-collect \
        --num-shapes "$NUM_SHAPES" --log-normal --seed "$SEED" --search-space "$SEARCH_SPACE" \
        --search-mode max-autotune $COLLECT_OPTIONS --output "$TRAINING"
fi

if [[ -z ${SKIP_TRAINING:-} ]]; then
    step "Train a model" diode-train \
        --dataset "$TRAINING" --model "$MODEL" --model-type deep --seed "$SEED" --folds "$FOLDS" \
        ${NUM_EPOCHS:+--num-epochs "$NUM_EPOCHS"} --force
fi

if [[ -z ${SKIP_VALIDATION:-} ]]; then
    # shellcheck disable=SC2086  # several options
    step "Collect a validation set" diode-collect create-validation \
        --against "$TRAINING" --num-shapes "$NUM_VALIDATION_SHAPES" --log-normal --seed "$((SEED + 1))" \
        --search-space "$SEARCH_SPACE" --search-mode max-autotune $COLLECT_OPTIONS --output "$VALIDATION"
fi

step "Validate the model" diode evaluate --model "$MODEL" --dataset "$VALIDATION" --top-n-worst 5
