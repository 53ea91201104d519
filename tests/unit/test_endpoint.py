"""Completions over HTTP, from a server that answers as OpenAI-compatible ones do."""

import pytest

from dapo_cli.config.schema import SamplingConfig
from dapo_cli.errors import UserError
from dapo_cli.evaluation import endpoint as module
from dapo_cli.evaluation.endpoint import Endpoint
from dapo_cli.evaluation.options import Draw
from dapo_cli.rollout.completions import seed_of
from dapo_cli.types import Finish
from tests.unit.endpoint_server import completion_of, endpoint_server

DRAW = Draw(3, SamplingConfig(temperature=0.7, top_p=0.9, max_tokens=50), "0/eval")
SUMS = [f"{number}+{number + 1}=?" for number in range(9)]
CHATS = [[{"role": "user", "content": text}] for text in SUMS]
UIDS = [f"u{number}" for number in range(9)]


@pytest.fixture
def server():
    with endpoint_server() as found:
        yield found


@pytest.fixture
def endpoint(server):
    found = Endpoint(server.url, "some-model", first_wait_s=0.001)
    yield found
    found.close()


def all_of(endpoint, prompts=CHATS, uids=UIDS, draw=DRAW):
    done = {}
    for finished in endpoint.generate(prompts, uids, draw):
        done |= finished
    return [done[place] for place in range(len(prompts))]


def expected(text: str, uid: str) -> list[str]:
    return [completion_of(text, seed_of("0/eval", uid) % 2**31 + index) for index in range(3)]


def test_samples_come_to_their_prompts_in_order(server, endpoint, monkeypatch):
    found = all_of(endpoint)
    assert [[sample.text for sample in own] for own in found] == [*map(expected, SUMS, UIDS)]
    assert {(sample.finish, sample.tokens) for own in found for sample in own} == {(Finish.STOP, 7.0)}
    assert len(server.requests) == len(SUMS)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions" and "Authorization" not in headers
    assert {key: body[key] for key in ("model", "n", "temperature", "top_p", "max_tokens")} == {
        "model": "some-model", "n": 3, "temperature": 0.7, "top_p": 0.9, "max_tokens": 50
    }  # fmt: skip
    assert len({body["seed"] for _, _, body in server.requests}) == len(SUMS)


def test_a_text_goes_to_completions_a_key_is_sent_and_a_cut_is_told(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    endpoint = Endpoint(f"{server.url}/v1/", "m")
    cut = Draw(3, SamplingConfig(max_tokens=4), "0/eval")
    (found,) = all_of(endpoint, ["1+2=?\n"], ["u"], cut)
    assert [sample.text for sample in found] == expected("1+2=?", "u")
    assert {sample.finish for sample in found} == {Finish.LENGTH}
    path, headers, body = server.requests[0]
    assert (path, body["prompt"], headers["Authorization"]) == ("/v1/completions", "1+2=?\n", "Bearer secret")


def test_a_server_that_gives_one_choice_is_asked_again_with_other_seeds(server, endpoint):
    server.choices_limit = 1
    assert [[sample.text for sample in own] for own in all_of(endpoint, CHATS[:1], UIDS[:1])] == [
        expected("0+1=?", "u0")
    ]
    assert [body["n"] for _, _, body in server.requests] == [3, 2, 1]


def test_busy_and_failing_answers_are_tried_again(server, endpoint):
    server.failures = [429, 503, 500]
    assert [[sample.text for sample in own] for own in all_of(endpoint, CHATS[:1], UIDS[:1])] == [
        expected("0+1=?", "u0")
    ]
    assert len(server.requests) == 4


def test_what_the_server_refuses_is_told_at_once(server, endpoint):
    server.failures = [400]
    with pytest.raises(UserError, match=r"refuses with 400.*no luck: 400"):
        all_of(endpoint, CHATS[:1], UIDS[:1])
    assert len(server.requests) == 1


def test_what_a_request_leaves_out_is_no_matter_of_the_model_s_generation_config(server, endpoint):
    all_of(endpoint, CHATS[:1], UIDS[:1])
    all_of(endpoint, CHATS[:1], UIDS[:1], Draw(3, SamplingConfig(top_k=20), "0/eval"))
    sent = [[body[name] for name in ("top_k", "min_p", "repetition_penalty")] for _, _, body in server.requests]
    assert sent == [[-1, 0, 1], [20, 0, 1]]


def test_a_server_that_knows_no_such_names_is_asked_without_them(server, endpoint):
    server.unknown = {"min_p", "repetition_penalty", "top_k"}
    assert len(all_of(endpoint, CHATS[:2], UIDS[:2])) == 2
    assert endpoint.not_sent == ("top_k", "min_p", "repetition_penalty")
    asked = len(server.requests)
    all_of(endpoint, CHATS[:1], UIDS[:1])
    assert len(server.requests) == asked + 1
    with pytest.raises(UserError, match=r"refuses with 400.*top_k"):  # which is asked for
        all_of(Endpoint(server.url, "m"), CHATS[:1], UIDS[:1], Draw(3, SamplingConfig(top_k=20), "0/eval"))


@pytest.mark.parametrize(
    "ending",
    [{"finish_reason": "content_filter"}, {"finish_reason": None}, {"message": {"content": None}}],
    ids=["filtered", "unknown", "no content"],
)
def test_what_is_no_completion_is_told_and_not_graded(server, endpoint, ending):
    server.ending = ending
    with pytest.raises(UserError, match="an answer that cannot be judged"):
        all_of(endpoint, CHATS[:1], UIDS[:1])


def test_a_reasoning_model_cut_before_its_answer_is_truncated(server, endpoint):
    server.ending = {"finish_reason": "length", "message": {"content": None}}
    (found,) = all_of(endpoint, CHATS[:1], UIDS[:1])
    assert {(sample.text, sample.finish) for sample in found} == {("", Finish.LENGTH)}


def test_a_server_that_hangs_is_given_up(server, endpoint, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_SILENCE_S", 0.02)
    server.delay_s = 0.2
    with pytest.raises(UserError, match=r"no answer in 2 tries, the last time silent for .* are stored"):
        all_of(endpoint, CHATS[:1], UIDS[:1])


def test_a_server_that_stays_silent_ends_the_evaluation(server, endpoint):
    server.failures = [503] * 100
    with pytest.raises(UserError, match="no answer in 6 tries, the last time 503"):
        all_of(endpoint, CHATS[:1], UIDS[:1])
    nobody = Endpoint("http://127.0.0.1:9", "m", first_wait_s=0.001)
    with pytest.raises(UserError, match="no answer in 6 tries"):
        all_of(nobody, CHATS[:1], UIDS[:1])


def test_so_many_requests_at_a_time_and_no_more(server, endpoint, monkeypatch):
    monkeypatch.setattr(module, "CONCURRENT", 3)
    server.delay_s = 0.03
    assert len(all_of(endpoint)) == len(SUMS)
    assert server.most_at_once == 3


def test_closing_early_leaves_the_rest_unasked(server, endpoint, monkeypatch):
    monkeypatch.setattr(module, "CONCURRENT", 2)
    finished = endpoint.generate(CHATS, UIDS, DRAW)
    next(finished)
    finished.close()
    assert len(server.requests) <= 4
    assert len(all_of(endpoint, CHATS[:1], UIDS[:1])) == 1  # it is ready for more
