"""The engine of vLLM servers against servers of HTTP that answer, break, hang and lie: where prompts and weights go."""

import contextlib
import hashlib
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch

from dapo_cli.cli.serve import serve
from dapo_cli.config.schema import PretrainedModel, SamplingConfig, VllmServerRollout
from dapo_cli.distributed.world import World
from dapo_cli.errors import RunStopped, UserError
from dapo_cli.pretrained import Pretrained, open_pretrained
from dapo_cli.rollout import server_weights, servers
from dapo_cli.rollout.completions import complete
from dapo_cli.rollout.servers import check_servers
from dapo_cli.rollout.vllm_server import VllmServerEngine
from dapo_cli.rollout.weight_group import WeightGroup
from dapo_cli.types import Completion, Finish, Prompt

SECONDS = 20  # within which what must come has come; nothing here waits for it to pass unless a test fails
SILENCE_S = 1.0
EOS = 1
SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=11, max_tokens=12)
GENERATE = "/inference/v1/generate"
CPU = torch.device("cpu")


def sampled(token_ids: list[int], seed: int, index: int, longest: int) -> tuple[list[int], list[float]]:
    """What a peer answers: a function of the request alone, as a server's completions are."""
    digest = hashlib.sha256(json.dumps([token_ids, seed, index]).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    length = int(rng.integers(1, longest + 1))
    ids = rng.integers(3, 26, length).tolist()
    if length < longest:
        ids[-1] = EOS
    return ids, (-rng.random(length)).tolist()


class Peer:
    """A server that speaks as vLLM's does, until a test gives a path another answer: a function of the request's
    body that returns status and body, or the connection's end (None)."""

    def __init__(self, port: int = 0, longest: int = 64) -> None:
        self.answers: dict[str, Callable[[Any], tuple[int, Any] | None]] = {
            "/v1/models": lambda _: (200, {"data": [{"id": "m", "max_model_len": longest}]}),
            "/health": lambda _: (200, None),
            GENERATE: self.generate,
            "/get_world_size": lambda _: (200, {"world_size": 1}),
            "/init_weight_transfer_engine": self.join,
            "/start_weight_update": self.start_update,
            "/update_weights": self.update,
            "/finish_weight_update": self.finish_update,
            "/reset_prefix_cache": lambda _: (200, {"success": True}),
            "/pause?mode=abort": lambda _: (200, None),
            "/resume": lambda _: (200, None),
        }
        self.requests: list[tuple[str, Any]] = []
        self.closed = 0  # connections that the other side has closed before their answer
        self.weights: dict[str, torch.Tensor] = {}
        self.updating = False
        self.group: WeightGroup | None = None
        self._coming: dict[str, torch.Tensor] = {}
        self._connections: set[socket.socket] = set()
        self._ended = threading.Event()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                super().setup()
                peer._connections.add(self.connection)

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null"))

            def answer(self, body: Any) -> None:
                peer.requests.append((self.path, body))
                handle = peer.answers.get(self.path, lambda _: (404, "no such path"))
                if handle is Peer.hang:
                    return peer._wait_for_end_of(self.connection)
                answer = handle(body)
                if answer is not None and not peer._ended.is_set():
                    status, content = answer
                    data = (
                        content
                        if isinstance(content, bytes)
                        else b""
                        if content is None
                        else json.dumps(content).encode()
                    )
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @staticmethod
    def hang(_: Any) -> None:
        """Never answer, and hold the connection."""

    def _wait_for_end_of(self, connection: socket.socket) -> None:
        connection.settimeout(0.05)
        while not self._ended.is_set():
            try:
                if connection.recv(1) == b"":
                    self.closed += 1
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def end(self) -> None:
        """As a killed process: connections break, and the port is free."""
        self._ended.set()
        self.server.shutdown()
        self.server.server_close()
        self.group = None
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def asked(self, path: str = GENERATE) -> list[Any]:
        return [body for asked, body in list(self.requests) if asked == path]

    def generate(self, body: Any) -> tuple[int, Any]:
        params = body["sampling_params"]
        choices = []
        for index in range(params["n"]):
            ids, logprobs = sampled(body["token_ids"], params["seed"], index, params["max_tokens"])
            content = [{"token": f"token_id:{id_}", "logprob": value} for id_, value in zip(ids, logprobs, strict=True)]
            finish = "stop" if ids[-1] == EOS else "length"
            choices.append(
                {"index": index, "token_ids": ids, "finish_reason": finish, "logprobs": {"content": content}}
            )
        return 200, {"choices": choices[::-1]}

    # The way of the weights

    def join(self, body: Any) -> tuple[int, Any]:
        address = body["init_info"]
        self.group = WeightGroup.join(address["host"], address["port"], 1, address["size"], CPU)
        return 200, {"message": "ok"}

    def start_update(self, _: Any) -> tuple[int, Any]:
        if self.updating:
            return 500, {"error": "a weight update is already active"}
        self.updating, self._coming = True, {}
        return 200, None

    def update(self, body: Any) -> tuple[int, Any]:
        record = body["update_info"]
        if not self.updating:
            return 500, {"error": "no weight update is active"}
        if self.group is None:
            return 500, {"error": "no weight transfer engine"}
        for name, dtype, shape in zip(record["names"], record["dtypes"], record["shapes"], strict=True):
            self._coming[name] = self.group.receive(getattr(torch, dtype), shape)
        return 200, None

    def finish_update(self, _: Any) -> tuple[int, Any]:
        self.updating = False
        self.weights |= self._coming
        return 200, None


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    running = [Peer(), Peer()]
    yield running
    for peer in running:
        if not peer._ended.is_set():
            peer.end()


@pytest.fixture(scope="session")
def pretrained() -> Pretrained:
    return open_pretrained(PretrainedModel(path="shipped:tiny-arithmetic"))


Build = Callable[..., VllmServerEngine]


@pytest.fixture
def build(pretrained, monkeypatch) -> Iterator[Build]:
    """Makes the engine of some peers."""
    monkeypatch.setattr(servers, "PULSE_S", 0.1)
    monkeypatch.setattr(server_weights, "ARRIVAL_S", 0.1)
    engines: list[VllmServerEngine] = []

    def build(peers: list[Peer], silence_s: float = 60.0, world: World | None = None) -> VllmServerEngine:
        config = VllmServerRollout(servers=[peer.url for peer in peers], silence_s=silence_s)
        engines.append(VllmServerEngine(config, pretrained, world or World()))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


PROMPTS = [Prompt(f"p{place}", "1+2=?\n", (3 + place, 4, 5), "3", "test") for place in range(8)]


@pytest.fixture
def expected(peers, build) -> list[list[Completion]]:
    """What two servers that are well give."""
    engine = build(peers)
    groups = complete(engine, PROMPTS, 3, SAMPLING, "key")
    engine.close()
    for peer in peers:
        peer.requests.clear()
    return groups


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestCompletions:
    def test_the_request_holds_all_that_sampling_depends_on(self, peers, build):
        engine = build(peers[:1])
        complete(engine, PROMPTS[:1], 3, SAMPLING, "key")
        complete(engine, PROMPTS[:1], 2, SAMPLING, "key")
        complete(engine, PROMPTS[:1], 3, SAMPLING, "other key")
        complete(engine, PROMPTS[1:2], 3, SAMPLING, "key")
        first, fewer, other_key, other_prompt = peers[0].asked()
        seeds = [body["sampling_params"].pop("seed") for body in (first, fewer, other_key, other_prompt)]
        params = {"temperature": 0.7, "top_p": 0.9, "top_k": 11, "max_tokens": 12, "stop_token_ids": [EOS]}
        params |= {"n": 3, "logprobs": 0, "detokenize": False}
        assert first == other_key == {"token_ids": [3, 4, 5], "sampling_params": params}
        assert fewer["sampling_params"] == params | {"n": 2} and other_prompt["token_ids"] == [4, 4, 5]
        assert seeds[0] == seeds[1] and len(set(seeds)) == 3
        assert all(0 <= seed < 2**63 - 100 for seed in seeds)  # those of further samples count up from it

    def test_completions_are_what_the_server_says(self, peers, build, pretrained):
        groups = complete(build(peers), PROMPTS, 3, SAMPLING, "key")
        seeds = {tuple(body["token_ids"]): body["sampling_params"]["seed"] for peer in peers for body in peer.asked()}
        finishes = set()
        for prompt, group in zip(PROMPTS, groups, strict=True):
            assert [completion.sample_index for completion in group] == [0, 1, 2]
            for completion in group:
                ids, logprobs = sampled(list(prompt.token_ids), seeds[prompt.token_ids], completion.sample_index, 12)
                assert (completion.prompt_uid, completion.token_ids) == (prompt.uid, tuple(ids))
                assert completion.logprobs == tuple(logprobs)
                assert completion.text == pretrained.tokenizer.decode(ids, skip_special_tokens=True)
                assert completion.finish is (Finish.STOP if ids[-1] == EOS else Finish.LENGTH)
                finishes.add(completion.finish)
        assert finishes == {Finish.STOP, Finish.LENGTH}

    def test_prompts_go_to_the_servers_in_turn_and_each_rank_begins_with_another(self, peers, build):
        for rank, shift in ((0, 0), (1, 1), (2, 0)):
            complete(build(peers, world=World(rank, 3)), PROMPTS[:5], 1, SAMPLING, "key")
            for place, peer in enumerate(peers):
                firsts = sorted(body["token_ids"][0] - 3 for body in peer.asked())
                assert firsts == [number for number in range(5) if (number + shift) % 2 == place]
                peer.requests.clear()

    def test_each_prompt_comes_as_soon_as_it_is_there(self, peers, build):
        peers[1].answers[GENERATE] = Peer.hang
        generation = build(peers).generate(PROMPTS, 1, SAMPLING, "key")
        came = [place for _ in range(4) for place in next(generation)]
        assert sorted(came) == [0, 2, 4, 6]
        assert next(generation) == {}  # whoever reads gets a chance to give up while nothing comes
        generation.close()

    def test_closing_early_closes_the_connections(self, peers, build, expected):
        for peer in peers:
            peer.answers[GENERATE] = Peer.hang
        engine = build(peers)
        generation = engine.generate(PROMPTS, 3, SAMPLING, "key")
        assert next(generation) == {}
        until(lambda: all(len(peer.asked()) == 4 for peer in peers))
        generation.close()
        until(lambda: all(peer.closed == 4 for peer in peers))
        for peer in peers:
            peer.answers[GENERATE] = peer.generate
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected

    def test_closing_the_engine_ends_what_is_asked(self, peers, build):
        peers[0].answers[GENERATE] = Peer.hang
        engine = build(peers[:1])
        generation = engine.generate(PROMPTS[:2], 1, SAMPLING, "key")
        assert next(generation) == {}
        threads = threading.active_count()
        began = time.monotonic()
        engine.close()
        until(lambda: peers[0].closed == 2)
        assert time.monotonic() - began < 5 and threading.active_count() < threads + 1


# What a server may do instead of completing a prompt, and what is said of it.
FAULTS: dict[str, tuple[Callable[[Any], tuple[int, Any] | None], str]] = {
    "breaks the connection": (lambda _: None, ""),
    "answers 500": (lambda _: (500, {"error": "engine core died"}), "answers 500"),
    "answers without choices": (lambda _: (200, {"id": "x"}), "without completions"),
    "answers no JSON": (lambda _: (200, b"<html>"), ""),
}


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_prompts_of_a_lost_server_go_to_the_other(self, peers, build, expected, capsys, fault):
        peers[0].answers[GENERATE], said = FAULTS[fault]
        engine = build(peers)
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected
        assert len(peers[0].asked()) <= 4 and len(peers[1].asked()) == len(PROMPTS)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"{peers[0].url} is lost") and said in lines[0]
        peers[0].requests.clear()
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected  # from now on all go to the other at once
        assert peers[0].asked() == []

    def test_a_server_that_dies_with_requests_in_hand(self, peers, build, expected, capsys):
        peers[0].answers[GENERATE] = Peer.hang
        generation = build(peers).generate(PROMPTS, 3, SAMPLING, "key")
        done = next(generation)
        until(lambda: len(peers[0].asked()) == 4)
        peers[0].end()
        for finished in generation:
            assert not done.keys() & finished.keys()
            done |= finished
        assert [done[place] for place in range(len(PROMPTS))] == expected
        assert capsys.readouterr().err.count("is lost") == 1

    def test_a_server_that_is_gone(self, peers, build, expected, capsys):
        engine = build(peers)
        peers[1].end()
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected
        assert capsys.readouterr().err.count(f"{peers[1].url} is lost") == 1

    def test_an_aborted_request_is_no_completion(self, peers, build, expected, capsys):
        def abort(body: Any) -> tuple[int, Any]:
            status, answer = peers[0].generate(body)
            answer["choices"][0]["finish_reason"] = "abort"  # one of the three
            return status, answer

        peers[0].answers[GENERATE] = abort
        assert complete(build(peers), PROMPTS, 3, SAMPLING, "key") == expected
        assert "abort" in capsys.readouterr().err

    def test_a_server_that_hangs_is_given_up_after_the_silence(self, peers, build, expected, capsys):
        peers[0].answers[GENERATE] = peers[0].answers["/health"] = Peer.hang
        began = time.monotonic()
        assert complete(build(peers, silence_s=SILENCE_S), PROMPTS, 3, SAMPLING, "key") == expected
        assert SILENCE_S <= time.monotonic() - began < SECONDS
        assert capsys.readouterr().err.count(f"{peers[0].url} is lost") == 1
        until(lambda: peers[0].closed >= 4)  # nor is it asked any longer

    def test_a_server_that_takes_its_time_is_not_given_up(self, peers, build, expected, capsys):
        def take_time(body: Any) -> tuple[int, Any]:
            time.sleep(3 * SILENCE_S)
            return peers[0].generate(body)

        peers[0].answers[GENERATE] = take_time
        assert complete(build(peers, silence_s=SILENCE_S), PROMPTS, 3, SAMPLING, "key") == expected
        assert len(peers[0].asked()) == len(peers[1].asked()) == 4 and capsys.readouterr().err == ""
        assert len(peers[0].asked("/health")) > 5

    @pytest.mark.parametrize("fault", ["end", "hang"])
    def test_when_all_are_lost_the_run_stops(self, peers, build, fault):
        engine = build(peers, silence_s=SILENCE_S)
        for peer in peers:
            if fault == "end":
                peer.end()
            else:
                peer.answers[GENERATE] = peer.answers["/health"] = Peer.hang
        for _ in range(2):
            with pytest.raises(RunStopped) as caught:
                complete(engine, PROMPTS, 3, SAMPLING, "key")
            for words in ("rollout.servers", peers[0].url, peers[1].url, "dapo serve", "same command"):
                assert words in str(caught.value)

    def test_another_service_is_told_to_the_user(self, peers, build):
        """A request that a server of vLLM's understands and refuses would be refused by the others, too."""
        peers[1].answers[GENERATE] = lambda _: (400, {"error": "max_tokens is too large"})
        with pytest.raises(UserError, match=r"rollout\.servers") as caught:
            complete(build(peers), PROMPTS, 3, SAMPLING, "key")
        for words in (peers[1].url, "400", "max_tokens is too large", "dapo serve"):
            assert words in str(caught.value)


