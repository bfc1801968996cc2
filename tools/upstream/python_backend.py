"""`examples/` of python_backend."""

from __future__ import annotations

from upstream.example import Client, Example, Source


def _model(name: str, folder: str, prefix: str = "") -> dict[str, Source]:
    """A Python model and its configuration."""
    return {
        f"models/{name}/1/model.py": f"examples/{folder}/{prefix}model.py",
        f"models/{name}/config.pbtxt": f"examples/{folder}/{prefix}config.pbtxt",
    }


def _example(
    name: str, models: dict[str, Source], client: str, prints: str, needs: tuple[str, ...] = ()
) -> Example:
    return Example(
        name=f"python_backend/{name}",
        clone="python_backend",
        files={**models, "client.py": f"examples/{client}"},
        clients=(Client("python client.py", (prints,)),),
        needs=needs,
    )


EXAMPLES = (
    _example("add_sub", _model("add_sub", "add_sub"), "add_sub/client.py", "PASS: add_sub"),
)
