"""gRPC: our own thin HTTP/2 transport, and the service it carries.

    listener --> transport --> h2 --> dispatch --> call --> service
       |            |          |                    '-- message, compression, status
    deadlines   keepalive   control, flow, headers, guard (frames: wire/http2_frames)

Of the transport only `listener` and `transport` know asyncio; everything below them takes bytes
and gives bytes. The service knows `call` and nothing of HTTP/2.
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
