"""What every rollout engine keeps, against `model.generate`, full forward passes and exact distributions."""

import copy
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.config.schema import Precision, PretrainedModel, SamplingConfig, VllmColocatedRollout, VllmServerRollout
from dapo_cli.distributed.world import World
from dapo_cli.pretrained import open_pretrained
from dapo_cli.protocols import RolloutEngine
from dapo_cli.rollout.completions import complete
from dapo_cli.rollout.transformers_engine import TransformersEngine, cut_distribution
from dapo_cli.rollout.vllm_settings import engine_settings
from dapo_cli.types import Completion, Finish, Prompt
from tests.conftest import make_prompt

TEXTS = ["1+2=?\n", "6+9-8+4=?\n", "3=?\n", "7+7+7+7+7+7+7=?\n"]
VOCABULARY = 32
OTHER_END = 7  # ends a sequence by the generation config alone; the tokenizer's own is 1
LONGEST = 192  # tokens of prompt and completion together
TOLERANCE = 2e-5  # nats; float32 kernels differ by 1e-6


@dataclass
class Served:
    """An engine and the model whose weights it has, each with tensors of its own."""

    engine: RolloutEngine
    model: LlamaForCausalLM
    kind: str
    log_file: Path


@dataclass(frozen=True)
class Kind:
    name: str
    tied: bool
    kv_cache_mib: int


KINDS = [
    Kind("transformers", tied=True, kv_cache_mib=0),
    Kind("transformers", tied=False, kv_cache_mib=0),
    Kind("vllm_colocated", tied=True, kv_cache_mib=64),
    Kind("vllm_colocated", tied=False, kv_cache_mib=1),  # 32 blocks: too few for a large batch, so some must wait
]


def params() -> Iterator[object]:
    for kind in KINDS:
        marks = [pytest.mark.vllm] if kind.name.startswith("vllm") else []
        yield pytest.param(kind, marks=marks, id=f"{kind.name}-{'tied' if kind.tied else 'untied'}")


def make_model(tokenizer, tied: bool) -> LlamaForCausalLM:
    """As the fixture `model`, with heads of 32, the smallest that vLLM has a kernel for on a CPU."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, OTHER_END]
    return model


@pytest.fixture(scope="module", params=params())
def shared(request, tokenizer, tmp_path_factory) -> Iterator[Served]:
    kind: Kind = request.param
    model = make_model(tokenizer, kind.tied)
    folder = tmp_path_factory.mktemp("engine")
    if kind.name == "transformers":
        yield Served(TransformersEngine(copy.deepcopy(model), tokenizer, 256), model, kind.name, folder)
        return
    if find_spec("vllm") is None:
        pytest.skip("the vllm extra is not installed")
    from dapo_cli.rollout.vllm_colocated import VllmColocatedEngine

    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    engine = VllmColocatedEngine(
        VllmColocatedRollout(kv_cache_mib=kind.kv_cache_mib),
        open_pretrained(PretrainedModel(path=str(folder))),
        World(),
        dtype=Precision.float32,
        max_tokens=LONGEST,
        log_file=folder / "engine.log",
    )
    yield Served(engine, model, kind.name, folder / "engine.log")
    engine.close()


@pytest.fixture
def served(shared) -> Iterator[Served]:
    """With the weights it began with, whatever tests before have synced."""
    shared.engine.sync_weights(shared.model.named_parameters())
    yield replace(shared, model=copy.deepcopy(shared.model))


@pytest.fixture
def prompts(tokenizer) -> list[Prompt]:
    return [make_prompt(tokenizer, text) for text in TEXTS]


def long_prompt(length: int, uid: str = "long") -> Prompt:
    tokens = np.random.default_rng(length).integers(8, 26, length).tolist()
    return Prompt(uid, uid, tuple(tokens), "0", "test")


def expected_logprobs(model, prompt: Prompt, completion: Completion, sampling: SamplingConfig) -> torch.Tensor:
    sequence = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = model(sequence).logits[0, len(prompt.token_ids) - 1 : -1].float()
    logprobs = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
    logprobs = cut_distribution(logprobs, sampling.top_p, sampling.top_k)
    return logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None]).squeeze(-1)


def assert_computed_by(model, prompts: list[Prompt], groups: list[list[Completion]], sampling: SamplingConfig) -> None:
    for prompt, completions in zip(prompts, groups, strict=True):
        for completion in completions:
            expected = expected_logprobs(model, prompt, completion, sampling)
            np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=TOLERANCE)


def tokens_of(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


def changed(model) -> LlamaForCausalLM:
    """Another model of the same shape, every weight of which differs."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return other


