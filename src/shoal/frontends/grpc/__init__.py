"""gRPC on our own HTTP/2: one small file per concern, and no library but `hpack`.

    listener --> transport --> h2 --> dispatch --> call --> service
       |            |          |                    '-- message, compression, status
    deadlines   keepalive   control, flow, headers, guard, frames

Only `listener` and `transport` know asyncio; everything below takes bytes and gives bytes.
"""

from shoal.frontends.grpc.call import Call, Kind, Method, Service
from shoal.frontends.grpc.listener import GrpcListener
from shoal.frontends.grpc.settings import CompressionLevel, GrpcLimits, GrpcSettings, KeepAlive
from shoal.frontends.grpc.status import StatusCode

__all__ = [
    "Call",
    "CompressionLevel",
    "GrpcLimits",
    "GrpcListener",
    "GrpcSettings",
    "KeepAlive",
    "Kind",
    "Method",
    "Service",
    "StatusCode",
]