class TestCheck:
    def config(self, *urls: str) -> VllmServerRollout:
        return VllmServerRollout(servers=list(urls), silence_s=SILENCE_S)

    def test_servers_that_are_well(self, peers):
        check_servers(self.config(peers[0].url, peers[1].url + "/"), max_tokens=64)
        assert [path for peer in peers for path, _ in peer.requests] == ["/v1/models"] * 2

    def test_one_that_takes_too_short_sequences(self, peers):
        with pytest.raises(UserError) as caught:
            check_servers(self.config(peers[0].url), max_tokens=65)
        for words in ("rollout.servers", peers[0].url, "64 tokens", "65"):
            assert words in str(caught.value)

    @pytest.mark.parametrize(
        "answer",
        [
            (404, b"not found"),
            (503, b"loading"),
            (200, b"<html>"),
            (200, {}),
            (200, []),
            (200, {"data": []}),
            (200, {"data": [{"id": "of another kind of server"}]}),
            (200, {"data": [{"max_model_len": None}]}),
        ],
        ids=str,
    )
    def test_another_service(self, peers, answer):
        peers[1].answers["/v1/models"] = lambda _: answer
        with pytest.raises(UserError) as caught:
            check_servers(self.config(peers[0].url, peers[1].url), max_tokens=64)
        for words in (f"rollout.servers: {peers[1].url} is no server of vLLM's", "dapo serve RECIPE"):
            assert words in str(caught.value)

    def test_nobody_there(self, peers):
        config = self.config(peers[0].url, peers[1].url)
        peers[1].end()
        check_servers(config, max_tokens=64)  # a run can go on with one
        peers[0].end()
        with pytest.raises(UserError, match=f"rollout.servers: {peers[0].url} does not answer.*{peers[1].url}"):
            check_servers(config, max_tokens=64)

    def test_one_that_hangs(self, peers):
        peers[0].answers["/v1/models"] = Peer.hang
        began = time.monotonic()
        with pytest.raises(UserError, match=f"rollout.servers: {peers[0].url} does not answer"):
            check_servers(self.config(peers[0].url), max_tokens=64)
        assert time.monotonic() - began < SECONDS

    def test_serving_asks_for_a_recipe_of_servers(self):
        with pytest.raises(UserError, match="rollout=vllm_server"):
            serve("quickstart", [], "127.0.0.1", 8000)


