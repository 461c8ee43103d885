"""The gate on operations, with a suite that is played; and the real suite, each entry called once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import opbench  # noqa: E402
import opbench_gate  # noqa: E402


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """``gate("check", *options) -> exit status``; every process takes the next of ``gate.answers``."""

    class Gate:
        baseline = tmp_path / "deep" / "host.json"
        answers: list[dict] = []
        asked: list[str] = []
        pauses: list[float] = []

        def __call__(self, *arguments):
            return opbench_gate.main([*arguments, "--baseline", str(self.baseline)])

        def record(self, **seconds):
            self.answers[:] = [seconds] * 3
            assert self("record") == 0

    gate = Gate()
    gate.answers, gate.asked, gate.pauses = [], [], []

    def run(command, **options):
        only = command[command.index("--only") + 1] if "--only" in command else None
        gate.asked.append(only)
        seconds = gate.answers.pop(0)
        if isinstance(seconds, str):
            return opbench_gate.subprocess.CompletedProcess(command, 1, "", seconds)
        text = json.dumps({"seconds": {n: s for n, s in seconds.items() if only is None or n in only.split(",")}})
        return opbench_gate.subprocess.CompletedProcess(command, 0, text, "")

    class Subprocess:
        CompletedProcess = opbench_gate.subprocess.CompletedProcess

    Subprocess.run = staticmethod(run)
    monkeypatch.setattr(opbench_gate, "subprocess", Subprocess)
    monkeypatch.setattr(opbench_gate.time, "sleep", gate.pauses.append)
    return gate


@pytest.mark.parametrize(("seconds", "baseline", "verdict"), [
    ([1.0, 1.0, 1.0], 1.0, "PASS"), ([1.09, 1.09, 1.09], 1.0, "PASS"), ([1.11, 1.11, 1.11], 1.0, "FAIL"),
    ([0.1, 0.1, 0.1], 1.0, "PASS"), ([1.0, 1.0, 1.5], 1.0, "NOISY"), ([2.0, 2.0, 3.0], 1.0, "NOISY"),
    ([1.0, 1.0, 1.1], 1.0, "PASS"), ([1.0], None, "MISSING"),
])  # fmt: skip
def test_verdict(seconds, baseline, verdict):
    assert opbench_gate.judge(seconds, baseline, 0.10, 0.12) == verdict


def test_pass(gate, capsys):
    gate.record(a=1.0, b=2.0)
    gate.answers[:] = [{"a": 1.05, "b": 1.0}] * 3
    assert gate("check") == 0
    out = capsys.readouterr().out
    assert "+5.0%" in out and "-50.0%" in out and out.endswith("PASS\n")
    assert gate.pauses == []


def test_slow_once_is_forgiven(gate):
    gate.record(a=1.0, b=2.0)
    gate.answers[:] = [{"a": 1.2, "b": 2.0}] * 3 + [{"a": 1.0, "b": 2.0}] * 3
    assert gate("check", "--cooldown", "7") == 0
    assert gate.pauses == [7.0] and gate.asked[-3:] == ["a"] * 3


def test_slow_twice_fails(gate, capsys):
    gate.record(a=1.0, b=2.0)
    gate.answers[:] = [{"a": 1.2, "b": 2.0}] * 6
    assert gate("check") == 1
    assert capsys.readouterr().out.endswith("FAIL\n") and gate.pauses == [30.0]


def test_noisy(gate):
    gate.record(a=1.0)
    gate.answers[:] = [{"a": 1.0}, {"a": 1.0}, {"a": 2.0}]
    assert gate("check") == 3


def test_missing(gate):
    gate.record(a=1.0)
    gate.answers[:] = [{"a": 1.0, "new": 1.0}] * 3
    assert gate("check") == 4


def test_a_noisy_recording_says_so(gate, capsys):
    gate.record(a=5.0)
    gate.answers[:] = [{"a": 1.0}, {"a": 1.0}, {"a": 2.0}]
    assert gate("record") == 3 and "0 operations; NOISY, not recorded: a" in capsys.readouterr().out
    assert json.loads(gate.baseline.read_text())["seconds"] == {"a": 5.0}


def test_one_process_cannot_tell(gate, capsys):
    with pytest.raises(SystemExit, match="2"):
        gate("record", "--processes", "1")
    assert "--processes must be at least 2" in capsys.readouterr().err


def test_a_part_can_be_recorded_anew(gate):
    gate.record(a=1.0, b=2.0)
    gate.answers[:] = [{"a": 3.0, "b": 9.0}] * 3
    assert gate("record", "--only", "a") == 0
    assert json.loads(gate.baseline.read_text())["seconds"] == {"a": 3.0, "b": 2.0}


def test_the_baseline_of_another_machine_is_refused(gate, capsys):
    gate.record(a=1.0)
    document = json.loads(gate.baseline.read_text())
    document["host"]["processor"] = "abacus"
    gate.baseline.write_text(json.dumps(document))
    assert gate("check") == 2
    assert "of another machine or setting: processor abacus -> " in capsys.readouterr().err


@pytest.mark.parametrize(("text", "complaint"), [
    (None, "there is no baseline"), ("[]", "is not a baseline"), ("{", "is not a baseline"),
    ('{"host": {}}', "is not a baseline"),
])  # fmt: skip
def test_no_baseline(gate, capsys, text, complaint):
    if text is not None:
        gate.baseline.parent.mkdir()
        gate.baseline.write_text(text)
    assert gate("check") == 2 and complaint in capsys.readouterr().err


def test_a_benchmark_that_fails_is_no_result(gate, capsys):
    gate.answers[:] = ["Traceback\nValueError: no kernel"]
    assert gate("record") == 2 and "ValueError: no kernel" in capsys.readouterr().err
    assert not gate.baseline.exists()


# ---- the suite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in opbench.SUITE if not name.endswith(".256") or "q4_0" in name])
def test_each_operation_can_be_called(name):
    assert opbench.SUITE[name]()() is not None


def test_the_time_is_that_of_the_calls(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(opbench, "perf_counter", lambda: clock[0])
    calls = []

    def call():
        calls.append(1)
        clock[0] += 0.01

    assert opbench.seconds_per_call(call, block=0.05, blocks=3) == pytest.approx(0.01)
    assert len(calls) == 2 + 3 * 5


def test_command(capsys):
    assert opbench.main(["--only", "add", "--block", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["seconds"]) == ["add.256"] and document["seconds"]["add.256"] > 0
    assert opbench.main(["--only", "add,softmax", "--block", "0"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["softmax.256", "add.256"]
    assert opbench.main(["--only", "juggle"]) == 2
    assert "nothing in the suite is called juggle" in capsys.readouterr().err
