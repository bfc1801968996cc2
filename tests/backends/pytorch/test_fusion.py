"""Graphs of torch.export programs that were rewritten give the same results."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from shoal.backends.pytorch.fusion import rewritten  # noqa: E402
from shoal.backends.pytorch.library import quiet  # noqa: E402


def norm(channels):
    made = nn.BatchNorm2d(channels)
    for tensor in (made.running_mean, made.weight.data, made.bias.data):
        tensor.normal_()
    made.running_var.uniform_(0.5, 2)
    return made


class Block(nn.Module):
    """Every form that convolutions, batch norms, sums and relus have in residual networks."""

    def __init__(self, inplace):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.first_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8)
        self.second, self.second_norm = nn.Conv2d(8, 8, 3, padding=1), norm(8)
        self.third, self.third_norm = nn.Conv2d(8, 8, 1), norm(8)
        self.around = nn.Conv2d(8, 8, 1)
        self.alone = norm(8)
        self.relu = nn.ReLU(inplace=inplace)
        self.inplace = inplace

    def forward(self, image):
        start = self.relu(self.first_norm(self.first(image)))
        inner = self.second_norm(self.second(start))
        if self.inplace:
            inner += start
        else:
            inner = start + inner
        middle = self.relu(inner)
        end = self.relu(self.third_norm(self.third(middle)) + self.around(middle))
        return {"scores": self.alone(end).mean((2, 3)), "sizes": end.sum((1, 2, 3))}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "inplace"])
def exported(request):
    with quiet:
        batch = torch.export.Dim("batch", min=1, max=16)
        example = (torch.zeros(2, 3, 8, 8),)
        program = torch.export.export(
            Block(request.param).eval(), example, dynamic_shapes=({0: batch},)
        )
        return program.module()


def operators(module):
    return Counter(str(node.target) for node in module.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("rows", [1, 3])
def test_the_results_are_the_same(exported, rows):
    image = torch.rand(rows, 3, 8, 8)
    expected = exported(image)
    found = rewritten(exported, fuse=False)(image)
    for tensor, other in zip(found, expected.values(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-4, atol=1e-4)
    again = exported(image)
    assert all(torch.equal(again[name], expected[name]) for name in expected)


def test_batch_norms_become_a_part_of_the_weights(exported):
    assert operators(exported)["aten.batch_norm.default"] == 4
    assert operators(rewritten(exported, fuse=False))["aten.batch_norm.default"] == 1  # `alone`


def test_convolutions_are_fused_with_what_follows(exported):
    found = operators(rewritten(exported, fuse=True))
    assert found["aten.cudnn_convolution_relu.default"] == 1
    assert found["aten.cudnn_convolution_add_relu.default"] == 2
    assert found["aten.conv2d.default"] == 1  # `around`
    assert not {name for name in found if "aten.relu" in name or "aten.add" in name}


def test_half_precision(exported):
    image = torch.rand(2, 3, 8, 8)
    made = rewritten(exported, half=torch.bfloat16, fuse=False)
    assert {tensor.dtype for tensor in made.parameters()} == {torch.bfloat16}
    scores, _ = made(image.bfloat16())
    expected = exported(image)["scores"]
    assert (scores.float() - expected).norm() < 0.05 * expected.norm()
    assert {tensor.dtype for tensor in exported.parameters()} == {torch.float32}


class Broadcasts(nn.Module):
    """A sum that is no residual connection, and a convolution that two read."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 1)
        self.norm = norm(4)

    def forward(self, image):
        found = self.convolution(image)
        return torch.relu(self.norm(found)) + torch.relu(found + image.mean((1, 2, 3), True))


def test_what_is_different_stays():
    with quiet:
        module = torch.export.export(Broadcasts().eval(), (torch.zeros(2, 3, 4, 4),)).module()
    made = rewritten(module, fuse=True)
    assert operators(made)["aten.batch_norm.default"] == 1
    image = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(made(image)[0], module(image))
