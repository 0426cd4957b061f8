"""The steps of a head's training: gradients by hand, fused Adam, on a CPU or as one CUDA graph.

All heads of a problem see the same tokens, so their A are stacked and share each product with x. No autograd graph, no
|V| logits; parameters, gradients and moments are the few contiguous tensors of a `Problem`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

LANES = 16  # float32 numbers of a cache line: fused Adam treats what is left over otherwise, with other rounding
WIDE = 16  # rows from which on x Aᵀ and (A xᵀ)ᵀ are the same bits (measured); below, MKL has kernels of its own


@dataclass(frozen=True)
class Problem:
    """Tokens and parameters of heads fitted together, all on one device.

    x (N, d), y (N,) numbers of rows of B, s (N,) float 1 retain / 0 forget. A (Σh, d) and B, one (rows, h) a head, are
    changed in place; dA, dB are their gradients, which the optimisers (one a head) read. B ends in rows of zeros that
    no token has, which keep every other row out of the optimiser's left-overs.
    """

    x: Tensor
    y: Tensor
    s: Tensor
    A: Tensor
    B: list[Tensor]
    dA: Tensor
    dB: list[Tensor]
    optimisers: list[torch.optim.Optimizer]

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        s: Tensor,
        A: Sequence[Tensor],
        B: Sequence[Tensor],
        decays: Sequence[tuple[str, float]],
    ) -> "Problem":
        """Stack the heads' starting A, copy their B, and give each its optimiser ((decay, λ) a head)."""
        ranks = [len(part) for part in A]
        stacked, copies = torch.cat(list(A)), [pad(part, (0, 0, 0, -len(part) % LANES)) for part in B]
        dA, dB = torch.zeros_like(stacked), [torch.zeros_like(part) for part in copies]
        optimisers = []
        for a, da, b, db, (decay, weight) in zip(stacked.split(ranks), dA.split(ranks), copies, dB, decays):
            a.grad, b.grad = da, db
            optimisers.append(optimiser([a, b], decay, weight))
        return cls(x, y, s, stacked, copies, dA, dB, optimisers)


def optimiser(parameters: Sequence[Tensor], decay: str, weight: float) -> torch.optim.Optimizer:
    """Fused AdamW with decoupled decay λ, or ("l2") Adam with 2λφ, the gradient of Eq. 3's λ‖φ‖², in the gradient."""
    graph = parameters[0].device.type == "cuda"
    lr = torch.zeros((), device=parameters[0].device) if graph else 0.0
    if decay == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight, fused=True, capturable=graph)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=2 * weight, fused=True, capturable=graph)


def token_gradients(
    x: Tensor, y: Tensor, s: Tensor, weight: Tensor, A: Tensor, B: Sequence[Tensor], dA: Tensor, dB: Sequence[Tensor]
) -> None:
    """Gradients of Σ_i w_i ℓ(σ(B[y_i] · A x_i), s_i), Eq. 3's data term, of heads stacked in A; written into dA, dB.

    x (n, d), y (n,) rows of B, s (n,) in {0, 1}, w (n,); A (Σh, d); one B (rows, h) a head. With δ_i = w_i (f_i − s_i):
    dB[y_i] += δ_i A x_i and dA = Σ_i δ_i B[y_i] x_iᵀ.
    """
    if x.device.type == "cpu" and min(len(x), len(A)) >= WIDE:  # the same sums, a fifth faster in MKL
        z = (A @ x.T).T.contiguous()
    else:
        z = x @ A.T  # (n, Σh)
    dz = torch.empty_like(z)
    for own_z, own_dz, own, grad in zip(*(t.split([b.shape[1] for b in B], 1) for t in (z, dz)), B, dB):
        rows = own[y]
        delta = (torch.sigmoid((own_z * rows).sum(1)) - s).mul_(weight).unsqueeze(1)
        torch.mul(rows, delta, out=own_dz)
        grad.zero_().index_add_(0, y, own_z * delta)
    torch.mm(dz.T, x, out=dA)


