"""What generates in an evaluation: an engine of this process, or a server, behind one face."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dapo_cli.config.load import load_section
from dapo_cli.config.schema import (
    Precision,
    RolloutConfig,
    TransformersRollout,
    VllmColocatedRollout,
    VllmRollout,
)
from dapo_cli.data.prompts import instructed
from dapo_cli.distributed.world import World, join_world
from dapo_cli.errors import UserError
from dapo_cli.evaluation.data_set import DataSet
from dapo_cli.evaluation.endpoint import Endpoint
from dapo_cli.evaluation.options import TRANSFORMERS, VLLM, Draw, Options
from dapo_cli.evaluation.records import Problem, Sample
from dapo_cli.evaluation.subject import Subject
from dapo_cli.learner.dtypes import DTYPES
from dapo_cli.pretrained import load_weights
from dapo_cli.protocols import RolloutEngine
from dapo_cli.rollout.transformers_engine import TransformersEngine
from dapo_cli.rollout.vllm_settings import ALONE_GPU_SHARE, require_vllm


class Generator(Protocol):
    together: int
    """Problems that share a batch, in the order of the data: what is generated again after an interruption is whole
    batches, since a completion depends on its batch through float rounding. 1 where a batch is not the caller's to
    choose."""

    @property
    def not_sent(self) -> Sequence[str]:
        """Settings of the draw that a server does not know, and which stay as it has them; known after generating."""
        ...

    def load(self, step: int | None) -> None:
        """Take over the weights of a checkpoint; None keeps the model's own."""
        ...

    def generate(self, data: DataSet, problems: Sequence[Problem], draw: Draw) -> Iterator[dict[int, list[Sample]]]:
        """The samples of each problem, by its place, as they are done."""
        ...

    def close(self) -> None: ...


class LocalGenerator:
    """An engine that training has, too."""

    not_sent: Sequence[str] = ()

    def __init__(self, engine: RolloutEngine, subject: Subject, together: int) -> None:
        self.together = together
        self._engine = engine
        self._subject = subject

    def load(self, step: int | None) -> None:
        if step is not None:
            self._engine.sync_weights(self._subject.weights(step))

    def generate(self, data: DataSet, problems: Sequence[Problem], draw: Draw) -> Iterator[dict[int, list[Sample]]]:
        prompts = [problem.prompt for problem in problems]
        for finished in self._engine.generate(prompts, draw.samples, draw.sampling, draw.key):
            yield {
                place: [Sample(each.text, each.finish, len(each.token_ids)) for each in completions]
                for place, completions in finished.items()
            }

    def close(self) -> None:
        self._engine.close()


class RemoteGenerator:
    """A server's model."""

    together = 1

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def not_sent(self) -> Sequence[str]:
        return self._endpoint.not_sent

    def load(self, step: int | None) -> None:
        """It has its weights."""

    def generate(self, data: DataSet, problems: Sequence[Problem], draw: Draw) -> Iterator[dict[int, list[Sample]]]:
        chats = [
            [message._asdict() for message in instructed(problem.question, data.config)]
            if data.config.chat_template
            else problem.prompt.text
            for problem in problems
        ]
        return self._endpoint.generate(chats, [problem.prompt.uid for problem in problems], draw)

    def close(self) -> None:
        self._endpoint.close()


def rollout_section(options: Options, subject: Subject) -> RolloutConfig | None:
    """The engine's settings, None for a server: as --engine says, else as the run generates, else transformers.

    Raises UserError for settings that cannot serve, and where vLLM is asked for and not there.
    """
    if options.remote:
        return None
    of_run = subject.recipe.rollout if subject.recipe else None
    kind = options.engine or (VLLM if isinstance(of_run, VllmRollout) else TRANSFORMERS)
    if kind == TRANSFORMERS:
        section: TransformersRollout = load_section("rollout", "transformers", options.of_section("rollout"))
        if section.max_batch_completions < options.samples:
            raise UserError(
                f"rollout.max_batch_completions={section.max_batch_completions} is below -k {options.samples}: the "
                "completions of one problem are decoded together; raise the former or lower the latter"
            )
        return section
    require_vllm("--engine vllm")
    vllm: VllmColocatedRollout = load_section("rollout", "vllm_colocated", options.of_section("rollout"))
    if vllm.tensor_parallel > 1:
        raise UserError(
            f"rollout.tensor_parallel={vllm.tensor_parallel}: dapo eval is one process; serve the model by "
            "`vllm serve`, and give its address as --engine"
        )
    return replace(vllm, sleep=False, gpu_memory_share=vllm.gpu_memory_share or ALONE_GPU_SHARE)


def compute_dtype(options: Options, subject: Subject) -> Precision:
    """As --dtype says, else as the run computes, else float32 on a CPU and bfloat16 on a GPU."""
    if options.dtype is not None:
        return options.dtype
    if subject.recipe is not None:
        return subject.recipe.learner.compute_dtype
    import torch

    return Precision.bfloat16 if torch.cuda.is_available() else Precision.float32


def open_generator(
    options: Options, subject: Subject, rollout: RolloutConfig | None, dtype: Precision, longest: int, log_file: Path
) -> Generator:
    """`longest` bounds prompt and completion together, in tokens; vLLM logs to `log_file`."""
    if rollout is None:
        assert options.engine is not None and subject.served_as is not None
        return RemoteGenerator(Endpoint(options.engine, subject.served_as))
    assert subject.pretrained is not None
    world: World = join_world(with_group=False)
    if isinstance(rollout, TransformersRollout):
        model = load_weights(subject.pretrained, subject.config, device=world.device, dtype=DTYPES[dtype])
        engine = TransformersEngine(model, subject.pretrained.tokenizer, rollout.max_batch_completions)
        return LocalGenerator(engine, subject, together=rollout.max_batch_completions // options.samples)
    assert isinstance(rollout, VllmColocatedRollout)
    from dapo_cli.rollout.vllm_colocated import VllmColocatedEngine

    vllm = VllmColocatedEngine(
        rollout,
        subject.pretrained,
        world,
        dtype=rollout.dtype or dtype,
        max_tokens=longest,
        log_file=log_file,
    )
    return LocalGenerator(vllm, subject, together=1)
