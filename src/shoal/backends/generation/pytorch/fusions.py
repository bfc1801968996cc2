"""Replaces groups of ONNX operators by one operator that PyTorch has a fast kernel for.

    MatMul, Add                    a linear layer
    Div, Erf, Add, Mul, Mul        GELU, and its approximation with Tanh
    Transpose, MatMul, Softmax, MatMul    attention without a mask

What does not match stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.backends.generation.pytorch.onnx_file import OnnxGraph, OnnxNode

TRANSPOSED = " (transposed)"  # ends the name of a weight that is read as [out, in]
_KEYS_TRANSPOSED = [0, 1, 3, 2]


def fused(graph: OnnxGraph) -> list[OnnxNode]:
    """The nodes of the same graph with fewer operators."""
    matcher = _Matcher(graph)
    for node in graph.nodes:
        if node.operator == "Add":
            matcher.linear(node)
        elif node.operator in ("Erf", "Tanh"):
            matcher.gelu(node)
        elif node.operator == "Softmax":
            matcher.attention(node)
    return matcher.result()


class _Matcher:
    def __init__(self, graph: OnnxGraph) -> None:
        self._nodes = graph.nodes
        self._weights = graph.weights
        self._outputs = graph.outputs
        self._maker = {name: node for node in graph.nodes for name in node.outputs}
        self._readers: dict[str, list[OnnxNode]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)
        # By the last output of each group that was replaced.
        self._replaced: dict[str, OnnxNode] = {}
        self._gone: set[str] = set()  # outputs of the others in these groups

    def result(self) -> list[OnnxNode]:
        """All nodes, with the replacements."""
        return [
            self._replaced.get(node.outputs[0], node)
            for node in self._nodes
            if node.outputs[0] not in self._gone
        ]

    def linear(self, add: OnnxNode) -> None:
        """MatMul by a matrix, and Add of its bias."""
        for product, bias in (add.inputs, add.inputs[::-1]):
            multiply = self._made_by(product, "MatMul")
            if multiply is None or self._rank(bias) != 1 or self._rank(multiply.inputs[1]) != 2:
                continue
            value, weight = multiply.inputs
            inputs = (value, weight + TRANSPOSED, bias)
            self._replace(add, [multiply], OnnxNode("fused.Linear", inputs, add.outputs, {}))
            return

    def gelu(self, middle: OnnxNode) -> None:
        """Product v * (1 + erf(v / sqrt 2)) * 0.5, or tanh(0.8 (v + 0.04 v^3)) in place of erf."""
        plus_one = self._next(middle, "Add", 1.0)
        times = self._next(plus_one, "Mul")
        half = self._next(times, "Mul", 0.5)
        if plus_one is None or times is None or half is None:
            return
        value = next((name for name in times.inputs if name != plus_one.outputs[0]), "")
        if middle.operator == "Erf":
            before = [self._made_by(middle.inputs[0], "Div")]
            fits = before[0] is not None and (
                before[0].inputs[0] == value and self._number(before[0].inputs[1]) is not None
            )
        else:
            scale = self._made_by(middle.inputs[0], "Mul")
            total = self._first_maker(scale, "Add")
            cubed = self._first_maker(total, "Mul", but=value)
            cube = self._first_maker(cubed, "Mul")
            square = self._first_maker(cube, "Mul", but=value)
            before = [scale, total, cubed, cube, square]
            fits = square is not None and square.inputs == (value, value)
        if fits:
            approximate = "none" if middle.operator == "Erf" else "tanh"
            others = [node for node in before if node is not None]
            made = OnnxNode("fused.Gelu", (value,), half.outputs, {"approximate": approximate})
            self._replace(half, [*others, middle, plus_one, times], made)

    def attention(self, softmax: OnnxNode) -> None:
        """Of queries to keys that were transposed for that; queries are scaled already."""
        scores = self._made_by(softmax.inputs[0], "MatMul")
        found = self._next(softmax, "MatMul")
        if scores is None or found is None or found.inputs[0] != softmax.outputs[0]:
            return
        keys = self._made_by(scores.inputs[1], "Transpose")
        if keys is None or keys.attributes.get("perm") != _KEYS_TRANSPOSED:
            return
        inputs = (scores.inputs[0], keys.inputs[0], found.inputs[1])
        made = OnnxNode("fused.Attention", inputs, found.outputs, {})
        self._replace(found, [keys, scores, softmax], made)

    def _replace(self, last: OnnxNode, others: Sequence[OnnxNode], made: OnnxNode) -> None:
        self._replaced[last.outputs[0]] = made
        self._gone.update(name for node in others for name in node.outputs)

    def _made_by(self, name: str, operator: str) -> OnnxNode | None:
        """The node that makes a value for one reader alone, if it is such an operator."""
        node = self._maker.get(name)
        alone = len(self._readers.get(name, ())) == 1 and name not in self._outputs
        return node if node is not None and node.operator == operator and alone else None

    def _first_maker(self, node: OnnxNode | None, operator: str, but: str = "") -> OnnxNode | None:
        """As `_made_by`, for the first input of a node that is made by that operator."""
        if node is None:
            return None
        makers = (self._made_by(name, operator) for name in node.inputs if name != but)
        return next((maker for maker in makers if maker is not None), None)

    def _next(
        self, node: OnnxNode | None, operator: str, number: float | None = None
    ) -> OnnxNode | None:
        """The one reader of a node's result, if it is such an operator, with this number."""
        readers = [] if node is None else self._readers.get(node.outputs[0], [])
        if len(readers) != 1 or readers[0].operator != operator:
            return None
        if node is not None and node.outputs[0] in self._outputs:
            return None
        fits = number is None or number in map(self._number, readers[0].inputs)
        return readers[0] if fits else None

    def _number(self, name: str) -> float | None:
        array = self._weights.get(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def _rank(self, name: str) -> int | None:
        array = self._weights.get(name)
        return None if array is None else array.ndim
