"""Weights of the smollm2 folder from the GGUF, as t3lib.core.smollm2.dequantised makes them."""
import sys, torch, numpy as np, time
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
src, out = sys.argv[1:3]
names={"attn_norm":"input_layernorm","attn_q":"self_attn.q_proj","attn_k":"self_attn.k_proj","attn_v":"self_attn.v_proj","attn_output":"self_attn.o_proj","ffn_norm":"post_attention_layernorm","ffn_gate":"mlp.gate_proj","ffn_up":"mlp.up_proj","ffn_down":"mlp.down_proj"}
H={"attn_q":9,"attn_k":3}
sd={}
for t in GGUFReader(src).tensors:
    w=dequantize(t.data,t.tensor_type)
    n=t.name.split(".")
    if n[0]=="blk":
        if n[2] in H:
            h=H[n[2]]; dim=w.shape[0]//h//2
            w=w.reshape(h,dim,2,*w.shape[1:]).swapaxes(2,1).reshape(w.shape)
        name=f"model.layers.{n[1]}.{names[n[2]]}.weight"
    else: name={"token_embd":"model.embed_tokens.weight","output_norm":"model.norm.weight"}[n[0]]
    sd[name]=torch.from_numpy(np.ascontiguousarray(w)).to(torch.bfloat16)
save_file(dict(sorted(sd.items())),out,{"format":"pt"})
