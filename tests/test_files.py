"""Nothing is half-written; equal content has equal keys; a lock held elsewhere is said in one line."""

import errno
import json
import subprocess
import sys

import pytest

from t3lib import files
from t3lib.errors import UserError


def test_a_failing_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), files.atomic_write(path) as handle:
        handle.write("half")
        raise RuntimeError
    assert files.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="cannot write .*a.json: No space left"):
        files.write_json(tmp_path / "a.json", {})
    assert list(tmp_path.iterdir()) == []


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", {"x": float("nan")})


def test_malformed_json_names_file_and_line(tmp_path):
    (tmp_path / "a.json").write_text("{\n oops", encoding="utf-8")
    with pytest.raises(UserError, match="a.json line 2"):
        files.read_json(tmp_path / "a.json")
    for text in ("9" * 5000, "[" * 200_000):  # a ValueError that is no JSONDecodeError, and a RecursionError
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="a.json: not valid JSON"):
            files.read_json(tmp_path / "a.json")


def test_content_key_ignores_the_order_of_keys_but_not_values():
    assert files.content_key({"a": 1, "b": [1, 2]}) == files.content_key({"b": [1, 2], "a": 1})
    assert files.content_key({"a": 1}) != files.content_key({"a": 2})


def test_lock_held_by_another_process_is_said(tmp_path):
    code = "import sys, t3lib.files as f\nwith f.lock(sys.argv[1]):\n  print('held', flush=True)\n  sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "x.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="in use by another t3 process"), files.lock(tmp_path / "x.lock", wait=False):
        pass
    holder.kill()  # kill -9: the kernel frees the lock
    holder.wait()
    with files.lock(tmp_path / "x.lock", wait=False):
        pass


def test_importing_t3lib_metrics_and_theory_needs_no_torch():
    code = "import sys, t3lib, t3lib.metrics, t3lib.theory; assert 'torch' not in sys.modules; print('ok')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


def test_read_json_of_what_write_json_wrote(tmp_path):
    value = {"é": [1, 2.5, None], "nested": {"x": "𝔘"}}
    files.write_json(tmp_path / "b" / "a.json", value)
    assert files.read_json(tmp_path / "b" / "a.json") == value == json.loads((tmp_path / "b" / "a.json").read_text())
