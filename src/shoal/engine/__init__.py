"""The one entry point of every frontend, whatever the protocol.

    contract   `Engine`: what a frontend may call, and what every engine does alike
    local      `LocalEngine`: repository, models and queues are in this process
    linked     `LinkedEngine`: they are in the engine process, at the other end of a link

Frontends know the contract only.
"""

from shoal.engine.contract import EXTENSIONS, Engine, EngineModel

__all__ = ["EXTENSIONS", "Engine", "EngineModel"]
