"""What importing costs, and what still works where a heavy package is missing."""

import resource
import subprocess
import sys

import pytest

from tests.source_tree import PACKAGE, ROOT

HELP_SECONDS = 0.3
HEAVY = ("torch", "triton", "pandas", "matplotlib", "scipy", "pyarrow")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def modules(folder: str) -> list[str]:
    return [f"dsv4bench.{folder}.{path.stem}" for path in sorted((PACKAGE / folder).glob("*.py"))]


BLOCK = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {without!r}:
            raise ModuleNotFoundError("no module named " + name, name=name)
sys.meta_path.insert(0, Missing())
for name in {names!r}:
    importlib.import_module(name.removesuffix(".__init__"))
"""


def import_all(names: list[str], without: tuple[str, ...]) -> str:
    return python(BLOCK.format(names=names, without=without))


@pytest.mark.parametrize("module", ["cli", "cli_dep_rank"])
def test_a_process_starts_without_heavy_packages(module):
    """A rank must be able to end, with its launcher or on Ctrl-C, before it has imported any."""
    loaded = python(f"import sys, dsv4bench.{module}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded == ""


MEASURING = ("group", "sweep", "dep_rank", "ab_child", "digest_child")


def test_a_process_that_measures_starts_without_pandas_and_scipy():
    """Every rank and every fresh process of an A/B pays for what it imports; verdicts are reached elsewhere."""
    loaded = python(
        "import importlib, sys\n"
        f"for module in {MEASURING}:\n"
        "    importlib.import_module('dsv4bench.profiling.' + module)\n"
        "    for name in ('pandas', 'scipy', 'pyarrow', 'matplotlib'):\n"
        "        if name in sys.modules: print(module, 'or one before it imports', name)"
    )
    assert loaded == ""


def test_help_answers_at_once():
    def seconds() -> float:
        """Return the CPU time of one call: start-up waits for nothing, and other tests share the cores' wall time."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "dsv4bench", "--help"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(8)) < HELP_SECONDS


def test_results_and_dashboards_work_on_a_laptop_without_torch():
    import_all(modules("results") + modules("dashboards"), without=("torch", "triton"))


def test_kernel_files_can_be_imported_without_triton():
    """Files of Gluon have nothing but device functions; their provider imports them when it is built."""
    import_all([name for name in modules("kernels") if not name.endswith("_gluon")], without=("triton",))


def test_a_blocked_package_is_really_blocked():
    with pytest.raises(AssertionError, match="torch"):
        import_all(["dsv4bench.kernels.contract"], without=("torch",))


def test_a_review_of_a_trace_starts_without_torch():
    loaded = python(
        "import sys, dsv4bench.cli_trace_run; print(*[n for n in ('torch', 'scipy.stats') if n in sys.modules])"
    )
    assert loaded == ""
