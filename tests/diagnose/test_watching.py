"""A study that is watched goes on with what has arrived whole, until Ctrl+C."""

from __future__ import annotations

import shutil
from pathlib import Path

from precision_tool.lib.compare.scheduler import THIS_THREAD
from precision_tool.lib.demo.ranks import generate_ranks
from precision_tool.lib.diagnose.study import Runner, Study, watch
from precision_tool.lib.diagnose.study_journal import open_journal
from precision_tool.lib.diagnose.study_plan import Prepared, StudyOptions, prepare


def test_new_steps_are_taken_when_they_are_whole(tmp_path: Path) -> None:
    truth = generate_ranks(tmp_path, ranks=1, steps=2, fault="fused", fault_step=1, benchmark="none")
    (leaf,) = (tmp_path / truth.data[0]).glob("npu/debug_0/dump/*/0/*/*/1")
    away = tmp_path / "away"
    shutil.move(leaf, away)
    files = sorted(away.iterdir())
    options = StudyOptions(folders=[str(tmp_path / truth.data[0])])
    looks: list[str] = []
    seen: list[Study] = []

    def sleep(_: float) -> None:
        """What arrives between two looks: nothing, some of the files, the others, nothing; then Ctrl+C."""
        looks.append(f"{len(seen)}")
        if len(looks) == 2:
            leaf.mkdir()
        arrived = {2: files[:10], 3: files[10:]}.get(len(looks), [])
        for file in arrived:
            shutil.move(file, leaf / file.name)
        if len(looks) == 6:
            raise KeyboardInterrupt

    (tmp_path / "work").mkdir()
    with open_journal(str(tmp_path / "work")) as journal:

        def study(prepared: Prepared) -> Study:
            runner = Runner(prepared, options, journal)
            runner.run(THIS_THREAD)
            return runner.result()

        last = watch(lambda: prepare(options), study, seen.append, seconds=1, sleep=sleep)
    assert [study.steps for study in seen] == [(0,), (0, 1)]
    assert looks == ["1", "1", "1", "1", "2", "2"]  # while the files arrive, nothing is studied
    assert last is seen[-1]
    assert seen[0].conclusion.culprit is None
    culprit = last.conclusion.culprit
    assert culprit is not None
    assert (culprit.step, culprit.op) == (1, truth.culprit)
