"""Critics of state-action pairs: twin critics computed in one batch, and action gradients of their values."""

from collections.abc import Sequence

import torch
from torch import nn

from cleanrl_worker.nets.layers import Pullback, relu_of, through_relu


class TwinLinear(nn.Module):
    """Two linear layers as one batched product, each initialised like `nn.Linear`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        pair = [nn.Linear(inputs, outputs) for _ in range(2)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in pair]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach().unsqueeze(0) for layer in pair]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ReLU of the outputs."""
        if torch.is_grad_enabled() or not x.is_cuda:
            return self(x).relu_()
        return self.relu_apart(x)

    def relu_apart(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same without a gradient: two kernels on a GPU, instead of three for a batched product."""
        outputs = x.new_empty(2, x.shape[1], self.weight.shape[2])
        for weight, bias, given, output in zip(self.weight, self.bias, x, outputs, strict=True):
            torch._addmm_activation(bias[0], given, weight, out=output)
        return outputs


def twin_values(layers: Sequence[TwinLinear], x: torch.Tensor) -> torch.Tensor:
    """Return the values of both networks, with shape (2, batch)."""
    return _twin_pass(layers, x)[1]


@torch.no_grad()
def twin_vjp(layers: Sequence[TwinLinear], x: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
    """Return values with shape (2, batch), and the pullback from their gradient to the parameters', layer by layer.

    Written out, because autograd's overhead is noticeable for such small networks.
    """
    inputs, values = _twin_pass(layers, x)

    @torch.no_grad()
    def pull(gradient: torch.Tensor) -> list[torch.Tensor]:
        row = gradient.unsqueeze(1)  # with one output, products with a row are faster than those with a column
        found = [row.sum(dim=2, keepdim=True), (row @ inputs[-1]).mT]
        slope = through_relu(row.mT * layers[-1].weight.mT, inputs[-1])
        for below in range(len(layers) - 2, -1, -1):
            found += [slope.sum(dim=1, keepdim=True), inputs[below].mT @ slope]
            if below:
                slope = through_relu(slope @ layers[below].weight.mT, inputs[below])
        return found[::-1]

    return values, pull


def _twin_pass(layers: Sequence[TwinLinear], x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the input of each layer, and the values."""
    inputs = [x.expand(2, -1, -1)]
    for layer in layers[:-1]:
        inputs.append(layer.relu(inputs[-1]))
    return inputs, layers[-1](inputs[-1]).squeeze(-1)


@torch.no_grad()
def action_slopes(
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]], obs: torch.Tensor, actions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one network's values and their action gradients; a layer is its weight (inputs, outputs) and bias.

    The weights' gradients, which an actor does not need, are not computed.
    """
    outputs = [torch.cat([obs, actions], dim=1)]
    for weight, bias in layers[:-1]:
        outputs.append(relu_of(weight, bias, outputs[-1]))
    weight, bias = layers[-1]
    values = torch.addmm(bias, outputs[-1], weight).squeeze(-1)
    slopes = torch.ops.aten.threshold_backward(weight.t().expand_as(outputs[-1]), outputs[-1], 0)
    for (weight, _), output in zip(layers[-2:0:-1], outputs[-2:0:-1], strict=True):
        slopes = through_relu(slopes @ weight.t(), output)
    return values, slopes @ layers[0][0][obs.shape[1] :].t()


@torch.no_grad()
def least_slopes(
    layers: Sequence[TwinLinear], obs: torch.Tensor, actions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minimum value of the two networks, with shape (batch), and its action gradient."""
    inputs, values = _twin_pass(layers, torch.cat([obs, actions], dim=1))
    least, smaller = values.min(dim=0)  # only the first if both are equal: otherwise both would count in full
    chosen = smaller == torch.arange(2, device=smaller.device)[:, None]
    slopes = through_relu(chosen.unsqueeze(2) * layers[-1].weight.mT, inputs[-1])
    for layer, given in zip(layers[-2:0:-1], inputs[-2:0:-1], strict=True):
        slopes = through_relu(slopes @ layer.weight.mT, given)
    return least, (slopes @ layers[0].weight[:, obs.shape[1] :].mT).sum(dim=0)