class TestCompletions:
    @pytest.mark.parametrize("length", [40, 60])
    def test_greedy_equals_generate(self, served, prompts, length):
        prompts = [*prompts, long_prompt(LONGEST - length)]  # the last one fills the context
        sampling = SamplingConfig(temperature=0, max_tokens=length)
        groups = complete(served.engine, prompts, 1, sampling, key="k")
        for prompt, (completion,) in zip(prompts, groups, strict=True):
            expected = served.model.generate(
                input_ids=torch.tensor([prompt.token_ids]), do_sample=False, max_new_tokens=length
            )[0, len(prompt.token_ids) :]
            assert list(completion.token_ids) == expected.tolist()
        assert_computed_by(served.model, prompts, groups, sampling)  # at temperature 1

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"temperature": 0.6},
            {"temperature": 1.3},
            {"top_p": 0.7},
            {"top_k": 5},
            {"temperature": 0.6, "top_p": 0.7, "top_k": 9},
        ],
        ids=str,
    )
    def test_logprobs_equal_a_full_forward_pass(self, served, prompts, keys):
        sampling = SamplingConfig(max_tokens=30, **keys)
        prompts = [*prompts, long_prompt(100)]
        groups = complete(served.engine, prompts, 6, sampling, key="k")
        assert_computed_by(served.model, prompts, groups, sampling)

    def test_frequencies_are_the_softmax_s(self, served, prompts):
        number = 8000
        for keys in ({}, {"temperature": 1.5, "top_p": 0.8}):
            sampling = SamplingConfig(max_tokens=1, **keys)
            (completions,) = complete(served.engine, prompts[:1], number, sampling, key="k")
            tokens = np.array([completion.token_ids[0] for completion in completions])
            with torch.no_grad():
                logits = served.model(torch.tensor([prompts[0].token_ids])).logits[0, -1:] / sampling.temperature
            p = cut_distribution(logits.log_softmax(-1), sampling.top_p, 0)[0].exp().double().numpy()
            assert_frequencies(np.bincount(tokens, minlength=VOCABULARY), p)
            # Neighbours among the samples, whose seeds or noise must have nothing to do with each other.
            pairs = tokens[0::2] * VOCABULARY + tokens[1::2]
            assert_frequencies(np.bincount(pairs, minlength=VOCABULARY**2), np.outer(p, p).ravel())

    def test_following_tokens_are_independent_of_each_other(self, served, prompts):
        """Zeroed weights give every token the same chance, so that pairs of followers show the noise alone."""
        served.engine.sync_weights((name, torch.zeros_like(weight)) for name, weight in served.model.named_parameters())
        groups = complete(served.engine, prompts, 500, SamplingConfig(max_tokens=60), key="k")
        ids = [completion.token_ids for group in groups for completion in group]
        # Whether a completion goes on depends on its last token; from there on the next is free.
        pairs = [VOCABULARY * one + next_ for tokens in ids for one, next_ in itertools.pairwise(tokens)]
        goes_on = np.full(VOCABULARY, 1.0)
        goes_on[served.engine.eos_ids] = 0
        p = np.outer(goes_on / goes_on.sum(), np.full(VOCABULARY, 1 / VOCABULARY)).ravel()
        assert_frequencies(np.bincount(pairs, minlength=VOCABULARY**2), p)

    def test_each_prompt_has_its_samples_in_order(self, served, tokenizer, prompts):
        seen: dict[int, list[Completion]] = {}
        for finished in served.engine.generate(prompts, 5, SamplingConfig(max_tokens=40), "k"):
            assert not seen.keys() & finished.keys()
            seen |= finished
        assert sorted(seen) == [0, 1, 2, 3]
        for place, completions in seen.items():
            assert [c.prompt_uid for c in completions] == [prompts[place].uid] * 5
            assert [c.sample_index for c in completions] == list(range(5))
            for completion in completions:
                assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
                assert len(completion.logprobs) == len(completion.token_ids) <= 40

    def test_global_generators_are_left_alone(self, served, prompts):
        """A checkpoint keeps torch's, and a resumed run completes the canary's prompts once more."""
        torch.manual_seed(5)
        np.random.seed(5)
        before = torch.get_rng_state(), np.random.get_state()[1]
        complete(served.engine, prompts, 2, SamplingConfig(max_tokens=20), key="k")
        assert torch.equal(before[0], torch.get_rng_state())
        np.testing.assert_array_equal(before[1], np.random.get_state()[1])


