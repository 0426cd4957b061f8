"""How well a head's f tells forget tokens from retain tokens, on features it was fitted on or on rows held out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t3lib.audit.membership import auc
from t3lib.features import Features
from t3lib.head import T3Head


@torch.no_grad()
def target_f(head: T3Head, features: Features, block: int = 65536) -> Tensor:
    """f(x, y) = σ(B[y] · A x) of the true next token at every answer position: (N,) float32 on the CPU."""
    device = head.A.device
    parts = []
    for start in range(0, len(features.y), block):
        z = head.project(features.x[start : start + block].to(device))
        rows = head.B[features.y[start : start + block].to(device)].float()
        parts.append(torch.sigmoid((z * rows).sum(-1)).cpu())
    return torch.cat(parts)


def separation(head: T3Head, features: Features) -> dict[str, Any]:
    """{auc, mean_f_forget, mean_f_retain, tokens_forget, tokens_retain}; auc is P(f of a retain > of a forget token).

    The AUC is .5 when f knows nothing, 1 when every forget token has the smaller f.
    """
    f = target_f(head, features).double()
    keep = (features.s[features.row] == 1).numpy()
    values = f.numpy()
    forget, retain = values[~keep], values[keep]
    return {
        "auc": auc(forget, retain),
        "mean_f_forget": float(forget.mean()),
        "mean_f_retain": float(retain.mean()),
        "tokens_forget": len(forget),
        "tokens_retain": len(retain),
    }


def subset(features: Features, rows: Sequence[int]) -> Features:
    """The features of some rows (ascending row numbers), renumbered from 0."""
    chosen = torch.as_tensor(sorted(rows))
    mask = torch.isin(features.row, chosen)
    row = torch.searchsorted(chosen, features.row[mask])
    return Features(features.x[mask], features.y[mask], row, features.s[chosen], device=features.device)
