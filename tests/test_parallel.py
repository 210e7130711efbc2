"""Work on chunks: every piece once, answers in order, an error stops the rest."""

import threading
import time

import pytest

from paraaegis.parallel import parallel_map


def test_answers_come_in_order_and_every_piece_is_done_once():
    done = []

    def work(index, item):
        done.append(index)
        return index * item

    assert parallel_map(work, range(1000)) == [i * i for i in range(1000)]
    assert sorted(done) == list(range(1000))
    assert parallel_map(work, []) == []


def test_a_caller_alone_is_helped(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    meet = threading.Barrier(2, timeout=30)  # broken, and an error, unless two work at once
    parallel_map(lambda _index, _item: meet.wait(), range(2))


def test_callers_that_fill_the_cores_work_for_themselves(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    meet, workers = threading.Barrier(2, timeout=30), {}

    def call(name):
        def work(index, _item):
            if index == 0:
                meet.wait()  # from here on both are in `each`
            time.sleep(0.001)
            return threading.current_thread().name

        workers[name] = parallel_map(work, range(20))

    callers = [threading.Thread(target=call, args=(name,), name=name) for name in ("one", "two")]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert any(set(by) == {name} for name, by in workers.items())


def test_an_error_reaches_the_caller_and_nothing_is_begun_after_it():
    begun = []

    def work(index, _item):
        begun.append(index)
        if index == 3:
            raise ValueError("three")
        time.sleep(0.002)

    with pytest.raises(ValueError, match="three"):
        parallel_map(work, range(5000))
    count = len(begun)
    assert count < 5000
    time.sleep(0.05)
    assert len(begun) == count


def test_work_may_call_for_work_itself():
    assert parallel_map(lambda _, n: sum(parallel_map(lambda _, m: m, range(n))), range(50)) == [
        n * (n - 1) // 2 for n in range(50)
    ]
