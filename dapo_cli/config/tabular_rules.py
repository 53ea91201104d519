"""Rules of `model: tabular`, part of `validate`."""

from collections.abc import Iterator

from dapo_cli.config.keys import shown
from dapo_cli.config.schema import Recipe, TabularData, TabularLearner, TabularModel, TabularRollout

ALL_OR_NONE = "a table is model, data, rollout and learner in one; choose all four or none"

# Keys that no table reads: of texts, of how a transformer is held or computed, and of AdamW.
UNREAD = {
    "data": ("instruction", "chat_template", "max_prompt_tokens"),
    "learner": (
        *("micro_batch_tokens", "compute_dtype", "fp32_head", "activation_checkpointing", "liger_kernels"),
        *("lora_rank", "lora_alpha"),
    ),
    "optimizer": ("beta1", "beta2"),
}


def tabular_rules(recipe: Recipe) -> Iterator[str]:
    """The table is model, data, engine and learner in one; what it has no room for is refused."""
    parts = {
        "model": isinstance(recipe.model, TabularModel),
        "data": isinstance(recipe.data, TabularData),
        "rollout": isinstance(recipe.rollout, TabularRollout),
        "learner": isinstance(recipe.learner, TabularLearner),
    }
    if not any(parts.values()):
        return
    if missing := [name for name, tabular in parts.items() if not tabular]:
        there = ", ".join(f"{name} tabular" for name, tabular in parts.items() if tabular)
        choices = " ".join(f"{name}=tabular" for name in missing)
        yield f"{there} without {choices}: {ALL_OR_NONE}"
        return
    match recipe.model:
        case TabularModel(shift_low=low, shift_high=high) if low > high:
            yield f"model.shift_low = {low} is above model.shift_high = {high}; lower it"
    if recipe.eval.data is not None:
        yield "eval.data with model tabular: a table's accuracy is summed over its own rows; set eval.data=null"
    if recipe.optimizer.weight_decay:
        yield (
            f"optimizer.weight_decay = {recipe.optimizer.weight_decay} with learner tabular: it is plain gradient "
            "descent on logits; set 0"
        )
    for section, names in UNREAD.items():
        config = getattr(recipe, section)
        for name in names:
            if (value := getattr(config, name)) != getattr(type(config), name):
                yield f"{section}.{name} = {shown(value)} with model tabular: a table has no such thing; delete it"
