"""Triton's name for `shoal.tritonserver.frontends`."""

from shoal.tritonserver.frontends import KServeGrpc, KServeHttp, Metrics

__all__ = ["KServeGrpc", "KServeHttp", "Metrics"]
