"""Adam (arXiv:1412.6980) and RAdam (arXiv:1908.03265) over one flat vector of all parameters of a network."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

# Dead units have no gradient, and their moments decay to denormal floats, which are a hundred times slower on a CPU: a
# fifth of TD3's moments after 2,000 updates. With this, they stay normal: its square times 1 - beta2 (0.001) is above
# 1e-38, and it moves a weight by less than 1e-6 in a million updates.
TINY = 1e-17
# The fused kernel runs one GPU block per 65,536 numbers of a tensor: a small network's single vector would use two or
# three of a hundred multiprocessors. With CUDA 12, one launch accepts 36 pieces; each parameter may leave a short one.
PIECE, PIECES = 4096, 24


class FlatAdam:
    """An optimizer equal to `torch.optim.Adam`, with parameters as views of one vector: a step is a few operations.

    For small networks this is three times faster than a loop over tensors, and saves the 1–2 s that torch.optim spends
    on importing its compiler at the first step. On a GPU the step count and the learning rate are tensors, so that a
    step can be recorded as a CUDA graph: a Python number would be constant in every replay.
    """

    replayable: bool | None = None
    """True if a step can be recorded (None: only on a GPU)"""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.parameters = list(parameters)
        self.eps, self.betas = eps, betas
        self.flat = flattened(self.parameters)
        self._steps: Any = 0
        self._rate: torch.Tensor | None = None
        if self.flat.is_cuda if self.replayable is None else self.replayable:
            self._steps, self._rate = (torch.zeros((), device=self.flat.device) for _ in range(2))
        self.lr = lr
        self.mean = torch.zeros_like(self.flat)
        self.variance = torch.zeros_like(self.flat)

    def step(self, loss: torch.Tensor, max_grad_norm: float | None = None) -> None:
        """Differentiate the loss, clip the gradient to `max_grad_norm`, and update the parameters."""
        self.apply(torch.autograd.grad(loss, self.parameters), max_grad_norm)

    def apply(self, gradients: Sequence[torch.Tensor], max_grad_norm: float | None = None) -> None:
        """Clip the gradient to `max_grad_norm`, and update the parameters."""
        with torch.no_grad():
            self._steps += 1
            pieces = [gradient.reshape(-1) for gradient in gradients]
            if self._rate is not None and max_grad_norm is None:
                self._move_at_once(pieces, self._rate)
                return
            gradient = torch.cat(pieces)
            if max_grad_norm is not None:
                gradient *= (max_grad_norm / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0)
            if self._rate is not None:
                self._move_at_once([gradient], self._rate)
            else:
                self._move(gradient.add_(TINY))

    def _move(self, gradient: torch.Tensor) -> None:
        if not torch.compiler.is_compiling():
            steps = torch.tensor(float(self._steps))
            self._fused([self.flat], [gradient], [self.mean], [self.variance], steps, self.lr)
            return
        # torch.compile refuses the fused operation, and fuses these instead
        mean_bias, variance_bias = self._average(gradient)
        unbiased = (self.variance / variance_bias).sqrt_().add_(self.eps)
        self.flat.addcdiv_(self.mean, unbiased, value=-self.lr / mean_bias)

    def _average(self, gradient: torch.Tensor) -> tuple[float, float]:
        """Update the moments with the gradient; return their bias corrections (1: no bias)."""
        beta1, beta2 = self.betas
        self.mean.lerp_(gradient, 1 - beta1)
        self.variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return 1 - beta1**self._steps, 1 - beta2**self._steps

    def _move_at_once(self, gradients: Sequence[torch.Tensor], rate: torch.Tensor) -> None:
        """Update by one kernel, with the step count and the learning rate as tensors."""
        piece = max(PIECE, len(self.flat) // PIECES // 4 * 4)  # a multiple of four, which the kernel reads at once
        if torch.compiler.is_compiling():  # compiled code copies every piece
            gradients, piece = [torch.cat(list(gradients))], len(self.flat)
        sizes = [len(gradient) for gradient in gradients]
        parameters, means, variances = (
            _pieces(whole.split(sizes), piece) for whole in (self.flat, self.mean, self.variance)
        )
        self._fused(parameters, _pieces(gradients, piece), means, variances, self._steps, rate)

    def _fused(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        means: list[torch.Tensor],
        variances: list[torch.Tensor],
        steps: torch.Tensor,
        rate: float | torch.Tensor,
    ) -> None:
        """Call the kernel of `torch.optim.Adam(fused=True)`: each number is read and written once."""
        beta1, beta2 = self.betas
        torch._fused_adam_(
            parameters,
            gradients,
            means,
            variances,
            [],
            [steps] * len(parameters),
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    @property
    def lr(self) -> float:
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = lr
        if self._rate is not None:
            self._rate.fill_(lr)

    @property
    def steps(self) -> int:
        """Return the step count; on a GPU, this synchronizes."""
        return int(self._steps)

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps += steps - self.steps  # in place: a recording refers to this tensor's memory

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "variance": self.variance, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("mean", "variance"):
            if np.shape(state[name]) != tuple(self.flat.shape):  # size 1 would be broadcast
                raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {tuple(self.flat.shape)}")
        self.mean.copy_(torch.from_numpy(np.array(state["mean"])))
        self.variance.copy_(torch.from_numpy(np.array(state["variance"])))
        self.steps = int(state["steps"])


class FlatRAdam(FlatAdam):
    """An optimizer equal to `torch.optim.RAdam`: plain momentum until the variance estimate is reliable."""

    def _move(self, gradient: torch.Tensor) -> None:
        beta2 = self.betas[1]
        mean_bias, variance_bias = self._average(gradient)
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * self.steps * beta2**self.steps / variance_bias
        if length <= 5:
            self.flat.add_(self.mean, alpha=-self.lr / mean_bias)
            return
        rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        rate = self.lr * (rectified * variance_bias) ** 0.5 / mean_bias
        self.flat.addcdiv_(self.mean, self.variance.sqrt().add_(self.eps), value=-rate)

    def _move_at_once(self, gradients: Sequence[torch.Tensor], rate: torch.Tensor) -> None:
        """Do the same without reading the step count: compute both updates, and apply the right one."""
        gradient = torch.cat(list(gradients))
        beta1, beta2 = self.betas
        self.mean.lerp_(gradient, 1 - beta1)
        self.variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        steps = self._steps.double()
        faded = torch.exp(steps * math.log(beta2))  # beta2**steps
        mean_bias, variance_bias = 1 - torch.exp(steps * math.log(beta1)), 1 - faded
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * steps * faded / variance_bias
        rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        scale = (rectified * variance_bias).sqrt().float()  # NaN where unused
        divided = self.mean / self.variance.sqrt().add_(self.eps) * scale
        self.flat -= torch.where(length > 5, divided, self.mean) * (rate / mean_bias).float()


def flattened(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Return one vector and make the parameters views of it, so that its changes apply to all of them."""
    given = list(parameters)
    with torch.no_grad():
        flat = torch.cat([parameter.reshape(-1) for parameter in given])
        start = 0
        for parameter in given:
            parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
    return flat


def _pieces(vectors: Iterable[torch.Tensor], size: int) -> list[torch.Tensor]:
    return [piece for vector in vectors for piece in vector.split(size)]
