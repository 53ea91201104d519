"""Is a recipe DAPO? Each part of it against arXiv:2503.14476, and one verdict. Imports no torch."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from dapo_cli.config.schema import (
    Advantage,
    Aggregation,
    CorrectionKind,
    PythonReward,
    RatioLevel,
    Recipe,
    Surplus,
    Surrogate,
    TabularLearner,
)
from dapo_cli.config.shipped import recipes_folder
from dapo_cli.config.source import flatten
from dapo_cli.preflight.findings import shown_number


class Status(Enum):
    """A technique is ON or OFF; anything else, and a technique in another form, is the SAME as the paper's or
    DIFFERENT."""

    ON = "on"
    SAME = "same"
    OFF = "off"
    DIFFERENT = "different"


class Role(Enum):
    """What a trait that differs makes of the recipe: another ALGORITHM, the algorithm with a CHANGE of its own, or the
    same one at another SIZE."""

    ALGORITHM = "algorithm"
    CHANGE = "change"
    SIZE = "size"


@dataclass(frozen=True)
class Trait:
    """One part: `name` as the paper has it, `status` against the paper, its `value` here and in the `paper`."""

    name: str
    role: Role
    status: Status
    value: str
    paper: str

    @property
    def departs(self) -> bool:
        return self.status in (Status.OFF, Status.DIFFERENT)


@dataclass(frozen=True)
class Likeness:
    """`algorithm` is "DAPO", "DAPO, changed" or "not DAPO"; `line` says why. `preset` is the shipped preset, another
    one than DAPO, whose every key the recipe has; None where there is none."""

    algorithm: str
    line: str
    preset: str | None
    traits: tuple[Trait, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The entry for the manifest, JSON-able."""
        traits = [asdict(trait) | {"role": trait.role.value, "status": trait.status.value} for trait in self.traits]
        return {"algorithm": self.algorithm, "line": self.line, "preset": self.preset, "traits": traits}


def likeness(recipe: Recipe) -> Likeness:
    """The verdict on a recipe that passed the loader."""
    traits = (*_techniques(recipe), *_algorithm(recipe), *_changes(recipe), *_sizes(recipe))
    away = {role: [t for t in traits if t.role is role and t.departs] for role in Role}
    sizes = ", ".join(f"{trait.name} {trait.value}" for trait in away[Role.SIZE])
    if missing := away[Role.ALGORITHM]:
        preset = _preset(recipe)
        reasons = "; ".join(_reason(trait) for trait in missing)
        return Likeness("not DAPO", f"not DAPO: {f'{preset}: ' if preset else ''}{reasons}", preset, traits)
    if changes := away[Role.CHANGE]:
        line = f"DAPO, changed: {'; '.join(_reason(trait) for trait in changes)}"
        return Likeness("DAPO, changed", line + (f" (other sizes: {sizes})" if sizes else ""), None, traits)
    line = f"DAPO: the same algorithm, other sizes ({sizes})" if sizes else "DAPO: as the paper has it, sizes included"
    return Likeness("DAPO", line, None, traits)


def _reason(trait: Trait) -> str:
    """For example `clip-higher is off (clip to 1 - 0.2, 1 + 0.2)` or `KL term: 0.04 times k3`."""
    if trait.status is Status.OFF:
        return f"{trait.name} is off" + ("" if trait.value == "none" else f" ({trait.value})")
    return f"{trait.name}: {trait.value}"


def _technique(name: str, condition: bool, value: str, paper: str, other: Status) -> Trait:
    return Trait(name, Role.ALGORITHM, Status.ON if condition else other, value, paper)


def _like(name: str, role: Role, condition: bool, value: str, paper: str) -> Trait:
    return Trait(name, role, Status.SAME if condition else Status.DIFFERENT, value, paper)


def _techniques(recipe: Recipe) -> Iterator[Trait]:
    """The four of section 3."""
    sampler, algorithm, overlong = recipe.sampler, recipe.algorithm, recipe.overlong
    paper = "informative groups alone, refilled"
    value = "informative groups alone, not refilled" if sampler.dynamic else "every group is trained on"
    refills = sampler.dynamic and sampler.refill
    other = Status.DIFFERENT if sampler.dynamic else Status.OFF
    yield _technique("dynamic sampling", refills, paper if refills else value, paper, other)
    clips = algorithm.surrogate is Surrogate.clip
    value = f"clip to 1 - {shown_number(algorithm.clip_low)}, 1 + {shown_number(algorithm.clip_high)}"
    value = value if clips else f"surrogate {algorithm.surrogate.value}"
    higher = clips and algorithm.clip_high > algorithm.clip_low
    other = Status.OFF if clips else Status.DIFFERENT
    yield _technique("clip-higher", higher, value, "clip to 1 - 0.2, 1 + 0.28", other)
    token_mean = algorithm.aggregation is Aggregation.token_mean
    yield _technique("token-level loss", token_mean, algorithm.aggregation.value, "token_mean", Status.OFF)
    value = f"Eq. 13 over the last {overlong.cache_tokens:,} tokens" if overlong.penalty else "none"
    paper = "Eq. 13 over the last 4,096 tokens"
    yield _technique("soft overlong penalty", overlong.penalty, value, paper, Status.OFF)


