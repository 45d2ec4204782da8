import itertools

from ffn.machine import pace


def test_alternatives_are_called_in_turn_and_their_first_calls_are_not_timed(monkeypatch):
    calls, clock = [], [0.0]

    def work(name, seconds):
        durations = itertools.chain([100.0], itertools.repeat(seconds))  # the first call compiles

        def call():
            calls.append(name)
            clock[0] += next(durations)

        return call

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    rates = pace.calls_per_second({"a": work("a", 0.5), "b": work("b", 0.25)}, seconds=3)
    assert rates == {"a": 2.0, "b": 4.0}
    assert calls == ["a", "b"] * 5


def test_slow_alternatives_are_timed_a_few_times_all_the_same():
    calls = []
    pace.calls_per_second({"a": lambda: calls.append("a")}, seconds=0, min_rounds=3)
    assert calls == ["a"] * 4
