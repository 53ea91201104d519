"""The loss of `grpo`, `dapo`, `dr_grpo`, `gspo` and `cispo` against TRL's on the same tensors (the bench extra)."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.family import MAX_TOKENS, Response
from tests.unit.test_family import family_loss, objective, random_responses

pytest.importorskip("trl", reason="the bench extra is not installed")


def trl_loss(responses: list[Response], loss_type: str, high: float, **settings: Any) -> torch.Tensor:
    """TRL's own function, given padded log-probs in place of a model."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    def padded(name: str) -> torch.Tensor:
        rows = [getattr(response, name) for response in responses]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each.old) for each in responses], batch_first=True)
    trainer = SimpleNamespace(
        loss_type=loss_type,
        epsilon_low=settings.get("low", 0.2),
        epsilon_high=high,
        beta=settings.get("beta", 0.0),
        importance_sampling_level=settings.get("level", "token"),
        max_completion_length=MAX_TOKENS,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded("logprobs"), torch.zeros_like(mask), None),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(responses), 0, dtype=torch.long),
        "prompt_mask": torch.zeros(len(responses), 0, dtype=torch.long),
        "completion_ids": mask.long(),
        "completion_mask": mask,
        "advantages": torch.stack([response.advantages[0] for response in responses]),
        "old_per_token_logps": padded("old"),
        "ref_per_token_logps": padded("ref"),
        "num_items_in_batch": mask.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs)


SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "high": 0.2, "beta": 0.04},
    "dapo": {"loss_type": "dapo", "high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "high": 0.2},
    "gspo": {"loss_type": "grpo", "low": 3e-4, "high": 4e-4, "level": "sequence"},
    "cispo": {"loss_type": "cispo", "high": 4.0},  # its epsilon_high is the cap itself
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("preset", SETTINGS)
def test_loss_and_gradient_equal_trls(preset: str, seed: int) -> None:
    logits, responses = random_responses(seed, spread=0.5)
    expected = trl_loss(responses, **SETTINGS[preset])
    gradients = torch.autograd.grad(expected, logits, retain_graph=True, materialize_grads=True)
    loss = family_loss(objective(preset), responses)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss, logits, materialize_grads=True), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
