"""Training steps of a model of SmolLM2's shape a second: one process, and several at once, with and without MPS."""
import multiprocessing as mp, os, sys, time
import torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM
def work(n, barrier, q, mps):
    if mps: os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/tmp/mps"
    cfg = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
    torch.manual_seed(0); m = LlamaForCausalLM(cfg).to("cuda"); o = torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True)
    x = torch.randint(0, 49152, (16, 75), device="cuda")
    def step():
        with torch.autocast("cuda", torch.bfloat16): l = m(input_ids=x, labels=x).loss
        l.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0); o.step(); o.zero_grad(); return l.item()
    for _ in range(5): step()
    barrier.wait(60); t = time.time()
    for _ in range(25): step()
    q.put(time.time() - t)
for n, mps in [tuple(map(int, a.split(","))) for a in sys.argv[1:]]:
    ctx = mp.get_context("fork"); b, q = ctx.Barrier(n), ctx.Queue(); t = time.time()
    ps = [ctx.Process(target=work, args=(n, b, q, mps)) for _ in range(n)]
    [p.start() for p in ps]; [p.join(40) for p in ps]; [p.kill() for p in ps]
    got = [q.get(timeout=1) for _ in range(n) if not q.empty()]
    if got: print(f"{n} processes, mps {mps}: {25 * len(got) / max(got):.1f} steps/s together, whole {time.time()-t:.0f} s", flush=True)
    else: print(f"{n} processes, mps {mps}: failed", flush=True)
