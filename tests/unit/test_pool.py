"""The pool: order, isolation and the hard limit, with functions that hang, crash and raise for real."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from dapo_cli.reward.pool import VerifierPool
from dapo_cli.types import Case, Outcome, Verdict
from tests.unit import pool_functions


def pool_of(workers: int, timeout_s: float, **options: object) -> VerifierPool:
    return VerifierPool(pool_functions.by_command, workers=workers, timeout_s=timeout_s, **options)


def case(command: str, answer: str = "") -> Case:
    return Case("", command, answer)


def ordinary(count: int) -> tuple[list[Case], list[Verdict]]:
    cases = [case(str(index), str(index if index % 3 else index + 1)) for index in range(count)]
    return cases, [Verdict(Outcome.RIGHT if a == b else Outcome.WRONG, a, "text") for _, a, b in cases]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_verdicts_come_in_order_and_repeated_cases_agree():
    cases, expected = ordinary(500)
    with pool_of(2, 5.0) as pool:
        assert pool.verify([]) == []
        assert pool.verify(cases + cases[::-1]) == expected + expected[::-1]


def test_repeated_cases_are_judged_once():
    with pool_of(2, 5.0) as pool:
        start = time.monotonic()
        pool.verify([case("sleep 0.2")] * 40)
        assert time.monotonic() - start < 4.0


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("sleep 60", "timeout"),
        ("spin", "timeout"),
        ("c-code", "timeout"),
        ("exit", "crash"),
        ("raise", "error:ValueError"),
    ],
)
def test_a_bad_case_fails_alone(command: str, rule: str):
    cases, expected = ordinary(150)
    where = [0, 70, 149]
    for place in where:
        cases[place], expected[place] = case(command, str(place)), Verdict(Outcome.FAILED, None, rule)
    with pool_of(2, 0.4) as pool:
        assert pool.verify(cases) == expected
        assert pool.verify(cases[1:40]) == expected[1:40]


@pytest.mark.parametrize("command", ["write-everywhere", "stop-later", "hold-lock-later", "fork"])
def test_a_worker_that_goes_wild_stops_neither_the_pool_nor_other_cases(command: str):
    """What it writes on the line is no verdict, and one that reads nothing any more is killed in time."""
    large = [case(f"{index} " + "x" * 200_000) for index in range(20)]
    with pool_of(1, 1.0) as pool:
        (verdict,) = pool.verify([case(command)])
        assert verdict.outcome is Outcome.FAILED or verdict.rule == "text"
        time.sleep(0.4)
        start = time.monotonic()
        verdicts = pool.verify(large)
        assert sum(verdict.outcome is Outcome.FAILED for verdict in verdicts) <= 1
        assert [v.extracted for v in verdicts if v.outcome is not Outcome.FAILED][-1] == large[-1].completion
        assert time.monotonic() - start < 30


def test_limit_is_per_case_and_kept():
    with pool_of(1, 0.5) as pool:
        pool.verify([case("warm")])
        start = time.monotonic()
        verdicts = pool.verify([case("sleep 0.2", str(index)) for index in range(5)] + [case("sleep 30")])
        assert [verdict.outcome for verdict in verdicts] == [Outcome.WRONG] * 5 + [Outcome.FAILED]
        assert time.monotonic() - start < 1.0 + 2 * 0.5 + 1.0


def test_memory_limit_ends_the_case_only():
    with pool_of(1, 20.0, memory_limit_bytes=1 << 30) as pool:
        verdicts = pool.verify([case("a", "a"), case("memory"), case("b", "b")])
    assert [verdict.rule for verdict in verdicts] == ["text", "memory", "text"]
    assert verdicts[1].outcome is Outcome.FAILED


def test_close_leaves_no_process_behind_and_can_be_repeated():
    pool = pool_of(3, 5.0)
    pids = {int(verdict.extracted or 0) for verdict in pool.verify([case("pid", str(index)) for index in range(60)])}
    child = int(pool.verify([case("child")])[0].extracted or 0)
    assert alive(child)
    pool.close()
    pool.close()
    assert not any(alive(pid) for pid in pids)
    assert gone(child, 2.0)
    with pytest.raises(RuntimeError, match="closed"):
        pool.verify([case("a", "a")])


def test_a_worker_killed_while_idle_costs_no_verdict():
    cases, expected = ordinary(100)
    with pool_of(1, 5.0) as pool:
        os.kill(int(pool.verify([case("pid")])[0].extracted or 0), signal.SIGKILL)
        assert pool.verify(cases) == expected


def test_works_from_threads():
    cases, expected = ordinary(200)
    cases[20], expected[20] = case("sleep 30"), Verdict(Outcome.FAILED, None, "timeout")
    results: list[list[Verdict]] = []
    made: list[VerifierPool] = []
    maker = threading.Thread(target=lambda: made.append(pool_of(2, 0.5)))
    maker.start()
    maker.join()
    with made[0] as pool:
        threads = [threading.Thread(target=lambda: results.append(pool.verify(cases))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [expected, expected]


def test_a_worker_that_cannot_start_is_an_error_not_a_hang():
    with (
        pool_of(1, 5.0, warm_up=pool_functions.broken_warm_up) as pool,
        pytest.raises(RuntimeError, match="did not start"),
    ):
        pool.verify([case("a", "a")])


def test_a_replacement_that_fails_to_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WARM_UPS_FILE", str(tmp_path / "warm-ups"))
    cases, expected = ordinary(60)
    cases[5], expected[5] = case("exit"), Verdict(Outcome.FAILED, None, "crash")
    with pool_of(1, 5.0, warm_up=pool_functions.warm_up_that_fails_once) as pool:
        assert pool.verify(cases) == expected
    assert (tmp_path / "warm-ups").read_text() == "xxx"


def test_workers_import_no_torch():
    with pool_of(1, 5.0) as pool:
        assert pool.verify([case("modules")])[0].extracted == ""


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_their_parent_is_killed(busy: bool):
    script = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from dapo_cli.reward.pool import VerifierPool
        from tests.unit import pool_functions
        pool = VerifierPool(pool_functions.by_command, workers=1, timeout_s=0.5)
        print(pool.verify([("", "pid", "")])[0].extracted, flush=True)
        {"pool.verify([('', 'spin', '')])" if busy else "time.sleep(60)"}
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    time.sleep(0.2)
    parent.kill()
    parent.communicate()
    assert gone(worker, 5.0)
