# The studies of SmolLM2 that no machine has run yet, side by side on one GPU:
#
#     bash results/smollm/on_one_gpu.sh DATA OUT
#
# DATA has TOFU's files. First nine bases at once, then
# frontier.py and authors.py, nine at once (10 GB each), the most wanted first. What is in OUT is not
# made again, so a killed run continues. Logs lie in OUT/log.
D=$1 OUT=$2 R=$(dirname "$0")
mkdir -p "$OUT/log"
export D OUT R T3_PROGRESS=0 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1

run() { # NAME COMMAND…
    local name=$1
    shift
    "$@" >"$OUT/log/$name.txt" 2>&1
    echo "$name: exit status $? after $SECONDS s"
}
export -f run

python3 -c "from t3lib.core.smollm2 import smollm2; print(smollm2())"
run full python3 "$R/make_bases.py" --data "$D" full &
for set in 1 2; do for seed in 0 1; do for split in forget10 forget05; do
    run "base-$set-$seed-$split" python3 "$R/authors.py" --data "$D" --sets $set --splits $split \
        --base $seed --out "$OUT/smollm-authors" &
done; done; done
wait

xargs -P 9 -L 1 bash -c '
    script=$0 name=$(echo "$@" | tr -dc "[:alnum:]")
    run "$script-$name" python3 "$R/$script.py" --data "$D" "$@" --out "$OUT/smollm-$script"' <<JOBS
authors --sets 1 --splits forget10 --methods Original,Retrained,T3
authors --sets 2 --splits forget10 --methods Original,Retrained,T3
frontier --methods Original,T3
frontier --methods NPO --seeds 1
frontier --methods WGA --seeds 1
frontier --methods SimNPO --seeds 1
frontier --methods RMU --seeds 1
frontier --methods GradDiff --seeds 1
authors --sets 1 --splits forget05 --methods Original,Retrained,T3
authors --sets 2 --splits forget05 --methods Original,Retrained,T3
frontier --methods NPO --seeds 2
frontier --methods WGA --seeds 2
authors --sets 1 --splits forget10 --methods WGA
authors --sets 2 --splits forget10 --methods WGA
authors --sets 1 --splits forget10 --methods RMU
authors --sets 2 --splits forget10 --methods RMU
frontier --methods SimNPO --seeds 2
frontier --methods RMU --seeds 2
frontier --methods GradDiff --seeds 2
authors --sets 1 --splits forget10 --methods NPO
authors --sets 2 --splits forget10 --methods NPO
authors --sets 1 --splits forget10 --methods SimNPO
authors --sets 2 --splits forget10 --methods SimNPO
JOBS
