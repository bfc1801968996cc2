"""The operators of ONNX that graphs of `shoal export` consist of, in PyTorch.

Values are tensors on the device, or small arrays of whole numbers on the CPU: sizes, shapes and
axes. The latter are computed while Python runs the graph, so a CUDA graph does not contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional

Value = Any  # torch.Tensor | np.ndarray
Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Value], Attributes], Value]


def _ints(value: Value) -> list[int]:
    found: list[int] = value.reshape(-1).tolist()
    return found


def _plain(function: Callable[..., Value]) -> Operator:
    """An operator that is one function of tensors, or of numbers."""
    return lambda inputs, _: function(*map(_operand, inputs))


def _operand(value: Value) -> Value:
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _gather(inputs: Sequence[Value], attributes: Attributes) -> Value:
    data, index = inputs
    axis = attributes.get("axis", 0)
    if isinstance(data, np.ndarray):
        return np.take(data, index, axis)
    if isinstance(index, np.ndarray):
        if index.ndim == 0:
            return data.select(axis, int(index))
        index = torch.from_numpy(index).to(data.device)
    if axis == 0 and data.dim() == 2:
        return functional.embedding(index, data)
    flat = data.index_select(axis, index.reshape(-1))
    return flat.reshape(*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])


def _concat(inputs: Sequence[Value], attributes: Attributes) -> Value:
    if all(isinstance(value, np.ndarray) for value in inputs):
        return np.concatenate(inputs, attributes["axis"])
    return torch.cat(list(inputs), attributes["axis"])


def _reshape(inputs: Sequence[Value], _: Attributes) -> Value:
    value, dims = inputs[0], _ints(inputs[1])
    return value.reshape([dim or value.shape[at] for at, dim in enumerate(dims)])


def _unsqueeze(inputs: Sequence[Value], _: Attributes) -> Value:
    value = inputs[0]
    for axis in sorted(_ints(inputs[1])):
        value = (
            np.expand_dims(value, axis) if isinstance(value, np.ndarray) else value.unsqueeze(axis)
        )
    return value


def _squeeze(inputs: Sequence[Value], _: Attributes) -> Value:
    value = inputs[0]
    axes = sorted(_ints(inputs[1]), reverse=True)
    for axis in axes:
        value = value.squeeze(axis)
    return value


def _split(inputs: Sequence[Value], attributes: Attributes) -> Value:
    value, axis = inputs[0], attributes.get("axis", 0)
    if len(inputs) > 1:
        return value.split(_ints(inputs[1]), axis)
    return value.chunk(attributes["outputs"], axis)


def _shape(inputs: Sequence[Value], attributes: Attributes) -> Value:
    dims = tuple(inputs[0].shape)
    end = attributes.get("end")
    return np.array(dims[attributes.get("start", 0) : len(dims) if end is None else end], np.int64)


def _conv(inputs: Sequence[Value], attributes: Attributes) -> Value:
    value, weight, *bias = inputs
    spatial = value.dim() - 2
    strides = attributes.get("strides", [1] * spatial)
    dilations = attributes.get("dilations", [1] * spatial)
    before, after = _padding(value.shape[2:], weight.shape[2:], strides, dilations, attributes)
    if before != after:  # PyTorch's convolutions pad both sides alike
        sides = zip(reversed(before), reversed(after), strict=True)  # of the last dimension first
        value = functional.pad(value, [size for pair in sides for size in pair])
        before = [0] * spatial
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    return convolution(
        value,
        weight,
        bias[0] if bias else None,
        strides,
        before,
        dilations,
        attributes.get("group", 1),
    )


def _padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    attributes: Attributes,
) -> tuple[list[int], list[int]]:
    """The padding before and after each spatial dimension of a convolution."""
    how = attributes.get("auto_pad", b"NOTSET")
    if how == b"VALID":
        return [0] * len(sizes), [0] * len(sizes)
    if how == b"NOTSET":
        pads = list(attributes.get("pads", [0] * 2 * len(sizes)))
        return pads[: len(sizes)], pads[len(sizes) :]
    totals = [
        max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if how == b"SAME_UPPER" else (more, less)


def _layer_norm(inputs: Sequence[Value], attributes: Attributes) -> Value:
    value, scale, *shift = inputs
    return functional.layer_norm(
        value, scale.shape, scale, shift[0] if shift else None, attributes.get("epsilon", 1e-5)
    )


def _where(inputs: Sequence[Value], _: Attributes) -> Value:
    condition, yes, no = inputs
    return torch.where(condition, yes, no)


def _attention(inputs: Sequence[Value], _: Attributes) -> Value:
    query, keys, values = inputs
    return functional.scaled_dot_product_attention(query, keys, values, scale=1.0)


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "Add": _plain(torch.add),
        "And": _plain(torch.logical_and),
        "Concat": _concat,
        "Conv": _conv,
        "Div": _plain(torch.div),
        "Erf": _plain(torch.erf),
        "Expand": lambda inputs, _: inputs[0].expand(_ints(inputs[1])),
        "Gather": _gather,
        "Greater": _plain(torch.gt),
        "Identity": lambda inputs, _: inputs[0],
        "LayerNormalization": _layer_norm,
        "Less": _plain(torch.lt),
        "LessOrEqual": _plain(torch.le),
        "MatMul": _plain(torch.matmul),
        "Mul": _plain(torch.mul),
        "Relu": _plain(torch.relu),
        "Reshape": _reshape,
        "Shape": _shape,
        "Sigmoid": _plain(torch.sigmoid),
        "Softmax": lambda inputs, attributes: inputs[0].softmax(attributes.get("axis", -1)),
        "Split": _split,
        "Squeeze": _squeeze,
        "Sub": _plain(torch.sub),
        "Tanh": _plain(torch.tanh),
        "Transpose": lambda inputs, attributes: inputs[0].permute(attributes["perm"]),
        "Unsqueeze": _unsqueeze,
        "Where": _where,
        # Ours: see `fusions`.
        "fused.Attention": _attention,
        "fused.Gelu": lambda inputs, attributes: functional.gelu(inputs[0], **attributes),
        "fused.Linear": lambda inputs, _: functional.linear(*inputs),
    }
)
