"""What a worker does with one job: check the marker, remove earlier files, run it, write the
marker. No torch here.

The marker of a finished job is the file `done/RESULTS/JOB.json` in the cache. It holds the job's
key and a checksum of every output file. The job is run again when the marker is damaged, when its
key is another one, or when an output file is missing or has another checksum. Two jobs may write
the same file: then the checksum in either marker will do.

When a job starts, the run files of its earlier run are removed, so that no table reads them. A job
that was killed loses little: features, trained models and scores are cached by content. So are base
models. A base model that is missing is trained again by the notebook that needs it.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from t3lib.core.errors import UserError
from t3lib.core.files import (
    content_key,
    data_identity,
    folder_key,
    lock,
    read_json,
    read_sealed,
    sha256_file,
    write_json,
    write_sealed,
)
from t3lib.core.identity import changed_since_import
from t3lib.lab.grid.jobs import Job

ATTEMPTS = 3  # of a kernel that does not start or dies: ports race when several start at once
TRAIN = """from t3lib.lab.world import bases
_ = bases.ensure_base(bases.Stage(**stage), name, seed)"""
# Memory that a training frees stays with its process (glibc; elsewhere the names mean nothing):
# every step takes the same megabytes again, and to have the system clear them each time costs a
# tenth of a small training's time.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "MALLOC_TRIM_THRESHOLD_": 2**30,
    "MALLOC_TOP_PAD_": 2**26,
}
KERNEL_TROUBLE = (
    "DeadKernelError",
    "Kernel didn't respond",
    "Kernel died",
    "Address already in use",
)


@dataclass(frozen=True)
class Place:
    """Where a run lives. Paths are as given (relative ones below the project root), the same on
    every worker.
    """

    out: str  # results folder
    notebooks: str  # folder of the source notebooks
    cache: str  # $T3_CACHE of the kernels
    marks: Path  # folder of the done-markers of this results folder
    root: str  # folder every kernel starts in
    threads: str = "1"
    gpus: int = 0  # of this machine; worker n of a local cluster gets GPU n
    # Whether torch may use AVX-512. Checkpoints from outside lie in bfloat16, which AVX2 computes
    # 17 times slower; the built-in ones give the same bits on every processor without it.
    wide: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended: state is done, cached, failed or skipped."""

    name: str
    state: str
    key: str = ""
    seconds: float = 0.0
    outputs: dict[str, str] = field(default_factory=dict)  # path below the results folder -> sha256
    error: str = ""  # of a failure: one line; of a skip: the failed job
    cell: str = ""  # of a failure: "cell 4: failing line"


def run_key(job: Job, place: Place) -> str:
    """The job's key together with the content of the files that it reads in the results folder."""
    return content_key([job.key, folder_key(_results(place), job.inputs)])


def finished(job: Job, key: str, place: Place) -> Outcome | None:
    """The outcome in the job's marker if it still holds: whole, same key, outputs present with
    their checksums.
    """
    mark = read_sealed(place.marks / f"{job.name}.json")
    if not mark or mark.get("key") != key:
        return None
    root = _results(place).resolve()
    for name, checksum in mark["outputs"].items():
        path = root / name
        if not path.resolve().is_relative_to(root):
            raise UserError(f"{name!r} leads out of {root}")
        found = sha256_file(path) if path.is_file() else None
        if found is None or found != checksum and not _rewritten(name, found, place):
            return None
    return Outcome(job.name, "cached", key, mark["seconds"], mark["outputs"])


def _rewritten(name: str, checksum: str, place: Place) -> bool:
    """True when another finished job of these results wrote the file again: 03 writes T3's runs as
    02 does.
    """
    marks = map(read_sealed, place.marks.glob("*.json"))
    return any(mark["outputs"].get(name) == checksum for mark in marks if mark)


def execute(job: Job, before: Sequence[Outcome], place: Place) -> Outcome:
    """Run one job in this worker and return how it ended; never raises for what the job did.

    before: outcomes of the jobs in `job.after`. A job whose marker holds (for these inputs) is only
    checked.
    """
    prepare(place)
    # Another worker may still be at this job for a runner that was killed: then wait, and find it
    # done.
    with lock(place.marks / f"{job.name}.lock"):
        key = run_key(job, place)
        if outcome := finished(job, key, place):
            return outcome  # the jobs before it ran, but made what they had made
        _announce(job, place)
        start = time.monotonic()
        try:
            outputs = _run(job, before, place)
            if changed := changed_since_import():
                raise UserError(f"t3lib changed while this ran ({changed[0]}); not kept")
            seconds = round(time.monotonic() - start, 3)
            done = Outcome(job.name, "done", key, seconds, outputs)
            write_sealed(place.marks / f"{job.name}.json", asdict(done))
            return done
        except Exception as error:
            cell, line = where_it_failed(error, job, place)
            seconds = round(time.monotonic() - start, 3)
            return Outcome(job.name, "failed", key, seconds, error=line, cell=cell)


def narrow_vectors() -> dict[str, str]:
    """Environment that keeps torch to AVX2 on a processor with AVX-512: the last bits of sums
    depend on their width.

    So a profile's numbers are the same on both, bit for bit; matrix products, which a library
    decides, take as long.
    """
    try:
        wide = " avx512" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        wide = False
    return {"ATEN_CPU_CAPABILITY": "avx2"} if wide else {}


