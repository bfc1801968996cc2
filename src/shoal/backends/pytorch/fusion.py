"""Graphs of torch.export programs, rewritten to run faster on a GPU.

    conv2d -> batch_norm -> (+ tensor) -> relu   becomes   one convolution of cuDNN's

Batch norms become part of the weights before them. The new graph takes the tensors one by one
and returns them one by one, without the checks and the nesting of the exported one. The module it
was made from is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.nn.utils.fusion import fuse_conv_bn_weights

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)
_NORMS = (_aten.batch_norm.default, _aten._native_batch_norm_legit_no_training.default)
_RELUS = (_aten.relu.default, _aten.relu_.default)
_ADDS = (_aten.add.Tensor, _aten.add_.Tensor)
_CHECKS = (_aten._assert_tensor_metadata.default,)


def rewritten(module: GraphModule, *, half: torch.dtype | None = None, fuse: bool) -> GraphModule:
    """A faster module, in the precision `half` if that is given. With `fuse`, convolutions are
    cuDNN's, which exist on GPUs only. Raises what PyTorch raises."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(tuple(output) if isinstance(output, list | tuple) else (output,))
    made = GraphModule(module, graph)
    for node in list(made.graph.nodes):
        if (node.op == "call_module" and node.target == "_guards_fn") or node.target in _CHECKS:
            made.graph.erase_node(node)
    _fold_batch_norms(made)
    if half is not None:
        _convert(made, half)
    if fuse:
        _fuse(made)
    made.graph.eliminate_dead_code()
    made.delete_all_unused_submodules()
    made.recompile()
    return made.eval()


def _fold_batch_norms(module: GraphModule) -> None:
    number = 0
    for norm in list(module.graph.nodes):
        if norm.target not in _NORMS:
            continue
        given = _arguments(norm)
        before = given["input"]
        result = norm
        if norm.target is _NORMS[1]:
            users = list(norm.users)
            if len(users) != 1 or users[0].args[1:] != (0,):
                continue
            result = users[0]
        elif given["training"]:
            continue
        if before.target not in _CONVOLUTIONS or len(before.users) != 1:
            continue
        own = _arguments(before)
        values = [own["weight"], own["bias"], given["running_mean"], given["running_var"]]
        values += [given["weight"], given["bias"]]
        if not all(value is None or value.op == "get_attr" for value in values):
            continue
        weight, bias, mean, variance, scale, shift = [
            None if value is None else _attribute(module, value.target) for value in values
        ]
        folded = fuse_conv_bn_weights(
            weight, bias, mean, variance, float(given["eps"]), scale, shift
        )
        names = [f"folded_weight_{number}", f"folded_bias_{number}"]
        number += 1
        for name, tensor in zip(names, folded, strict=True):
            module.register_parameter(name, torch.nn.Parameter(tensor.detach(), False))
        with module.graph.inserting_before(before):
            own["weight"], own["bias"] = [module.graph.get_attr(name) for name in names]
        before.args, before.kwargs = tuple(own.values()), {}
        result.replace_all_uses_with(before)
        if result is not norm:
            module.graph.erase_node(result)
        module.graph.erase_node(norm)


def _convert(module: GraphModule, half: torch.dtype) -> None:
    """Weights, and the types that the graph names, in half precision."""
    for node in module.graph.nodes:
        node.args = map_aggregate(node.args, lambda value: _halved(value, half))
        node.kwargs = map_aggregate(node.kwargs, lambda value: _halved(value, half))
        if node.op == "get_attr":
            tensor = _attribute(module, node.target)
            if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float32:
                _set_attribute(module, node.target, tensor.detach().to(half))


def _halved(value: Any, half: torch.dtype) -> Any:
    return half if value is torch.float32 else value


def _fuse(module: GraphModule) -> None:
    for relu in list(module.graph.nodes):
        if relu.target not in _RELUS:
            continue
        before = relu.args[0]
        if len(before.users) != 1:
            continue
        convolution, added = before, None
        if before.target in _ADDS:
            convolution, added = _sides(before)
        if (
            convolution is None
            or convolution.target is not _aten.conv2d.default
            or len(convolution.users) != 1
        ):
            continue
        given = _arguments(convolution)
        if given["bias"] is None or not isinstance(given["padding"], list | tuple):
            continue
        rest = (given["stride"], given["padding"], given["dilation"], given["groups"])
        with module.graph.inserting_before(relu):
            if added is None:
                target: Any = _aten.cudnn_convolution_relu.default
                arguments: tuple[Any, ...] = (given["input"], given["weight"], given["bias"], *rest)
            else:
                target = _aten.cudnn_convolution_add_relu.default
                arguments = (given["input"], given["weight"], added, 1.0, given["bias"], *rest)
            fused = module.graph.call_function(target, arguments)
            fused.meta = dict(relu.meta)
        relu.replace_all_uses_with(fused)
        for node in (relu, before, convolution):
            if not node.users and node in module.graph.nodes:
                module.graph.erase_node(node)


def _sides(add: Node) -> tuple[Node | None, Node | None]:
    """The convolution of a sum and what is added to it, if that has the same shape."""
    given = _arguments(add)
    one, other = given["self"], given["other"]
    if given["alpha"] != 1 or not isinstance(other, Node):
        return None, None
    if one.target is not _aten.conv2d.default:
        if add.target is _aten.add_.Tensor:  # writes to what others may read
            return None, None
        one, other = other, one
    shapes = [_shape(node) for node in (one, other)]
    if shapes[0] is None or shapes[0] != shapes[1]:
        return None, None
    return one, other


def _shape(node: Node) -> tuple[str, ...] | None:
    value = node.meta.get("val")
    return tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else None


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name, with defaults, in their order."""
    schema: Any = node.target._schema
    found: dict[str, Any] = {}
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            found[argument.name] = node.args[place]
        else:
            found[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return found


def _attribute(module: Any, target: Any) -> Any:
    for name in str(target).split("."):
        module = getattr(module, name)
    return module


def _set_attribute(module: Any, target: Any, tensor: torch.Tensor) -> None:
    *path, name = str(target).split(".")
    owner: Any = _attribute(module, ".".join(path)) if path else module
    registered: Mapping[str, Any] = owner._parameters
    if name in registered:
        setattr(owner, name, torch.nn.Parameter(tensor, False))
    else:
        setattr(owner, name, tensor)
