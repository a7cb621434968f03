"""Adam (arXiv:1412.6980) and RAdam (arXiv:1908.03265) over one flat vector that holds all parameters of a network."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

# Units that never fire have no gradient, and their moments fade into numbers too small for a float's usual form, on
# which a CPU takes a hundred times as long: a fifth of those of TD3 after 2,000 updates. They fade to this: its square,
# times 1 - beta2 (0.001), is above 1e-38, and it moves a weight by less than 1e-6 in a million updates.
TINY = 1e-17
# The fused kernel gives each tensor one block of a GPU for every 65,536 numbers: of a small network's one vector that
# would keep two or three of its hundred multiprocessors busy. One launch takes 36 pieces with CUDA 12; each parameter
# may leave one that is short.
PIECE, PIECES = 4096, 24


class FlatAdam:
    """Same updates as `torch.optim.Adam`, on parameters that become views of one vector: a step is a few operations.

    For small networks that is three times faster than a loop over tensors, and the 1–2 s that torch.optim spends on
    importing its compiler at the first step are saved. On a GPU the count of steps and the step size lie there too, so
    that a step can be recorded as a CUDA graph: a number of Python's would be the same at every replay.
    """

    replayable: bool | None = None
    """whether a step can be recorded (None: on a GPU)"""

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
        """Differentiate the loss, shorten the gradient to `max_grad_norm`, and move the parameters."""
        self.apply(torch.autograd.grad(loss, self.parameters), max_grad_norm)

    def apply(self, gradients: Sequence[torch.Tensor], max_grad_norm: float | None = None) -> None:
        """Shorten the gradient to `max_grad_norm`, and move the parameters."""
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
        # torch.compile refuses the fused operation, and makes one of these
        mean_bias, variance_bias = self._average(gradient)
        unbiased = (self.variance / variance_bias).sqrt_().add_(self.eps)
        self.flat.addcdiv_(self.mean, unbiased, value=-self.lr / mean_bias)

    def _average(self, gradient: torch.Tensor) -> tuple[float, float]:
        """Let the gradient enter the moments; how far they have come from their start at 0 (1: all the way)."""
        beta1, beta2 = self.betas
        self.mean.lerp_(gradient, 1 - beta1)
        self.variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return 1 - beta1**self._steps, 1 - beta2**self._steps

    def _move_at_once(self, gradients: Sequence[torch.Tensor], rate: torch.Tensor) -> None:
        """By one kernel, which takes the count and the step size as tensors."""
        piece = max(PIECE, len(self.flat) // PIECES // 4 * 4)  # of whole fours, which the kernel reads at once
        if torch.compiler.is_compiling():  # what is compiled copies every piece
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
        """What `torch.optim.Adam(fused=True)` calls: each number is read and written once."""
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
        """Steps made so far; on a GPU, reading it waits for all that was asked of it."""
        return int(self._steps)

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps += steps - self.steps  # a recording knows the tensor by its place

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "variance": self.variance, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("mean", "variance"):
            if np.shape(state[name]) != tuple(self.flat.shape):  # one of size 1 would be copied to all places
                raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {tuple(self.flat.shape)}")
        self.mean.copy_(torch.from_numpy(np.array(state["mean"])))
        self.variance.copy_(torch.from_numpy(np.array(state["variance"])))
        self.steps = int(state["steps"])


class FlatRAdam(FlatAdam):
    """Same updates as `torch.optim.RAdam`: plain momentum until the variance is known well enough to divide by."""

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
        """The same without a look at the count: both moves are worked out, and the one that is due is made."""
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
        scale = (rectified * variance_bias).sqrt().float()  # not a number where it is not used
        divided = self.mean / self.variance.sqrt().add_(self.eps) * scale
        self.flat -= torch.where(length > 5, divided, self.mean) * (rate / mean_bias).float()


def flattened(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """One vector that the parameters become views of: what is done to it is done to all of them."""
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