def prepare(place: Place) -> None:
    """Fix folder, cache, threads, vectors and memory of this worker process; the kernels inherit
    them.
    """
    os.chdir(place.root)
    one = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "T3_THREADS"), place.threads
    )
    os.environ.update(one, T3_CACHE=place.cache, TOKENIZERS_PARALLELISM="false", PYTHONHASHSEED="0")
    os.environ.pop("ATEN_CPU_CAPABILITY", None)
    os.environ.update({} if place.wide else narrow_vectors())
    os.environ.update({name: str(size) for name, size in MEMORY.items()})
    if place.gpus > 1:
        from distributed import get_worker

        with contextlib.suppress(
            ValueError
        ):  # no worker (a test), or one without a number (another cluster)
            os.environ["CUDA_VISIBLE_DEVICES"] = str(int(get_worker().name) % place.gpus)


def _announce(job: Job, place: Place) -> None:
    """Tell the runner, which listens under the name of the results, that this job begins."""
    from distributed import get_worker

    with contextlib.suppress(ValueError):  # no worker (a test)
        get_worker().log_event(place.marks.name, job.name)


def _results(place: Place) -> Path:
    return Path(place.root) / place.out


def _run(job: Job, before: Sequence[Outcome], place: Place) -> dict[str, str]:
    """Run the job; its output files, as names below their folder, with their checksums."""
    root = _results(place)
    if job.kind == "base":
        train_base(job, place)
        return {}
    _remove_earlier(job, before, place)
    copy = root / "notebooks" / f"{job.name}.ipynb"
    run_notebook(Path(place.notebooks) / f"{job.notebook}.ipynb", copy, job.parameters)
    return {str(path.relative_to(root)): sha256_file(path) for path in [*_matches(job, root), copy]}


def train_base(job: Job, place: Place) -> None:
    """Train the base of a job (stage, name, seed) unless it is cached, in a kernel like everything
    else.
    """
    from nbformat import v4, write

    source = place.marks / f"{job.name}.source.ipynb"
    cells, language = [v4.new_code_cell(TRAIN)], {"language_info": {"name": "python"}}
    write(v4.new_notebook(cells=cells, metadata=language), source)
    run_notebook(source, place.marks / f"{job.name}.ipynb", job.parameters)


def _matches(job: Job, root: Path) -> list[Path]:
    return sorted(
        {path for pattern in job.outputs for path in root.glob(pattern) if path.is_file()}
    )


def _remove_earlier(job: Job, before: Sequence[Outcome], place: Place) -> None:
    """Remove the runs that an earlier run of the job wrote, which tables would read, but for those
    of jobs before it.
    """
    root = _results(place)
    owned = {root / name for outcome in before for name in outcome.outputs}
    for path in {*_matches(job, root)} - owned:
        if path.is_relative_to(root / "runs"):
            path.unlink(missing_ok=True)
    (root / "notebooks" / f"{job.name}.ipynb").unlink(missing_ok=True)


def run_notebook(source: Path, copy: Path, parameters: dict[str, Any]) -> None:
    """Papermill into X.partial.ipynb, renamed to `copy` when every cell ran; a kernel that dies is
    started again.
    """
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)
    partial = copy.with_suffix(".partial.ipynb")
    partial.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            papermill.execute_notebook(
                *(str(path).replace("{", "{{").replace("}", "}}") for path in (source, partial)),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                start_timeout=120,
                # Silences the kernel's notes on TCP without encryption and on the interrupt that
                # precedes its shutdown.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
            break
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if (
                attempt == ATTEMPTS
                or not any(sign in text for sign in KERNEL_TROUBLE)
                or hasattr(error, "ename")
            ):
                raise
    remove_local_paths(partial, copy.name, parameters)
    os.replace(partial, copy)


def remove_local_paths(notebook: Path, name: str, parameters: Mapping[str, Any]) -> None:
    """Take the folders of this machine out of an executed notebook, which will be read elsewhere.

    Papermill notes where it read and wrote: the files' names stay. It writes the parameters into a
    cell and into the metadata: there `data` becomes its name and a hash of its files, and the
    folders of models and `tuned` become their names.
    """
    from papermill.translators import PythonTranslator

    world = parameters.get("world", {})
    folders = [parameters.get("tuned"), *parameters.get("models", world.get("models", {})).values()]
    shown = {folder: Path(folder).name for folder in folders if folder and Path(folder).exists()}
    data = parameters.get("data", world.get("data"))
    shown |= {data: data_identity(data)} if data else {}

    def without_folders(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_folders(part) for key, part in value.items()}
        return shown.get(value, value) if isinstance(value, str) else value

    content = read_json(notebook)
    facts = content["metadata"]["papermill"]
    facts |= {"input_path": Path(facts["input_path"]).name, "output_path": name}
    facts["parameters"] = without_folders(facts["parameters"])
    for cell in content["cells"]:
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["source"] = PythonTranslator.codify(facts["parameters"]).splitlines(keepends=True)
    write_json(notebook, content)


def where_it_failed(error: Exception, job: Job, place: Place) -> tuple[str, str]:
    """("cell 4: failing line", "ValueError: boom") of a failed run; cells are counted in the source
    notebook from 1.
    """
    name, said = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    message = f"{name}: {said}".splitlines()[0]
    if not hasattr(error, "ename") or job.kind == "base":  # not a cell: kernel, disk
        return "", message
    cells = read_json(Path(place.notebooks) / f"{job.notebook}.ipynb")["cells"]
    numbers = {"".join(cell["source"]): number for number, cell in enumerate(cells, 1)}
    number = numbers.get(getattr(error, "source", ""), "of the parameters")
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(getattr(error, "traceback", [])))
    arrow = re.search(r"^-+> *\d+ (.*)$", trace, re.M)
    return f"cell {number}: {arrow[1].strip()}" if arrow else f"cell {number}", message