def run_steps(
    problem: Problem, indices: Sequence[Tensor], rates: Sequence[Sequence[float]], after: Callable[[], None]
) -> None:
    """All steps on a CPU, step k over the tokens indices[k] (n_k,) with learning rate rates[head][k].

    Tokens that lie side by side in float32 are read in place; others are gathered into one buffer that is reused, as
    are rows that would not begin at a cache line (a matrix product may round otherwise there).
    """
    most = max(len(index) for index in indices)
    together = [bool(index[-1] - index[0] == len(index) - 1) for index in indices]
    in_place = problem.x.dtype == torch.float32 and problem.x.shape[1] % LANES == 0 and all(together)
    raw = torch.empty((0 if in_place else most, problem.x.shape[1]), dtype=problem.x.dtype)
    buffer = raw if raw.dtype == torch.float32 else torch.empty_like(raw, dtype=torch.float32)
    for number, index in enumerate(indices):
        n = len(index)
        if in_place:
            x = problem.x[index[0] : index[0] + n]
        else:
            torch.index_select(problem.x, 0, index, out=raw[:n])
            x = buffer[:n] if raw is buffer else buffer[:n].copy_(raw[:n])
        weight = torch.full((n,), 1 / n)
        token_gradients(x, problem.y[index], problem.s[index], weight, problem.A, problem.B, problem.dA, problem.dB)
        for own, rate in zip(problem.optimisers, rates):
            own.param_groups[0]["lr"] = rate[number]
            own.step()
        after()


def padded_step(
    problem: Problem, indices: Sequence[Tensor], rates: Sequence[Sequence[float]]
) -> tuple[Callable[[], None], Tensor]:
    """A step without arguments or shapes that change, and its counter (on the device), which picks tokens and rates.

    Short steps are padded with a token of the first step at weight 0. This is what a CUDA graph can record; it also
    runs on a CPU.
    """
    device, most = problem.x.device, max(len(index) for index in indices)
    tokens = torch.full((len(indices), most), int(indices[0][0]))  # one that is seen: others have no row of B
    weights = torch.zeros((len(indices), most))
    for k, index in enumerate(indices):
        tokens[k, : len(index)] = index
        weights[k, : len(index)] = 1 / len(index)
    tokens, weights = tokens.to(device), weights.to(device)
    table = torch.tensor(rates, dtype=torch.float32, device=device).T.contiguous()  # (steps, heads)
    number = torch.zeros(1, dtype=torch.int64, device=device)
    lr = [torch.zeros((), device=device) for _ in problem.optimisers]
    for own, value in zip(problem.optimisers, lr):
        own.param_groups[0]["lr"] = value

    def step() -> None:
        index = tokens.index_select(0, number)[0]
        weight = weights.index_select(0, number)[0]
        for value, rate in zip(lr, table.index_select(0, number)[0]):
            value.copy_(rate)
        x = problem.x.index_select(0, index).float()
        token_gradients(x, problem.y[index], problem.s[index], weight, problem.A, problem.B, problem.dA, problem.dB)
        for own in problem.optimisers:
            own.step()
        number.add_(1).remainder_(len(indices))

    return step, number


def run_graph(
    problem: Problem, indices: Sequence[Tensor], rates: Sequence[Sequence[float]], after: Callable[[], None]
) -> None:
    """All steps on a GPU: a few on a side stream to warm up, undone; then one recorded as a CUDA graph and replayed."""
    kept = [tensor.clone() for tensor in (problem.A, *problem.B)]
    step, number = padded_step(problem, indices, rates)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    undo(problem, kept, number)
    for _ in indices:
        graph.replay()
        after()
    torch.cuda.synchronize()


def undo(problem: Problem, start: Sequence[Tensor], number: Tensor) -> None:
    """Back to before the first step: parameters, moments, step counts, the counter of `padded_step`."""
    for tensor, old in zip((problem.A, *problem.B), start):
        tensor.copy_(old)
    for own in problem.optimisers:
        for state in own.state.values():
            for value in state.values():
                value.zero_()
    number.zero_()


def untouched_rows(start: Tensor, rates: Sequence[float], decay: str, weight: float) -> Tensor:
    """Rows of B that are no target of the run, after all steps, from their start (any shape).

    AdamW: B_0 Π_t (1 − η_t λ), in closed form. l2: Adam on the gradient 2λB alone has none, so it is run, in blocks
    that stay in the processor's cache.
    """
    if weight == 0 or not start.any():
        return start.clone()
    if decay == "adamw":
        return start * math.prod(1 - rate * weight for rate in rates)
    out = start.clone()
    for block in out.view(-1).split(1 << 15):
        own = optimiser([block], decay, weight)
        block.grad = torch.zeros_like(block)
        for rate in rates:
            own.param_groups[0]["lr"] = rate
            own.step()
    return out
