"""The first program of the image: it becomes the program that the arguments name.

    docker run IMAGE                                     tritonserver --model-repository=/models
    docker run IMAGE --model-repository=/models          tritonserver --model-repository=/models
    docker run IMAGE tritonserver --http-port=9000 ...   as written
    docker run IMAGE shoal check /models                 as written, as any program of the image
    docker run IMAGE serve                               shoal sagemaker serve: SageMaker does this

It replaces itself, so that the server is process 1 and gets the signals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

MODELS = "/models"


def program(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The program to run and its arguments, for the arguments of the container."""
    if not words:
        # Vertex AI names the repository in a variable.
        repository = [] if environ.get("AIP_STORAGE_URI") else [f"--model-repository={MODELS}"]
        return ["tritonserver", *repository]
    if words[0].startswith("-"):
        return ["tritonserver", *words]
    if words[0] == "serve":
        return ["shoal", "sagemaker", *words]
    return list(words)


def main() -> None:
    """Become the program. If it cannot be run, the exit code is that of a shell: 127 or 126."""
    words = program(sys.argv[1:], os.environ)
    try:
        os.execvp(words[0], words)  # noqa: S606  # what to run is the operator's choice
    except FileNotFoundError:
        sys.stderr.write(
            f"error: there is no program '{words[0]}' in this image; "
            f"write 'tritonserver OPTION ...' or 'shoal COMMAND ...'\n"
        )
        sys.exit(127)
    except OSError as error:
        sys.stderr.write(f"error: '{words[0]}' cannot be run: {error.strerror}\n")
        sys.exit(126)


if __name__ == "__main__":
    main()
