"""What must work in a training environment. Runs on Python 3.7 with the standard library, by unittest."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLI = os.path.join(REPO, "precision_tool", "cli.py")


def run_python(*arguments):
    # type: (str) -> subprocess.CompletedProcess[str]
    """Runs Python in an empty folder with the package on its path, warnings as errors."""
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(
            [sys.executable, "-B", "-W", "error", *arguments],
            cwd=empty,
            env={"PYTHONPATH": REPO, "PATH": os.environ.get("PATH", ""), "PRECISION_TOOL_SEED": "off"},
            capture_output=True,
            text=True,
            check=False,
        )


class TrainingSide(unittest.TestCase):
    def test_this_is_an_old_python(self):
        # type: () -> None
        assert sys.version_info[:2] < (3, 11)

    def test_importing_the_package_imports_nothing_else(self):
        # type: () -> None
        code = (
            "import sys, __future__; before = set(sys.modules); import precision_tool; "
            "print(sorted(set(sys.modules) - before))"
        )
        assert run_python("-c", code).stdout.strip() == "['precision_tool']"

    def test_analysis_from_python_is_refused_in_one_line(self):
        # type: () -> None
        run = run_python("-c", "import precision_tool; precision_tool.compare")
        last = run.stderr.strip().splitlines()[-1]
        assert "ImportError: precision_tool.compare needs Python 3.11" in last

    def test_importing_a_public_name_is_refused(self):
        # type: () -> None
        run = run_python("-c", "from precision_tool import load_graph")
        assert "needs Python 3.11" in run.stderr

    def test_fusion_files_are_absolute_and_valid_json(self):
        # type: () -> None
        code = (
            "import precision_tool.tf_config as c, json; print(json.dumps([c.FUSION_OFF_FILE, c.FUSION_SWITCH_FILE]))"
        )
        run = run_python("-c", code)
        assert run.stderr == ""
        for path in json.loads(run.stdout):
            assert os.path.isabs(path), path
            with open(path) as file:
                assert set(json.load(file)["Switch"]) == {"GraphFusion", "UBFusion"}

    def test_importing_the_training_helper_leaves_the_job_alone(self):
        # type: () -> None
        code = (
            "import sys, logging, warnings; path = list(sys.path); handlers = list(logging.root.handlers); "
            "filters = list(warnings.filters); import precision_tool.tf_config; "
            "assert sys.path == path and logging.root.handlers == handlers and warnings.filters == filters"
        )
        run = run_python("-c", code)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")

    def test_help_works_in_every_way_of_starting(self):
        # type: () -> None
        for start in ([CLI], ["-m", "precision_tool"], ["-m", "precision_tool.cli"]):
            run = run_python(*start, "-h")
            assert (run.returncode, run.stderr) == (0, "")
            assert run.stdout.startswith("usage: precision-tool")

    def test_analysis_words_answer_with_one_line(self):
        # type: () -> None
        for words in (["ac", "-c"], ["vc"], ["vector_compare"], ["data", ".", "vcs"], ["--data", "x", "demo"]):
            run = run_python(CLI, *words)
            assert (run.returncode, run.stdout) == (2, "")
            (line,) = run.stderr.splitlines()
            assert f"needs Python 3.11 or newer, this is Python {platform.python_version()}: " in line

    def test_an_internal_error_is_one_line_and_a_file(self):
        # type: () -> None
        code = (
            "import sys, tempfile, precision_tool.cli as cli; tempfile.tempdir = '.'\n"
            "def broken(arguments): raise RuntimeError('odd: \\udcff')\n"
            "cli._run = broken\n"
            "code = cli.main(['ls', '\\udcff'])\n"
            "import pathlib; (log,) = pathlib.Path().glob('precision_tool_*.log'); print(log.read_text('utf-8'))\n"
            "sys.exit(code)"
        )
        run = run_python("-c", code)
        (line,) = run.stderr.splitlines()
        assert (run.returncode, line[:49]) == (3, "error: internal error (RuntimeError: odd: \\udcff)"), line
        assert line.endswith(".log")
        assert "; please report it with " in line
        assert "arguments: ['ls', '\\udcff']" in run.stdout
        assert "in broken" in run.stdout

    def test_acl_json_is_written_and_checked(self):
        # type: () -> None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "acl.json")
            made = run_python(CLI, "acl_json", path, "--dump-mode", "output")
            assert (made.returncode, made.stderr) == (0, ""), made
            with open(path, encoding="utf-8") as file:
                assert json.load(file)["dump"]["dump_mode"] == "output"
            assert run_python(CLI, "acl_json", path, "--check").stdout == path + ": single ops are dumped\n"

    def test_settings_and_workspace(self):
        # type: () -> None
        code = (
            "from precision_tool.lib.data.settings import load_settings\n"
            "from precision_tool.lib.data.workspace import Workspace\n"
            "open('precision_config.py', 'w').write('LIMIT = 7\\n')\n"
            "settings = load_settings({'data': 'elsewhere'}, environment={'PRECISION_TOOL_TF_DUMP_STEP': '0|2-4'})\n"
            "folder = Workspace(settings.data).new_compare_dir()\n"
            "print(settings.limit, settings.tf_dump_step, len(folder.name), folder.parts[:3])\n"
        )
        run = run_python("-c", code)
        assert run.stdout == "7 0|2-4 14 ('elsewhere', 'temp', 'vector_compare')\n", run.stderr
        wrong = code.replace("LIMIT", "LIMITS")
        assert "precision_config.py line 1: unknown setting LIMITS" in run_python("-c", wrong).stderr


if __name__ == "__main__":
    unittest.main()
