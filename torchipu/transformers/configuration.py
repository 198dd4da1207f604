"""`IPUConfig`: how a model of transformers lies on IPUs, in the manner of optimum-graphcore and in its JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from torchipu.errors import OptionsError, nearest
from torchipu.transformers.options import options_of
from torchipu.transformers.settings import Settings
from torchipu.transformers.speech import logger

IPU_CONFIG_NAME = "ipu_config.json"
DEFAULT_POD = "default"
RENAMED = {
    "gradient_accumulation": "gradient_accumulation_steps",
    "random_seed": "seed",
    "inference_gradient_accumulation_steps": "",
}
"""Names that options had once; empty for those that mean nothing any more."""
WITHOUT_EFFECT = frozenset({
    "architectures", "attn_matrix_target_mem_mb", "decompose_grad_sum", "execute_encoder_on_cpu_for_generation",
    "explicit_ir_inference", "inference_parallelize_kwargs", "model_type", "name_or_path", "optimum_version",
    "parallelize_kwargs", "transformers_version", "use_popdist",
})
"""Keys that files of optimum-graphcore have and that change no number and no placement here.

How Poplar lowers a program (`decompose_grad_sum`, `explicit_ir_inference`) is not chosen, nor how attention of Stable
Diffusion is cut (`attn_matrix_target_mem_mb`); generation, which
`execute_encoder_on_cpu_for_generation` and the arguments of `parallelize` are about, runs on the host; whether there
are several processes is the launcher's to say. The others are of the file itself.
"""
SPLITS = frozenset({
    "inference_serialized_embedding_splits_per_ipu", "inference_serialized_projection_splits_per_ipu",
    "serialized_embedding_splits_per_ipu", "serialized_projection_splits_per_ipu",
})
"""Keys that spread parts of the vocabulary over IPUs, which is refused."""
ON = frozenset({"compile_only", "eager_execution"})
"""Keys that are refused where they are true."""


@dataclass(init=False)
class IPUConfig(Settings):
    """How a model lies on IPUs, and how one call of it loops; given by keywords, the keys of ``ipu_config.json``.

    A value may be a dictionary by the size of a machine, as in ``{"default": 1, "pod16": 4}``: see `for_pod_type`.
    Unknown keywords are kept and said to be of no effect.

    Its attributes are those of `Settings`.

    Raises:
        OptionsError: A value is of the wrong type or out of range.
    """

    def __init__(self, **options: Any) -> None:
        known = {one.name: one.default for one in fields(self)}
        self._by_pod: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, Any] = {}
        for name, value in known.items():
            setattr(self, name, value)
        for given, value in options.items():
            name = RENAMED.get(given, given)
            if name not in known:
                self._keep(given, value, known)
            else:
                setattr(self, name, self._of_pod(name, value))
        self._check()

    def __getattr__(self, name: str) -> Any:
        """Return an option without effect as it was given.

        Raises:
            AttributeError: There is none of that name.
        """
        kept = self.__dict__.get("_kept", {})
        if name not in kept:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return kept[name]

    def _keep(self, name: str, value: Any, known: Mapping[str, Any]) -> None:
        """Keep an option without effect; say so where it may be a slip of the pen.

        Raises:
            OptionsError: It would have one that there is not here.
        """
        self._kept[name] = value
        if name in SPLITS:
            _refuse_splits(name, value)
            return
        if name in ON:
            _refuse_on(name, value)
            return
        if name not in WITHOUT_EFFECT and name not in RENAMED:
            logger.warning("IPUConfig: %r is unknown and has no effect%s", name, nearest(name, known))

    def _of_pod(self, name: str, value: Any, pod: str | None = None) -> Any:
        """Return the value for a machine, of one that has several; before one is chosen, the default."""
        if not isinstance(value, Mapping):
            return tuple(value) if isinstance(value, list) else value
        if pod is not None and pod not in value and DEFAULT_POD not in value:
            raise OptionsError(
                f"IPUConfig: {name}={dict(value)} has no value for {pod!r}", option=name, value=value,
                allowed=", ".join(map(str, value)),
            )
        self._by_pod[name] = dict(value)
        of_field = type(self).__dataclass_fields__[name].default
        return self._of_pod(name, value.get(pod, value.get(DEFAULT_POD, of_field)))

    # ------------------------------------------------------------------ options
    def to_options(self, for_inference: bool = False, compile_only: bool = False) -> Any:
        """Return the ``poptorch.Options`` that this stands for.

        Args:
            for_inference: Whether for an inference model.
            compile_only: Compile for a machine that is not there.
        """
        return options_of(self, for_inference=for_inference, compile_only=compile_only)

    def for_pod_type(self, pod_type: str = DEFAULT_POD) -> Self:
        """Return the same with the values for a machine, such as ``pod16``, where a value was given for several.

        Args:
            pod_type: The machine.

        Raises:
            OptionsError: A value has neither this machine nor a default.
        """
        twin = type(self)(**self.to_dict())
        for name, values in self._by_pod.items():
            setattr(twin, name, twin._of_pod(name, values, pod_type))
        twin._by_pod = {}
        twin._check()
        return twin

    def update(self, **changes: Any) -> Self:
        """Return the same with other values; those that are None stay."""
        return type(self)(**self.to_dict() | {name: value for name, value in changes.items() if value is not None})

    # ------------------------------------------------------------------ files
    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, those for several machines and those without effect too."""
        return {**{name: _plain(value) for name, value in asdict(self).items()}, **self._by_pod, **self._kept}

    def to_json_string(self) -> str:
        """Return the JSON of `to_dict`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write ``ipu_config.json`` into a folder, which is made where there is none.

        Args:
            save_directory: The folder.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / IPU_CONFIG_NAME).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """Read a configuration.

        Args:
            path: A folder with ``ipu_config.json``, or a JSON file. Nothing is fetched.
            **changes: Values in the place of those of the file.

        Raises:
            OSError: There is no such file.
            OptionsError: It holds no JSON object.
        """
        file = Path(path) / IPU_CONFIG_NAME if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise OSError(
                f"there is no {IPU_CONFIG_NAME} at {os.fspath(path)!r}: give a local folder or file; names on the "
                "Hugging Face hub are not looked up (huggingface-cli download Graphcore/bert-base-ipu --local-dir ...)"
            )
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise _no_object(file) from error
        if not isinstance(values, dict):
            raise _no_object(file)
        return cls(**values | changes)


def _refuse_splits(name: str, value: Any) -> None:
    if not value:
        return
    parts = sum(value) if isinstance(value, list) else value
    factor = name.replace("serialized_", "").replace("splits_per_ipu", "serialization_factor")
    raise OptionsError(
        f"IPUConfig: {name}={value}: the vocabulary is not spread over IPUs", option=name, value=value,
        remedy=f"use {factor}={parts}, which computes it in as many parts where it lies",
    )


def _refuse_on(name: str, value: Any) -> None:
    if value:
        remedy = "give IPUTrainingArguments(compile_only=True)" if name == "compile_only" else "leave it out"
        raise OptionsError(f"IPUConfig: {name}={value!r} is not for the IPU", option=name, value=value, remedy=remedy)


def _no_object(file: Path) -> OptionsError:
    return OptionsError(f"{file} holds no JSON object", option=IPU_CONFIG_NAME, value=os.fspath(file))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
