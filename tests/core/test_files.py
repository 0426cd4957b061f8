"""Nothing is half-written; equal content has equal keys; a lock held elsewhere is said in one
line.
"""

import errno
import os
import subprocess
import sys
import threading

import pytest

from t3lib.core import files
from t3lib.core.errors import UserError


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
    with pytest.raises(UserError, match="a.json: malformed JSON .*line 2"):
        files.read_json(tmp_path / "a.json")
    for text in (
        "9" * 5000,
        "[" * 200_000,
    ):  # a ValueError that is no JSONDecodeError, and a RecursionError
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="a.json: malformed JSON"):
            files.read_json(tmp_path / "a.json")


def test_threads_that_write_one_file_never_tear_it(tmp_path):
    path, values = tmp_path / "a.json", [{"value": str(n) * 20_000} for n in range(6)]
    files.write_json(path, values[0])
    writers = [
        threading.Thread(target=lambda v=v: [files.write_json(path, v) for _ in range(20)])
        for v in values
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert files.read_json(path) in values
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "known")
    (tmp_path / ".known.partial").symlink_to(tmp_path / "victim")
    (tmp_path / f".a.json.{os.getpid()}.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="cannot write"):
        files.write_json(tmp_path / "a.json", {})
    assert (tmp_path / "victim").read_text() == "mine"


def test_content_key_ignores_the_order_of_keys_but_not_values():
    assert files.content_key({"a": 1, "b": [1, 2]}) == files.content_key({"b": [1, 2], "a": 1})
    assert files.content_key({"a": 1}) != files.content_key({"a": 2})


def test_lock_held_by_another_process_is_said(tmp_path):
    code = (
        "import sys, t3lib.core.files as f\nwith f.lock(sys.argv[1]):\n  print('held',"
        " flush=True)\n  sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "x.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(UserError, match="in use by another t3 process"),
        files.lock(tmp_path / "x.lock", wait=False),
    ):
        pass
    holder.kill()  # kill -9: the kernel frees the lock
    holder.wait()
    with files.lock(tmp_path / "x.lock", wait=False):
        pass


# ---- identity -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A model of 32 MB as others see it: files of the right names."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(32 * 2**20))
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        (folder / name).write_text("{}")
    (folder / "chat_template.jinja").write_text("")
    return folder


@pytest.mark.parametrize("rest", [False, True], ids=["just written", "at rest"])
def test_a_model_is_its_content(folder, rest):
    def settle():
        """As if written a minute ago; the time of its last change alone cannot be set."""
        if rest:
            for path in folder.iterdir():
                os.utime(path, (1e9, 1e9))

    settle()
    before = files.model_identity(folder)
    (folder / "base.json").write_text('{"cpu_seconds": 3}')
    (folder / "README.md").write_text("a card")
    assert files.model_identity(folder) == before
    moved = folder.rename(folder.parent / "renamed")
    assert files.model_identity(moved) == before
    moved.rename(folder)
    for name in [
        path.name for path in folder.iterdir() if path.name not in ("base.json", "README.md")
    ]:
        path = folder / name
        kept = path.read_bytes()
        path.write_bytes(kept + b" ")
        settle()
        assert files.model_identity(folder) != before, name
        path.write_bytes(kept)
    settle()
    assert files.model_identity(folder) == before


def test_one_byte_in_the_middle_of_the_weights_changes_the_model(folder):
    before = files.model_identity(folder)
    facts = os.stat(folder / "model.safetensors")
    with open(folder / "model.safetensors", "r+b") as handle:
        handle.seek(5 * 2**20)
        handle.write(b"x")
    os.utime(
        folder / "model.safetensors", ns=(facts.st_atime_ns, facts.st_mtime_ns)
    )  # its time kept
    assert files.model_identity(folder) != before


def test_an_adapter_is_its_base_too(folder, tmp_path):
    adapter = tmp_path / "adapter"
    files.write_json(adapter / "adapter_config.json", {"base_model_name_or_path": str(folder)})
    before = files.model_identity(adapter)
    (folder / "config.json").write_text('{"a": 1}')
    assert files.model_identity(adapter) != before


def test_a_hub_id_needs_its_commit():
    assert files.model_identity("somebody/model", "abc") == "abc"
    with pytest.raises(UserError, match="somebody/model.*commit"):
        files.model_identity("somebody/model")


def test_rows_are_the_same_when_what_is_asked_and_scored_is():
    row = {"question": "q", "answer": "a", "perturbed_answer": ["b"]}
    assert files.rows_key([row]) == files.rows_key([row | {"further": 1}])
    for change in (
        {"question": "p"},
        {"answer": "b"},
        {"paraphrased_answer": "a"},
        {"perturbed_answer": []},
    ):
        assert files.rows_key([row | change]) != files.rows_key([row])
