"""What a record keeps of the code behind it: what changes a hash, which modules count, and what others leave."""

import json
import os
import subprocess
import sys

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


def test_the_modules_of_a_process_are_ours_alone_and_those_that_it_loaded(tmp_path):
    program = "from labkit.training import manifest, data; import json; print(json.dumps(manifest.loaded()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {"labkit/training/data.py", "labkit/training/__init__.py"} <= set(found)
    assert "labkit/training/run.py" not in found, "nobody imported it"
    assert "labkit/training/manifest.py" not in found and "labkit/errors.py" not in found, "they measure nothing"
    assert not [path for path in found if not (manifest.SOURCE_CODE / path).is_file()]


def test_a_watched_program_names_the_modules_of_all_its_processes(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import subprocess, sys, labkit.training.ranges\n"
        "subprocess.run([sys.executable, '-c', 'import labkit.training.machine'], check=True)\n"
    )
    subprocess.run([sys.executable, script], env=os.environ | manifest.watched(tmp_path), check=True)
    modules = manifest.gathered(tmp_path)["modules"]
    assert {str(script), "labkit/training/ranges.py", "labkit/training/machine.py"} <= set(modules)


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


def test_a_record_is_current_until_its_command_or_its_code_is_another(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    modules = {"a.py": manifest.hash_of(b"x = 1"), "gone.py": "0" * 16}
    assert manifest.changed(modules, tmp_path) == {"gone.py": ("0" * 16, None)}
    (tmp_path / "a.py").write_text("x = 2  # two")
    assert set(manifest.changed(modules, tmp_path)) == {"a.py", "gone.py"}
    record = {"command": "a.py", "manifest": manifest.manifest(["main_opt1.py"])}
    assert manifest.is_current(record, "a.py")
    assert not manifest.is_current(record, "a.py --epochs 3")
    assert not manifest.is_current({"command": "a.py"}, "a.py"), "made before manifests"
