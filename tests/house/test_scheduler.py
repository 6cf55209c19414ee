"""Runs in child processes: at most so many, the costliest first, a failure named, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vdr.progress import read_progress_file
from vdr.scheduler import ChildFailed, Job, run_jobs, thread_environment


def job(tmp_path: Path, name: str, code: str, cost: float = 1.0) -> Job:
    return Job(name, [sys.executable, "-c", textwrap.dedent(code)], tmp_path / "logs" / f"{name}.log", cost)


def test_costliest_first_and_never_more_than_allowed(tmp_path: Path) -> None:
    book = tmp_path / "book"
    code = f"""
        import os, time
        def say(word):
            with open({str(book)!r}, "a") as out: out.write(f"{{word}} {{os.environ['NAME']}}\\n")
        say("start"); time.sleep(0.3); say("end")
    """
    jobs = []
    for name, cost in (("small", 1.0), ("large", 3.0), ("middle", 2.0)):
        one = job(tmp_path, name, code, cost)
        one.environment = {"NAME": name}
        jobs.append(one)
    took = run_jobs(jobs, processes=2, threads=1)
    assert set(took) == {"small", "large", "middle"}
    events = [line.split() for line in book.read_text().splitlines()]
    assert {name for word, name in events[:2] if word == "start"} == {"large", "middle"}
    running = 0
    for word, _ in events:
        running += 1 if word == "start" else -1
        assert running <= 2


def test_threads_are_held_in_every_library() -> None:
    environment = thread_environment(1)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"


def test_a_failure_names_the_run_repeats_its_line_and_ends_the_others(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    slow = job(tmp_path, "slow", f"import os, time; open({str(alive)!r}, 'w').write(str(os.getpid())); time.sleep(60)", 2.0)
    bad = job(tmp_path, "bad", "import sys, time; time.sleep(0.5); print('vdr: rows.parquet: is empty', file=sys.stderr); sys.exit(3)")
    started = time.monotonic()
    with pytest.raises(ChildFailed, match=r"bad failed with exit status 3: rows.parquet: is empty; its whole log: .*bad.log") as caught:
        run_jobs([slow, bad], processes=2, threads=1)
    assert caught.value.exit_code == 3
    assert time.monotonic() - started < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int(alive.read_text()), 0)


def test_a_killed_child_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="was ended by signal SIGKILL"):
        run_jobs([job(tmp_path, "victim", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")], 1, 1)


def test_children_report_and_the_parent_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vdr.scheduler.PLAIN_SECONDS", 0.2)
    code = """
        import time
        from vdr.progress import track
        with track(10, "train", "step") as bar:
            for i in range(10):
                time.sleep(0.1)
                bar.update(1, suffix=f"loss {1 / (i + 1):.2f}")
    """
    run_jobs([job(tmp_path, "N-seed-0", code)], 1, 1)
    said = capsys.readouterr().err
    assert "N-seed-0: train" in said
    assert "ETA" in said
    assert "loss" in said
    assert "N-seed-0 done in" in said
    assert not (tmp_path / "logs" / "N-seed-0.log").read_text()  # a child's progress goes to its parent, not to its log


def test_a_childs_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_progress_file(tmp_path / "none") is None
    (tmp_path / "half").write_text('{"done": 3')
    assert read_progress_file(tmp_path / "half") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_no_child_outlives_a_killed_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    parent = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from vdr.scheduler import Job, run_jobs
        code = '''
        import os, time
        from pathlib import Path
        from vdr.children import die_with_parent
        die_with_parent()
        Path({str(pid_file)!r}).write_text(str(os.getpid()))
        time.sleep(60)
        '''
        import textwrap
        run_jobs([Job("child", [sys.executable, "-c", textwrap.dedent(code)], Path({str(tmp_path / "log")!r}))], 1, 1)
    """)
    process = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child = int(pid_file.read_text())
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child outlived its parent")


def test_forks_start_under_a_long_tmpdir(tmp_path: Path) -> None:
    place = tmp_path / ("job-" + "x" * 60) / ("scratch-" + "y" * 60)
    place.mkdir(parents=True)
    code = f"""
        from pathlib import Path
        from vdr.children import fork_server, start_fork
        if __name__ == "__main__":
            child = start_fork(fork_server({{}}), ["--help"], Path({str(tmp_path / "log")!r}), {{}})
            child.wait(120)
            raise SystemExit(child.poll())
    """
    script = tmp_path / "start.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: " in (tmp_path / "log").read_text()


def test_ctrl_c_is_the_parents_alone_and_ends_a_pool_that_is_still_importing() -> None:
    """Every process of a terminal gets it: workers printed a traceback each, from the middle of their imports."""
    code = """
        import time
        from vdr.children import FreshProcesses
        try:
            with FreshProcesses(2) as pool:
                jobs = [pool.submit(time.sleep, 60) for _ in range(2)]
                print("submitted", flush=True)
                jobs[0].result()
        except KeyboardInterrupt:
            print("stopped")
    """
    # Started in the background of a shell it would have Ctrl-C ignored.
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", reset + textwrap.dedent(code)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "submitted\n"
    os.killpg(running.pid, signal.SIGINT)
    assert running.communicate(timeout=30) == ("stopped\n", "")
    deadline = time.monotonic() + 10  # the standard library's own helper ends a moment later
    while _lives(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(running.pid)


def _runs(number: int) -> bool:
    """Is there such a process, and not its entry alone, which nobody has asked after yet?"""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl")
def test_a_fork_server_ends_with_its_parent_also_while_it_imports() -> None:
    """It went on importing, and then did the work it had been asked for, with nobody waiting for it."""
    code = "import os; from multiprocessing import forkserver; from vdr.children import fork_server; fork_server({}); "
    code += "print(forkserver._forkserver._forkserver_pid, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    server = int(done.stdout)
    deadline = time.monotonic() + 1.5  # the imports take longer
    while _runs(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(server)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl")
def test_a_fork_whose_server_has_gone_does_not_begin(tmp_path: Path) -> None:
    """Between the fork and its first line the command may have been stopped: the fork then belongs to somebody else."""
    code = f"from vdr.children import _run; _run(['--help'], {str(tmp_path / 'log')!r}, {{}}, 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl")
def test_a_pool_ends_with_its_parent_also_while_it_imports(tmp_path: Path) -> None:
    """Workers of a killed command went on importing for as long as that took, twenty seconds on a busy machine."""
    slow = "import multiprocessing, time\nif multiprocessing.parent_process():\n    time.sleep(60)\ndef begin(): ...\n"
    (tmp_path / "slow.py").write_text(slow)
    code = "import os, slow, time; from vdr.children import FreshProcesses; pool = FreshProcesses(2, slow.begin); "
    code += "pool.submit(int); pool.submit(int); print(*pool._processes, flush=True); time.sleep(3); os.kill(os.getpid(), 9)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    workers = [int(number) for number in done.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(map(_runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, workers))
