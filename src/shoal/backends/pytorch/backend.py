"""The backend `pytorch`: completes configs and loads models. Importing this imports torch."""

from __future__ import annotations

from shoal.backends.base import LoadContext, LoadedModel
from shoal.backends.file_backend import FileBackend
from shoal.backends.graph import Graph
from shoal.backends.pytorch import archive, completion
from shoal.backends.pytorch.model import PyTorchModel, open_program
from shoal.backends.pytorch.settings import BACKEND, MODEL_CLASS


class PyTorchBackend(FileBackend):
    """Serves TorchScript, torch.export programs, AOTInductor packages and modules in Python."""

    name = BACKEND
    stateless = False  # modules may change their buffers

    def describe(self, context: LoadContext) -> Graph:
        """Load the model on the CPU; a file that does not declare its outputs is run."""
        config, file = context.config, context.file
        found = archive.find(config, context.version_folder, file)
        compiled = found.kind is archive.ProgramKind.COMPILED  # for a fixed device
        program = open_program(
            found,
            None if compiled else completion.CPU,
            model_class=context.parameters(self.name).text(MODEL_CLASS),
            file=file,
        )
        try:
            return completion.describe(config, program, file)
        finally:
            program.close()

    def load(self, context: LoadContext) -> LoadedModel:
        """Load the model onto its first device, and check the config."""
        return PyTorchModel(context)
