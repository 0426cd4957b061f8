"""Reading the decoder's last hidden states off a forward pass of the base, without changing how the base is called."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from t3lib.errors import UserError


class Watch:
    """The decoder's last hidden states (B, L, d) of the one call it watches.

    Each forward in eager mode has its own watch and ignores other threads. Compiled code cannot add hooks: there one
    watch per model (thread None) is put on by `generate` beforehand, and its value never outlives the traced graph.
    """

    def __init__(self, thread: int | None = None) -> None:
        self.thread = thread
        self.hidden: Any = None

    @classmethod
    def of_this_thread(cls) -> "Watch":
        return cls(threading.get_ident())

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() if self.thread is None else threading.get_ident() == self.thread:
            self.hidden = output[0]

    def take(self) -> Tensor:
        hidden, self.hidden = self.hidden, None
        if hidden is None:
            raise UserError("compile through generate(..., cache_implementation='static'), not the model itself")
        return hidden

    @contextmanager
    def on(self, decoder: nn.Module) -> Iterator["Watch"]:
        handle = decoder.register_forward_hook(self)
        try:
            yield self
        finally:
            handle.remove()
