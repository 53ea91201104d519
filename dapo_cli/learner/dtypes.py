"""A recipe's types as torch's."""

import torch

from dapo_cli.config.schema import Precision

DTYPES: dict[Precision, torch.dtype] = {precision: getattr(torch, precision.value) for precision in Precision}