def assert_frequencies(counts: np.ndarray, p: np.ndarray) -> None:
    """Pearson's chi-square within 5 standard deviations of its mean; rare outcomes count as one."""
    expected = p * counts.sum()
    assert not counts[expected == 0].any(), "an impossible outcome"
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    assert freedom > 0
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom), (chi_square, freedom)


class TestFinish:
    def test_the_last_token_allowed_may_end_it(self, served, prompts):
        long = complete(served.engine, prompts, 8, SamplingConfig(max_tokens=60), key="k")
        stopped = next(c for group in long for c in group if c.finish is Finish.STOP and len(c.token_ids) > 5)

        def again(max_tokens: int) -> Completion:
            groups = complete(served.engine, prompts, 8, SamplingConfig(max_tokens=max_tokens), key="k")
            place = next(place for place, prompt in enumerate(prompts) if prompt.uid == stopped.prompt_uid)
            return groups[place][stopped.sample_index]

        exact = again(len(stopped.token_ids))
        assert (exact.finish, exact.token_ids) == (Finish.STOP, stopped.token_ids)
        cut = again(len(stopped.token_ids) - 1)
        assert (cut.finish, cut.token_ids) == (Finish.LENGTH, stopped.token_ids[:-1])

    def test_the_generation_config_s_ends_count_besides_the_tokenizer_s(self, served, tokenizer, prompts):
        ends = {tokenizer.eos_token_id, OTHER_END}
        completions = [
            c for group in complete(served.engine, prompts, 16, SamplingConfig(max_tokens=30), "k") for c in group
        ]
        assert {c.token_ids[-1] for c in completions if c.finish is Finish.STOP} == ends
        for completion in completions:
            assert not set(completion.token_ids[:-1]) & ends
            if completion.finish is Finish.LENGTH:
                assert len(completion.token_ids) == 30 and completion.token_ids[-1] not in ends

    def test_a_completion_may_fill_the_context(self, served):
        prompts = [long_prompt(LONGEST - 20)]
        (completions,) = complete(served.engine, prompts, 16, SamplingConfig(max_tokens=20), key="k")
        full = [c for c in completions if c.finish is Finish.LENGTH]
        assert full and all(len(c.token_ids) == 20 for c in full)
        assert_computed_by(served.model, prompts, [completions], SamplingConfig())


