"""All peers by name, in the order in which tables show them."""

from __future__ import annotations

from benchmarks.peers.base import Peer
from benchmarks.peers.bentoml import BentoMl
from benchmarks.peers.fastapi import FastApi
from benchmarks.peers.litserve import LitServe
from benchmarks.peers.mlserver import MlServer
from benchmarks.peers.mosec import Mosec, MosecBatching
from benchmarks.peers.ray_serve import RayServe
from benchmarks.peers.responder import Responder
from benchmarks.peers.shoal import Shoal
from benchmarks.peers.triton import Triton
from benchmarks.peers.triton_onnx import TritonOnnx

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Shoal(),
        TritonOnnx(),
        Triton(),
        Mosec(),
        MosecBatching(),
        FastApi(),
        MlServer(),
        LitServe(),
        BentoMl(),
        RayServe(),
        Responder(),
    )
}
