"""What a card's libraries take beside the tensors that a program makes: no CPU kernel shows it, so it is stated here.

- cuBLAS: a workspace out of torch's allocator for each thread that multiplies, kept to the end. Handles are per thread
  (CUDAContext, CublasHandlePool.cpp), and the backward pass has a thread of its own. 8,519,680 bytes on cards before
  Hopper, 32 MiB there (cuBLAS, cublasSetWorkspace).
- cuDNN: an LSTM's reserve, from forward to backward: `lstm_reserve` elements for each layer, step, window and hidden unit.
  5 is inferred from a published size (pytorch/pytorch#2895), not from documentation; layers between are tensors anyway.
- the context, which is not the allocator's: device.context_mib.

scripts/calibrate_cuda.py measures all three on a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten

# Operations that cuBLAS computes on a card.
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
# One layer of an LSTM as oneDNN computes it on a CPU: results are output, hidden state, cell state and its own workspace.
LSTM_LAYER = aten.mkldnn_rnn_layer.default


@dataclass(frozen=True)
class KernelMemory:
    """Bytes that kernels take on a card: `cublas_workspace` a thread; of an LSTM's reserve, elements (see above)."""

    cublas_workspace: int = 8_519_680
    lstm_reserve: float = 5.0

    def sizes(self, operation: Any, args: Any, result: Any) -> dict[int, int]:
        """Storages (by `_cdata`) that would have another size on the card, and that size. The LSTM's workspace, which a fake
        kernel leaves empty and oneDNN makes to its own needs, stands for cuDNN's reserve; there is none in evaluation."""
        if operation is not LSTM_LAYER or not args[-1]:
            return {}
        output, workspace = result[0], result[3]
        return {workspace.untyped_storage()._cdata: int(self.lstm_reserve * output.numel() * output.element_size())}


def in_backward() -> bool:
    """Whether the autograd engine runs, which on a card has a thread of its own."""
    return bool(torch._C._current_graph_task_id() != -1)
