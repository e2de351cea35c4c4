"""What a record keeps of the code behind it: what changes a hash, which modules count, and what others leave."""

import ast
import os
import subprocess
import sys
from fnmatch import fnmatchcase

import pytest

from labkit.training import manifest

CODE = '''
"""What is this?"""

def loss(x, scale=0.5):  # a half
    """The loss of x."""
    return f"{x:.2f}" if x is None else -x * scale + 1e-3
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # a half", ""),
        ("  # a half", "  # one half\n    # of it"),
        ("What is this?", "What was that?"),
        ('    """The loss of x."""\n', ""),
        ("return f", "return  f"),
        ("x * scale", "(x)*scale"),
    ],
    ids=str,
)
def test_what_nobody_runs_changes_no_hash(old, new):
    assert CODE.count(old) == 1
    assert manifest.hash_of(CODE.replace(old, new).encode()) == manifest.hash_of(CODE.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * scale", "x / scale"),
        ("scale + 1e", "scale - 1e"),
        ("1e-3", "1e-4"),
        ("0.5", "1"),
        ("0.5", "None"),
        ("0.5", "'0.5'"),
        ("x is None", "x is not None"),
        ("x is None", "x is 0"),
        (".2f", ".3f"),
        ("-x * ", "x * "),
        ("def loss", "def loss_"),
        ("scale=0.5", "*, scale=0.5"),
    ],
    ids=str,
)
def test_what_runs_changes_the_hash(old, new):
    assert CODE.count(old) == 1
    assert manifest.hash_of(CODE.replace(old, new).encode()) != manifest.hash_of(CODE.encode())


def test_an_integer_is_not_its_float():
    assert manifest.hash_of(b"x = 1") != manifest.hash_of(b"x = 1.0") != manifest.hash_of(b"x = True")


def test_the_hash_is_the_same_under_every_python():
    """Made under 3.10, 3.11, 3.12 and 3.13: what is newer in a Python's syntax trees must not come in."""
    assert manifest.hash_of(CODE.encode()) == "45dd8b7e172b97f9"


SCRIPT = """
import argparse
from labkit.training.model import Net

def writable(file):
    return True

def main():
    parser = argparse.ArgumentParser(description="It.")
    add = parser.add_argument
    add("--record", help="a file")
    add("--rows", type=int, default=8, help="how many")
    args = parser.parse_args()
    if not writable(args.record):
        parser.error("no")
    print(Net(args.rows))
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("labkit.training.model", "labkit.networks"),
        ('"It."', '"It is."'),
        ("type=int", "type=at_least(1)"),
        ("how many", "their number"),
        ('    add("--record", help="a file")\n', ""),
        ('("no")', '("no!")'),
        ("argparse.ArgumentParser(description=", "script_parser("),
        ("    return True", "    return file.is_file()"),
    ],
)
def test_where_something_of_ours_lies_and_how_flags_are_checked_change_no_hash(old, new):
    assert SCRIPT.count(old) == 1
    assert manifest.hash_of(SCRIPT.replace(old, new).encode()) == manifest.hash_of(SCRIPT.encode())


@pytest.mark.parametrize(
    ("old", "new"), [("default=8", "default=9"), ("args.rows)", "args.rows + 1)"), ("Net(", "Nets(")]
)
def test_a_flag_s_default_and_its_use_change_the_hash(old, new):
    assert manifest.hash_of(SCRIPT.replace(old, new).encode()) != manifest.hash_of(SCRIPT.encode())


def test_of_a_mixed_module_only_what_is_measured_counts():
    code = b"MEAN = 0.1\nclass Run:\n    def epochs(self):\n        return 3\n    def told(self):\n        return 4\n"
    parts = ("MEAN", "Run.epochs")
    assert manifest.hash_of(code, parts) == manifest.hash_of(code.replace(b"4", b"5"), parts)
    assert manifest.hash_of(code, parts) != manifest.hash_of(code.replace(b"3", b"5"), parts)
    assert manifest.hash_of(code, parts) != manifest.hash_of(code.replace(b"0.1", b"0.2"), parts)


def test_an_entry_s_recipe_is_not_hashed_for_each_record_holds_its_own(tmp_path):
    entry = tmp_path / "mine.py"

    def hashed(text: str, name: str) -> str:
        entry.write_text(text)
        return manifest.file_hash(entry, name)

    text = "RECIPE = {'batch': 1}\nSPACE = {'batch': [1, 2]}\n"
    other, space = text.replace(": 1}", ": 2}"), text.replace("[1, 2]", "[1, 3]")
    assert hashed(text, "speedrun/mine.py") == hashed(other, "speedrun/mine.py")
    assert hashed(text, "speedrun/mine.py") != hashed(space, "speedrun/mine.py")
    assert hashed(text, "main_opt1.py") != hashed(other, "main_opt1.py")


def test_every_name_of_the_list_is_there():
    """A definition that moves away leaves the list, or what it measures changes unseen."""
    for path, names in manifest.PARTS.items():
        tree = ast.parse((manifest.SOURCE_CODE / path).read_text())
        assert [name for name in names if not manifest._defined(tree, name)] == [], path
    there = [file.relative_to(manifest.SOURCE_CODE).as_posix() for file in manifest.SOURCE_CODE.rglob("*.*")]
    unused = [pattern for pattern in manifest.MEASURED if not any(fnmatchcase(path, pattern) for path in there)]
    assert unused == [] and set(manifest.STAND_INS) <= set(there)


def test_a_watched_program_names_the_measured_modules_of_all_its_processes(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import subprocess, sys, labkit.training.ranges, labkit.training.machine\n"
        "subprocess.run([sys.executable, '-c', 'import labkit.training.model'], check=True)\n"
    )
    subprocess.run([sys.executable, script], env=os.environ | manifest.watched(tmp_path), check=True)
    modules = manifest.gathered(tmp_path)["modules"]
    assert set(modules) == {str(script), "labkit/training/ranges.py", "labkit/training/model.py"}


def test_the_kernels_that_lie_beside_a_module_are_measured_with_it(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import labkit.kernels.rungs, labkit.training.ranges")
    environment = os.environ | manifest.watched(tmp_path) | {"PYTHONPATH": str(manifest.SOURCE_CODE)}
    subprocess.run([sys.executable, script], env=environment, check=True)
    modules = manifest.gathered(tmp_path)["modules"]
    assert {"labkit/kernels/rungs/__init__.py", "labkit/kernels/rungs/5_tma.cu", "labkit/kernels/rungs/ptx.cuh"} <= {
        *modules
    }
    assert not any("hopper" in name for name in modules), "those of a module that nobody loaded"
    kernel = tmp_path / "labkit/kernels/rungs/5_tma.cu"
    kernel.parent.mkdir(parents=True)
    now = (manifest.SOURCE_CODE / "labkit/kernels/rungs/5_tma.cu").read_text()
    own = {name: value for name, value in modules.items() if name.endswith("5_tma.cu")}
    for text, outdated in ((f"// a word\n{now}  /* two\nlines */", False), (now.replace("step", "stage"), True)):
        kernel.write_text(text)
        assert bool(manifest.changed(own, tmp_path)) == outdated


def test_what_a_kernel_includes_is_measured_with_it():
    found = manifest._cuda([manifest.SOURCE_CODE / "labkit/kernels/hopper.py"])
    names = {file.relative_to(manifest.SOURCE_CODE / "labkit/kernels").as_posix() for file in found}
    assert names == {"hopper_forward.cu", "hopper_backward.cu", "hopper.cuh", "rungs/ptx.cuh"}


def test_nobody_watched_leaves_nothing(tmp_path):
    assert manifest.gathered(tmp_path) is None


@pytest.mark.parametrize(
    ("told", "commit", "clean"), [("abc", "abc", True), ("abc+dirty", "abc", False), ("", None, None)]
)
def test_where_there_is_no_git_the_commit_is_told(monkeypatch, told, commit, clean):
    monkeypatch.setattr(manifest, "_git", lambda: "")
    monkeypatch.setenv("LAB_COMMIT", told)
    found = manifest.manifest(["main_opt1.py"])
    assert (found["commit"], found["clean"]) == (commit, clean)
    assert found["modules"] == {"main_opt1.py": manifest.file_hash(manifest.SOURCE_CODE / "main_opt1.py")}


def test_a_record_is_outdated_once_its_code_is_another_or_nobody_knows_it(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    modules = {"a.py": manifest.hash_of(b"x = 1"), "gone.py": "0" * 16, "labkit/display/spread.py": "0" * 16}
    assert manifest.changed(modules, tmp_path) == {"gone.py": ("0" * 16, None)}
    (tmp_path / "a.py").write_text("x = 2  # two")
    assert set(manifest.changed(modules, tmp_path)) == {"a.py", "gone.py"}
    assert not manifest.is_outdated({"manifest": manifest.manifest(["main_opt1.py"])})
    assert manifest.is_outdated({"manifest": {"modules": {"main_opt1.py": "0" * 16}}})
    assert manifest.is_outdated({}) and manifest.is_outdated({"manifest": {"modules": None}})