def weights_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (30, 40), "b": (7,), "c": (2, 3, 4)}
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def assert_has(peer: Peer, weights: dict[str, torch.Tensor]) -> None:
    assert peer.weights.keys() == weights.keys()
    assert all(torch.equal(peer.weights[name], weight) for name, weight in weights.items())


@pytest.fixture
def small_buckets(monkeypatch) -> None:
    """A bucket for each weight."""
    in_buckets = server_weights.in_buckets
    monkeypatch.setattr(server_weights, "in_buckets", lambda weights: in_buckets(weights, 1))


@pytest.mark.usefixtures("small_buckets")
class TestWeights:
    def test_all_servers_have_them_after_each_sync(self, peers, build):
        engine = build(peers)
        for seed in (0, 1):
            engine.sync_weights(iter(weights_of(seed).items()))
            for peer in peers:
                assert_has(peer, weights_of(seed))
        updates = ["/pause?mode=abort", "/start_weight_update", *["/update_weights"] * 3, "/finish_weight_update"]
        updates += ["/reset_prefix_cache", "/resume"]
        for peer in peers:
            paths = [path for path, _ in peer.requests if path != "/health"]
            assert paths == ["/get_world_size", "/init_weight_transfer_engine", *updates, *updates]

    def test_an_update_that_another_run_left_open_is_closed(self, peers, build):
        peers[0].updating = True
        build(peers).sync_weights(weights_of(0).items())
        for peer in peers:
            assert_has(peer, weights_of(0))

    def test_a_server_that_keeps_its_prefix_cache_is_lost(self, peers, build, capsys):
        peers[0].answers["/reset_prefix_cache"] = lambda _: (200, {"success": False})
        build(peers).sync_weights(weights_of(0).items())
        assert f"{peers[0].url} is lost (it keeps the prefix cache" in capsys.readouterr().err
        assert_has(peers[1], weights_of(0))

    def test_a_server_that_cannot_be_connected_is_lost_at_once(self, peers, build, capsys):
        """Long before the time that workers have to join."""
        peers[0].answers["/init_weight_transfer_engine"] = lambda _: (500, {"error": "no such backend"})
        begun = time.monotonic()
        build(peers).sync_weights(weights_of(0).items())
        assert time.monotonic() - begun < SECONDS
        assert f"{peers[0].url} is lost" in (said := capsys.readouterr().err) and "no such backend" in said
        assert_has(peers[1], weights_of(0))

    def test_a_server_that_claims_to_have_weights_which_it_did_not_take_is_lost(self, peers, build, capsys):
        peers[0].answers["/update_weights"] = lambda _: (200, None)
        large = {"w": torch.ones(1 << 24)}  # more than a connection holds by itself
        begun = time.monotonic()
        build(peers).sync_weights(large.items())
        assert time.monotonic() - begun < SECONDS
        assert f"{peers[0].url} is lost (it says that it has weights" in capsys.readouterr().err
        assert_has(peers[1], large)

    def test_no_more_than_a_bucket_is_held(self, peers, build):
        alive: list[weakref.ref[torch.Tensor]] = []

        def source() -> Iterator[tuple[str, torch.Tensor]]:
            for place in range(4):
                assert sum(ref() is not None for ref in alive) <= 1
                tensor = torch.full((8,), float(place))
                alive.append(weakref.ref(tensor))
                yield f"w{place}", tensor
                del tensor

        build(peers).sync_weights(source())
        assert peers[1].weights.keys() == {"w0", "w1", "w2", "w3"}

    def test_a_server_lost_while_it_generates_is_connected_anew(self, peers, build, capsys):
        """Not sent to by the way that ended with it."""
        engine = build(peers)
        engine.sync_weights(weights_of(0).items())
        peers[0].end()
        complete(engine, PROMPTS, 1, SAMPLING, "key")
        peers.append(Peer(port=peers[0].port))
        engine.sync_weights(weights_of(1).items())
        assert_has(peers[2], weights_of(1))
        said = capsys.readouterr().err
        assert said.count("is lost") == said.count("answers again") == 1

    def test_a_server_lost_in_between_keeps_nobody_else_from_them(self, peers, build, expected, capsys):
        def break_off(_: Any) -> None:
            threading.Thread(target=peers[0].end).start()

        peers[0].answers["/update_weights"] = break_off
        engine = build(peers)
        engine.sync_weights(weights_of(0).items())
        assert_has(peers[1], weights_of(0))
        assert capsys.readouterr().err.count(f"{peers[0].url} is lost") == 1
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected
        assert peers[0].asked() == []

    def test_a_server_started_again_is_taken_back_with_the_weights_that_it_missed(self, peers, build, expected, capsys):
        engine = build(peers)
        peers[0].end()
        engine.sync_weights(weights_of(0).items())
        engine.sync_weights(weights_of(1).items())
        peers.append(Peer(port=peers[0].port))
        engine.sync_weights(weights_of(2).items())
        assert_has(peers[1], weights_of(2))
        assert_has(peers[2], weights_of(2))
        said = capsys.readouterr().err
        assert said.count(f"{peers[0].url} is lost") == said.count(f"{peers[0].url} answers again") == 1
        assert complete(engine, PROMPTS, 3, SAMPLING, "key") == expected
        assert len(peers[2].asked()) == 4

    def test_without_any_server_the_run_stops(self, peers, build):
        engine = build(peers)
        for peer in peers:
            peer.end()
        with pytest.raises(RunStopped, match=r"rollout\.servers"):
            engine.sync_weights(weights_of(0).items())

    def test_other_ranks_read_the_weights_and_send_nothing(self, peers, build):
        """They take part in gathering each of them. A world of one process stands for the last collective."""

        class OtherRank(World):
            is_main = False  # type: ignore[assignment]

            def on_main(self, action):
                return [peer.url for peer in peers[1:]]

        read: list[str] = []
        engine = build(peers, world=OtherRank(1, 2))
        engine.sync_weights((read.append(name) or (name, weight)) for name, weight in weights_of(0).items())
        assert read == ["a", "b", "c"]
        complete(engine, PROMPTS, 1, SAMPLING, "key")
        assert not any("weight" in path for peer in peers for path, _ in peer.requests)
        assert peers[0].asked() == [] and len(peers[1].asked()) == 8  # what rank 0 has lost is lost here
