# Run the studies of SmolLM2 that need a GPU, side by side on one:
#
#     bash results/profiles/smollm/on_one_gpu.sh DATA OUT
#
# DATA has TOFU's files. First nine bases are trained, then frontier.py and authors.py run in parts,
# nine at a time (10 GB each), the most wanted first. What is in OUT is not made again, so a killed
# run continues. Logs lie in OUT/log.
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

jobs() { # the arguments of each script
    for set in 1 2; do echo "authors --sets $set --splits forget10 --methods Original,Retrained,T3,heads"; done
    echo "frontier --methods Original,T3"
    for method in NPO WGA SimNPO RMU GradDiff; do echo "frontier --methods $method --seeds 1"; done
    for set in 1 2; do echo "authors --sets $set --splits forget05 --methods Original,Retrained,T3,heads"; done
    for method in NPO WGA SimNPO RMU GradDiff; do echo "frontier --methods $method --seeds 2"; done
    for method in WGA RMU NPO SimNPO; do for set in 1 2; do
        echo "authors --sets $set --splits forget10 --methods $method"
    done; done
}
jobs | xargs -P 9 -L 1 bash -c '
    script=$0 name=$(echo "$@" | tr -dc "[:alnum:]")
    run "$script-$name" python3 "$R/$script.py" --data "$D" "$@" --out "$OUT/smollm-$script"'