class TestNoise:
    SAMPLING = SamplingConfig(max_tokens=80)

    def test_a_completion_does_not_depend_on_its_batch(self, served, prompts):
        prompts = [*prompts, long_prompt(90)]

        def tokens(prompts: list[Prompt], samples: int = 16) -> list[list[tuple[int, ...]]]:
            return tokens_of(complete(served.engine, prompts, samples, self.SAMPLING, key="k"))

        together = tokens(prompts)
        assert len({ids for group in together for ids in group}) > 70  # of 80: some of the shortest are equal
        assert tokens(prompts) == together
        assert [tokens([prompt])[0] for prompt in prompts] == together
        assert tokens(prompts[::-1])[::-1] == together
        assert tokens(prompts, samples=3) == [group[:3] for group in together]

    def test_prompts_of_more_tokens_than_one_pass_of_the_engine(self, served):
        """vLLM reads 8,192 tokens at a time on a CPU; these prompts have no block in common."""
        prompts = [replace(long_prompt(90, uid=f"{n}"), token_ids=(3 + n % 23, 3 + n // 23) * 45) for n in range(110)]
        sampling = SamplingConfig(max_tokens=3)
        together = tokens_of(complete(served.engine, prompts, 1, sampling, key="k"))
        halves = [complete(served.engine, part, 1, sampling, key="k") for part in (prompts[:50], prompts[50:])]
        assert tokens_of(halves[0] + halves[1]) == together

    def test_whoever_reads_may_give_up_between_two_tokens(self, served, prompts):
        """Not only when a completion ends."""
        if served.kind == "transformers":
            pytest.skip("gives up between batches")
        generation = served.engine.generate([prompts[1]], 1, SamplingConfig(temperature=0, max_tokens=60), "k")
        yields = list(generation)
        (completion,) = yields[-1][0]
        assert yields[:-1] == [{}] * (len(completion.token_ids) - 1)

    def test_another_key_or_uid_gives_other_completions(self, served, prompts):
        twins = [prompts[1], replace(prompts[1], uid="twin")]
        one, other = (complete(served.engine, twins, 8, self.SAMPLING, key) for key in ("1/train/1/0", "1/train/2/0"))
        for first, second in itertools.combinations(tokens_of(one) + tokens_of(other), 2):
            assert sum(a == b for a, b in zip(first, second, strict=True)) <= 1  # two of the shortest, at most

    def test_closing_early_gives_up_the_rest(self, served, prompts):
        prompts = [*prompts, long_prompt(90)]
        before = complete(served.engine, prompts, 8, self.SAMPLING, key="k")
        others = [replace(prompt, uid=f"{place}") for place, prompt in enumerate(prompts * 20)]
        generation = served.engine.generate(others, 8, self.SAMPLING, "others")
        first = next(filter(None, generation))
        generation.close()
        assert 0 < len(first) < len(others)
        if served.kind == "vllm_colocated":
            assert not served.engine._llm.llm_engine.has_unfinished_requests()
        after = complete(served.engine, prompts, 8, self.SAMPLING, key="k")
        assert tokens_of(after) == tokens_of(before)
        assert_computed_by(served.model, prompts, after, self.SAMPLING)

    def test_a_generation_that_was_never_begun_leaves_nothing(self, served, prompts):
        before = complete(served.engine, prompts, 2, self.SAMPLING, key="k")
        served.engine.generate(prompts, 2, self.SAMPLING, "others").close()
        assert tokens_of(complete(served.engine, prompts, 2, self.SAMPLING, key="k")) == tokens_of(before)


class TestSync:
    SAMPLING = SamplingConfig(max_tokens=30)

    def test_zeroed_weights_make_all_tokens_alike(self, served, prompts):
        served.engine.sync_weights((name, torch.zeros_like(weight)) for name, weight in served.model.named_parameters())
        for group in complete(served.engine, prompts, 4, self.SAMPLING, key="k"):
            for completion in group:
                np.testing.assert_allclose(completion.logprobs, -np.log(VOCABULARY), atol=1e-6)

    def test_changed_weights_show_even_where_a_prompt_was_read_before(self, served, prompts):
        prompts = [*prompts, long_prompt(100)]
        other = changed(served.model)
        for model in (served.model, other, served.model):  # and back
            served.engine.sync_weights(model.named_parameters())
            groups = complete(served.engine, prompts, 4, self.SAMPLING, key="k")
            assert_computed_by(model, prompts, groups, self.SAMPLING)
        assert not np.allclose(
            expected_logprobs(other, prompts[-1], groups[-1][0], self.SAMPLING), groups[-1][0].logprobs, atol=0.1
        )

    def test_each_weight_matters(self, served, prompts):
        """One weight at a time is another, so that none is left behind or put in another's place."""
        model = served.model
        for place, (name, _) in enumerate(model.named_parameters()):
            generator = torch.Generator().manual_seed(place)
            weight = model.get_parameter(name)
            with torch.no_grad():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
            served.engine.sync_weights(model.named_parameters())
            groups = complete(served.engine, prompts[1:2], 2, self.SAMPLING, key="k")
            assert_computed_by(model, prompts[1:2], groups, self.SAMPLING)

    def test_the_learner_s_tensors_stay_its_own(self, served, prompts):
        """What becomes of them after the sync, in place, does not reach the engine."""
        before = complete(served.engine, prompts, 2, self.SAMPLING, key="k")
        source = copy.deepcopy(served.model)
        served.engine.sync_weights(source.named_parameters())
        with torch.no_grad():
            for weight in source.parameters():
                weight.fill_(torch.nan)
        after = complete(served.engine, prompts, 2, self.SAMPLING, key="k")
        assert tokens_of(after) == tokens_of(before)

    def test_after_a_rest_and_a_sync_all_is_as_before(self, served, prompts):
        before = complete(served.engine, prompts, 2, self.SAMPLING, key="k")
        served.engine.rest()
        served.engine.sync_weights(served.model.named_parameters())
        assert tokens_of(complete(served.engine, prompts, 2, self.SAMPLING, key="k")) == tokens_of(before)


BUILD = """
import gc, json, os, random, signal, sys
from pathlib import Path
import numpy as np, torch
from dapo_cli.config.schema import PretrainedModel, Precision, SamplingConfig, VllmColocatedRollout
from dapo_cli.distributed.world import World
from dapo_cli.pretrained import open_pretrained
from dapo_cli.rollout import vllm_colocated
from dapo_cli.rollout.completions import complete
from dapo_cli.types import Prompt

folder = Path(sys.argv[1])
pretrained = open_pretrained(PretrainedModel(path=str(folder)))
pretrained.generation_config
torch.set_num_threads(2)
torch.manual_seed(1), random.seed(2), np.random.seed(3)

def state():
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in vllm_colocated.SETTINGS},
        "threads": torch.get_num_threads(),
        "set_num_threads": torch.set_num_threads.__module__,
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "random": random.getstate(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "frozen": gc.get_freeze_count() > 0,
        "collects": gc.isenabled(),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "open": sorted(name for name in os.listdir("/proc/self/fd") if int(name) < 3),
    }

def mark(text):
    for stream in (sys.stdout, sys.stderr):
        print(text, file=stream, flush=True)

before = state()
mark("BEGIN")
engine = vllm_colocated.VllmColocatedEngine(
    VllmColocatedRollout(kv_cache_mib=64), pretrained, World(), dtype=Precision.float32, max_tokens=192,
    log_file=folder / "engine.log",
)
mark("BUILT")
after = state()
complete(engine, [Prompt("p", "p", (4, 5, 6), "0", "test")], 2, SamplingConfig(max_tokens=5), "k")
torch.set_num_threads(1)
can_set_threads = torch.get_num_threads() == 1
engine.close()
mark("END")
(folder / "states.json").write_text(json.dumps([before, after, can_set_threads]))
"""


@pytest.fixture(scope="module")
def built(tokenizer, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """An engine built in a process that has not imported vLLM before."""
    if find_spec("vllm") is None:
        pytest.skip("the vllm extra is not installed")
    folder = tmp_path_factory.mktemp("built")
    make_model(tokenizer, tied=True).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    done = subprocess.run([sys.executable, "-c", BUILD, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.mark.vllm
def test_building_vllm_leaves_the_process_as_it_was(built):
    before, after, can_set_threads = json.loads((built[0] / "states.json").read_text())
    for name, value in before.items():
        assert after[name] == value, name
    assert can_set_threads


@pytest.mark.vllm
def test_vllm_speaks_into_its_log_alone(built):
    folder, done = built
    for stream in (done.stdout, done.stderr):
        assert stream[stream.index("BEGIN") :] == "BEGIN\nBUILT\nEND\n"
    assert " INFO vllm." in (folder / "engine.log").read_text()


@pytest.mark.vllm
@pytest.mark.parametrize("on_gpu", [False, True])
def test_settings_are_arguments_of_vllm(on_gpu):
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import EngineArgs

    config = VllmServerRollout(servers=[], gpu_memory_share=None if on_gpu else 0.3, cuda_graphs=on_gpu)
    settings = engine_settings(config, dtype=Precision.bfloat16, max_tokens=9000, on_gpu=on_gpu, gpu_memory_share=0.9)
    assert settings.keys() <= {field.name for field in dataclasses.fields(EngineArgs)}
    assert settings["enforce_eager"] is not on_gpu
    if on_gpu:
        assert settings["gpu_memory_utilization"] == 0.9 and "kv_cache_memory_bytes" not in settings
    else:
        assert settings["kv_cache_memory_bytes"] == 1 << 30 and settings["max_num_batched_tokens"] == 9000
