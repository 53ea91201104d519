"""The reference model of a KL term: the weights that the run started from."""

import copy
from typing import Any

from dapo_cli.config.schema import LearnerConfig


def starting_copy(model: Any, config: LearnerConfig, has_reference: bool) -> Any:
    """A frozen copy of the model as it came from `model.path`, or None: where there is no reference, or where adapters
    leave the starting weights as they are.

    A resume loads its checkpoint into the model after this copy, so the reference stays that of the run's start.
    """
    if not has_reference or config.lora_rank is not None:
        return None
    return copy.deepcopy(model).requires_grad_(False)
