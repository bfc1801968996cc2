"""The model on disk, and its config for a number of sessions, with or without batching."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from shoal.config import shapes
from shoal.config.model import ModelConfig, ModelDynamicBatching, ModelInstanceGroup
from shoal.config.suggest import near_match
from shoal.errors import InvalidArgument, NotFound
from shoal.repository.inspection import Inspection
from shoal.repository.layout import is_model_folder
from shoal.repository.preparation import PreparationSettings
from shoal.stress.cell import ServerSetup

TASK = "question-answering"


@dataclass(frozen=True, slots=True)
class QuestionModel:
    """A question-answering model on disk."""

    name: str
    repository: Path
    config: ModelConfig  # complete

    def configured(self, setup: ServerSetup) -> ModelConfig:
        """Its config with this number of instances, with or without batching."""
        assert setup.sessions is not None
        groups = self.config.instance_group or (ModelInstanceGroup(kind="KIND_CPU"),)
        group = dataclasses.replace(groups[0], count=setup.sessions)
        dynamic, parameters = None, self.config.parameters
        if setup.batching:
            dynamic = self.config.dynamic_batching or ModelDynamicBatching()
        else:  # parameters about batches would be refused without batching
            parameters = {key: parameters[key] for key in parameters if key not in shapes.KEYS}
        return dataclasses.replace(
            self.config,
            instance_group=(group,),
            dynamic_batching=dynamic,
            parameters=parameters,
            response_cache=None,  # it would answer instead of the model
        )


def find_model(repository: str, name: str, settings: PreparationSettings) -> QuestionModel:
    """The model of that name in a repository; without a name, the only one for questions.

    `repository` may be the folder of the model itself. Raises NotFound and InvalidArgument.
    """
    path = Path(repository)
    with contextlib.closing(Inspection([path], settings)) as inspection:
        names = list(inspection.names())
        if name and name not in names:
            near = near_match(name, names)
            advice = f"did you mean '{near}'?" if near else f"there is: {', '.join(names)}"
            raise NotFound(f"there is no model '{name}' in '{repository}'; {advice}")
        reports = {each: inspection.report(each) for each in ([name] if name else names)}
    for report in reports.values():
        if name and report.config is None:
            problem = report.problems[0]
            raise InvalidArgument(f"model '{name}' cannot be served: {problem.message}")
    found = {
        each: report.config
        for each, report in reports.items()
        if report.config is not None and _task(report.config) == TASK
    }
    if not found:
        which = f"model '{name}' is" if name else f"'{repository}' contains no model that is"
        raise InvalidArgument(
            f"{which} {'not ' if name else ''}for questions; its config needs "
            f'parameters {{ key: "task" value {{ string_value: "{TASK}" }} }}'
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"'{repository}' contains several models for questions ({', '.join(found)}); name one "
            f"with --model"
        )
    ((chosen, config),) = found.items()
    if not config.max_batch_size:
        raise InvalidArgument(
            f"model '{chosen}' does not batch (its max_batch_size is 0), so there is nothing to "
            f"compare"
        )
    folder = path.resolve().parent if is_model_folder(path) else path
    return QuestionModel(chosen, folder, config)


def _task(config: ModelConfig) -> str:
    parameter = config.parameters.get("task")
    return "" if parameter is None else parameter.string_value