def _algorithm(recipe: Recipe) -> Iterator[Trait]:
    """What else makes the objective."""
    algorithm = recipe.algorithm
    ratio = algorithm.ratio is RatioLevel.token
    yield _like("importance ratio", Role.ALGORITHM, ratio, f"of each {algorithm.ratio.value}", "of each token")
    std = algorithm.advantage is Advantage.group_std
    yield _like("advantage", Role.ALGORITHM, std, algorithm.advantage.value, "group_std")
    beta = algorithm.kl_coefficient
    yield _like("KL term", Role.ALGORITHM, beta == 0, f"{shown_number(beta)} times k3" if beta else "none", "none")


def _changes(recipe: Recipe) -> Iterator[Trait]:
    """What leaves the algorithm recognisable, but is not the paper's."""
    algorithm, sampler, correction = recipe.algorithm, recipe.sampler, recipe.correction
    own = isinstance(recipe.reward, PythonReward)
    failed = recipe.reward.failed_reward
    value = "your own function" if own else "+1 right, -1 wrong"
    value += "" if failed == -1 else f", {shown_number(failed)} where verification failed"
    yield _like("reward rule", Role.CHANGE, not own and failed == -1, value, "+1 right, -1 wrong")
    value = f"{correction.kind.value} by {correction.level.value}"
    value = "none" if correction.kind is CorrectionKind.none else value
    yield _like("engine correction", Role.CHANGE, correction.kind is CorrectionKind.none, value, "none")
    dual = algorithm.dual_clip
    value = "none" if dual is None else shown_number(dual)
    yield _like("dual clip", Role.CHANGE, dual in (None, 10), value, "none (the authors' script: 10)")
    filtered = recipe.overlong.filter_truncated
    value = "truncated completions leave the loss" if filtered else "none"
    yield _like("overlong filter", Role.CHANGE, not filtered, value, "none beside the soft penalty")
    skips = sampler.skip_solved_above is not None or sampler.skip_hopeless_below is not None
    yield _like("prompts passed over", Role.CHANGE, not skips, "by their last pass rate" if skips else "none", "none")
    stale = sampler.surplus is Surplus.carry or recipe.run.ahead > 0
    value = "some are of an earlier step's weights" if stale else "all are of the step's weights"
    yield _like("completions", Role.CHANGE, not stale, value, "all are of the step's weights")
    yield _like("passes over a batch", Role.CHANGE, algorithm.passes == 1, str(algorithm.passes), "1")
    temperature = recipe.sampling.temperature
    yield _like("temperature", Role.CHANGE, temperature == 1, shown_number(temperature), "1")
    tabular, rank = isinstance(recipe.learner, TabularLearner), recipe.learner.lora_rank
    value = "plain gradient descent" if tabular else "AdamW" if rank is None else f"AdamW on adapters of rank {rank}"
    yield _like("optimizer", Role.CHANGE, value == "AdamW", value, "AdamW")


def _sizes(recipe: Recipe) -> Iterator[Trait]:
    """Section 4.1's values; weight decay and gradient norm are of the authors' script."""
    algorithm, optimizer = recipe.algorithm, recipe.optimizer
    values: list[tuple[str, float, float]] = [
        ("group size", algorithm.samples_per_prompt, 16),
        ("groups a step", algorithm.groups_per_step, 512),
        ("groups an update", algorithm.groups_per_update, 32),
        ("L_max", recipe.sampling.max_tokens, 20480),
        ("learning rate", optimizer.lr, 1e-6),
        ("warm-up steps", optimizer.warmup_steps, 20),
        ("weight decay", optimizer.weight_decay, 0.1),
        ("gradient norm", optimizer.max_grad_norm, 1.0),
    ]
    if recipe.overlong.penalty:
        values.insert(4, ("L_cache", recipe.overlong.cache_tokens, 4096))
    if algorithm.surrogate is Surrogate.clip:
        values = [("clip_low", algorithm.clip_low, 0.2), ("clip_high", algorithm.clip_high, 0.28), *values]
    for name, value, paper in values:
        yield _like(name, Role.SIZE, value == paper, shown_number(value), shown_number(paper))


def _preset(recipe: Recipe) -> str | None:
    """What a shipped preset calls itself, of the most specific one whose keys all have the recipe's values."""
    matches = []
    for path in sorted((recipes_folder() / "algorithm").glob("*.yaml")):
        keys = flatten(yaml.safe_load(path.read_text(encoding="utf-8")))
        if path.stem != "dapo" and all(_same(_value(recipe, name), value) for name, value in keys.items()):
            matches.append((len(keys), _title(path)))
    return max(matches)[1] if matches else None


def _title(path: Path) -> str:
    """The preset's name in its first line of words: `# GRPO (DeepSeekMath, arXiv:2402.03300): symmetric clip`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    words = next(line for line in lines if line.startswith("# ") and not line.startswith("# @package"))
    return words.removeprefix("# ").partition(": ")[0]


def _value(recipe: Recipe, name: str) -> Any:
    value: Any = recipe
    for part in name.split("."):
        value = getattr(value, part)
    return value.value if isinstance(value, Enum) else value


def _same(value: Any, written: Any) -> bool:
    """YAML 1.1 reads `3.0e-4` as a number and `3e-4` as a text."""
    if isinstance(value, float) and not isinstance(written, bool) and written is not None:
        return value == float(written)
    return bool(value == written)
