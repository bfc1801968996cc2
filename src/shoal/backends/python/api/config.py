"""`pb_utils.ModelConfig`: what `auto_complete_config` fills in.

A model may add what config.pbtxt leaves out but must not contradict it: that is a ValueError,
which fails the load with its text.
"""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """A model's configuration while it is being completed."""

    def __init__(self, model_config: str) -> None:
        """`model_config` is JSON, as `initialize` gets it."""
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration, to look at."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch. The config may already allow less, never more."""
        written = self._model_config.get("max_batch_size", 0)
        if written > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {written}, but in auto-complete-config "
                f"function for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching, with the settings of the config or the defaults."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but "
                    f"auto-complete-config function for model '{self._name}' tries to set "
                    f"scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input: a dict of name, data_type ("TYPE_FP32"), dims and perhaps optional."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output: a dict of name, data_type ("TYPE_FP32") and dims."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set {"decoupled": True}: any number of responses to a request."""
        where = f"auto-complete-config function for model '{self._name}'"
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in {where} contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, kind: str, tensor: dict[str, Any], allowed: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, allowed)
        name = tensor["name"]
        tensors = self._model_config.setdefault(kind, [])
        written = next((known for known in tensors if known["name"] == name), None)
        if written is None:
            tensors.append(tensor)
            return
        data_type = written.get("data_type", "TYPE_INVALID")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} "
                f"for {kind} '{name}', model provides {tensor['data_type']}"
            )
        for field in ("dims", "optional"):
            found, wanted = written.get(field), tensor.get(field)
            known = bool(found) if field == "dims" else "optional" in written
            if known and field in tensor and found != wanted:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {field} {wanted} "
                    f"but the model configuration specifies {field} {found}"
                )
        written.update(tensor)

    def _check_properties(
        self, kind: str, tensor: dict[str, Any], allowed: tuple[str, ...]
    ) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if set(tensor) - set(allowed):
            names = [f"'{name}'" for name in allowed]
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            raise ValueError(
                f"{kind} '{tensor.get('name', '')}' {where} contains property other than {listed}."
            )
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for field in ("data_type", "dims"):
            if field not in tensor:
                raise ValueError(
                    f"{kind} '{tensor['name']}' {where} is missing '{field}' property."
                )
