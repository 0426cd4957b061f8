"""Run one job on a worker: check its marker, remove old files, run it, write its marker. No torch.

The marker of a finished job is the file `done/RESULTS/JOB.json` in the cache. It has the job's key
and a checksum of every output file. A job runs again if its marker is damaged, if its key has
changed, or if an output file is missing or has another checksum. Two jobs may write the same file;
then the checksum in either marker is accepted.

When a job starts, the run files of its earlier run are removed, so that no table reads them. A job
that was killed loses little, because features, base models, trained models and scores are cached by
content. If a base model is missing, the notebook that needs it trains it.
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

from t3lab.files import read_sealed, write_sealed
from t3lab.grid.jobs import Job
from t3lab.identity import changed_since_import, data_identity
from t3lib.core.errors import UserError
from t3lib.core.files import content_key, folder_key, lock, read_json, sha256_file, write_json

OUTPUT_SECONDS = 600  # wait for a cell's last output, which a busy machine may deliver late
ATTEMPTS = 3  # for a kernel that does not start or dies: several starting at once compete for ports
TRAIN = """from t3lab.world import bases
_ = bases.ensure_base(bases.Stage(**stage), name, seed)"""
# Settings of glibc's malloc (ignored elsewhere) that keep freed memory in the process. Every step
# of a training needs the same megabytes again, and having the system clear them each time costs a
# tenth of a small training's time.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "MALLOC_TRIM_THRESHOLD_": 2**30,
    "MALLOC_TOP_PAD_": 2**26,
}


@dataclass(frozen=True)
class Place:
    """The folders and settings of a run, the same on every worker.

    Relative paths are below `root`.
    """

    out: str  # results folder
    notebooks: str  # folder of the source notebooks
    cache: str  # $T3_CACHE of the kernels
    marks: Path  # folder of the markers of finished jobs
    root: str  # folder every kernel starts in
    threads: str = "1"
    gpus: int = 0  # number of this machine's GPUs; worker n of a local cluster uses GPU n
    # Whether torch may use AVX-512. Given checkpoints are in bfloat16, which is 17 times slower
    # with AVX2. Without AVX-512 the models of profile cpu give the same bits on all processors that
    # were tried.
    wide: bool = False


@dataclass(frozen=True)
class Outcome:
    """The end of a job. state: "done", "cached", "failed" or "skipped"."""

    name: str
    state: str
    key: str = ""
    seconds: float = 0.0
    outputs: dict[str, str] = field(default_factory=dict)  # path below the results folder -> sha256
    error: str = ""  # of a failed job: one line; of a skipped job: the failed job


def run_key(job: Job, place: Place) -> str:
    """Return the content key of a job and of the files that it reads in the results folder."""
    return content_key([job.key, folder_key(_results(place), job.inputs)])


def finished(job: Job, key: str, place: Place) -> Outcome | None:
    """Return the outcome in a job's marker if it is still valid, else None.

    It is valid if it is intact, has this key, and all output files have their checksums.
    """
    mark = read_sealed(place.marks / f"{job.name}.json")
    if not mark or mark.get("key") != key:
        return None
    for name, checksum in mark["outputs"].items():
        path = _results(place) / name
        found = sha256_file(path) if path.is_file() else None
        if found is None or found != checksum and not _rewritten(name, found, place):
            return None
    return Outcome(job.name, "cached", key, mark["seconds"], mark["outputs"])


def _rewritten(name: str, checksum: str, place: Place) -> bool:
    """Return True if another finished job wrote this file with this checksum.

    Notebook 03, for example, writes the same runs of T3 as 02 does.
    """
    marks = map(read_sealed, place.marks.glob("*.json"))
    return any(mark["outputs"].get(name) == checksum for mark in marks if mark)


def execute(job: Job, before: Sequence[Outcome], place: Place) -> Outcome:
    """Run one job in this worker and return its outcome, also if it fails.

    before: outcomes of the jobs in `job.after`. If one of them failed, this job is skipped. A job
    with `partial` is skipped only if all of them failed. A job that is finished for these inputs is
    not run again.
    """
    failed = [each for each in before if each.state in ("failed", "skipped")]
    if failed and not (job.partial and len(failed) < len(before)):
        first = failed[0]
        cause = first.name if first.state == "failed" else first.error
        return Outcome(job.name, "skipped", error=cause)

    prepare(place)

    # Another worker may still run this job for a runner that was killed. Then this one waits, and
    # finds it finished.
    with lock(place.marks / f"{job.name}.lock"):
        key = run_key(job, place)
        if outcome := finished(job, key, place):
            return outcome  # the jobs before it ran again and wrote the same files

        start = time.monotonic()
        try:
            outputs = _run(job, before, place)
            if changed := changed_since_import():
                raise UserError(
                    f"t3lib changed while this ran ({changed[0]}): run the same command again"
                )
            seconds = round(time.monotonic() - start, 3)
            done = Outcome(job.name, "done", key, seconds, outputs)
            write_sealed(place.marks / f"{job.name}.json", asdict(done))
            return done
        except Exception as error:
            seconds = round(time.monotonic() - start, 3)
            return Outcome(job.name, "failed", key, seconds, error=what_failed(error, job))


def narrow_vectors() -> dict[str, str]:
    """Return environment variables that restrict torch to AVX2 on a processor with AVX-512.

    The last bits of sums depend on the width of vectors, so profile cpu then has the same numbers
    on both kinds of processor. Matrix products take as long as before, because the library that
    computes them ignores this setting. It still chooses blocks for each processor, so wider models,
    such as those of tofu-cpu, can come out differently.
    """
    try:
        wide = " avx512" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        wide = False
    return {"ATEN_CPU_CAPABILITY": "avx2"} if wide else {}


def prepare(place: Place) -> None:
    """Set working folder, cache, threads, vector width and memory options of this worker process.

    The kernels that it starts inherit them.
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


def _results(place: Place) -> Path:
    return Path(place.root) / place.out


def _run(job: Job, before: Sequence[Outcome], place: Place) -> dict[str, str]:
    """Run the job; return its output files {path below the results folder: checksum}."""
    root = _results(place)
    if not job.notebook:
        train_base(job, place)
        return {}
    _remove_earlier(job, before, place)
    copy = root / "notebooks" / f"{job.name}.ipynb"
    run_notebook(Path(place.notebooks) / f"{job.notebook}.ipynb", copy, job.parameters)
    return {str(path.relative_to(root)): sha256_file(path) for path in [*_matches(job, root), copy]}


def train_base(job: Job, place: Place) -> None:
    """Train the base model of a job, unless it is cached, in a kernel of its own."""
    from nbformat import v4, write

    source = place.marks / f"{job.name}.source.ipynb"
    cells, language = [v4.new_code_cell(TRAIN)], {"language_info": {"name": "python"}}
    write(v4.new_notebook(cells=cells, metadata=language), source)
    run_notebook(source, place.marks / f"{job.name}.ipynb", job.parameters)


def _matches(job: Job, root: Path) -> list[Path]:
    """Return the files that match the job's output patterns."""
    return sorted(
        {path for pattern in job.outputs for path in root.glob(pattern) if path.is_file()}
    )


def _remove_earlier(job: Job, before: Sequence[Outcome], place: Place) -> None:
    """Remove run files and the executed copy of the job's earlier run.

    Files that jobs before it have written stay.
    """
    root = _results(place)
    owned = {root / name for outcome in before for name in outcome.outputs}
    for path in {*_matches(job, root)} - owned:
        if path.is_relative_to(root / "runs"):
            path.unlink(missing_ok=True)
    (root / "notebooks" / f"{job.name}.ipynb").unlink(missing_ok=True)


def run_notebook(source: Path, copy: Path, parameters: dict[str, Any]) -> None:
    """Run a notebook with papermill; write `copy` when all cells have run.

    The kernel is that of this Python, also if JUPYTER_PATH or a person's own folder has another
    environment's under the same name. Until the end the copy is called X.partial.ipynb. A kernel
    that does not start or dies is started again, `ATTEMPTS` times in all. Errors of cells are
    raised.
    """
    import papermill
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(AsyncKernelManager):
        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])  # without folders ipykernel's own is left

    logging.getLogger("papermill").setLevel(logging.ERROR)
    partial = copy.with_suffix(".partial.ipynb")
    partial.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            papermill.execute_notebook(
                *(str(path).replace("{", "{{").replace("}", "}}") for path in (source, partial)),
                parameters=parameters,
                kernel_name="python3",
                kernel_manager_class=ThisPython,
                progress_bar=False,
                start_timeout=120,
                iopub_timeout=OUTPUT_SECONDS,
                # Hides the kernel's messages about unencrypted TCP and about the interrupt before
                # its shutdown.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
            break
        except Exception as error:
            if attempt == ATTEMPTS or hasattr(error, "ename"):  # of a cell that raised an error
                raise
    remove_local_paths(partial, copy.name, parameters)
    os.replace(partial, copy)


def remove_local_paths(notebook: Path, name: str, parameters: Mapping[str, Any]) -> None:
    """Remove the folders of this machine from an executed notebook, which will be read elsewhere.

    Papermill records where it read and wrote, and the parameters, in a cell and in the metadata. Of
    its paths only file names stay. `data` becomes its name and a hash of its files; the folders of
    models, `tuned` and `out` become their names.
    """
    from papermill.translators import PythonTranslator

    world = parameters.get("world", {})
    folders = [parameters.get("tuned"), parameters.get("out")]
    folders += parameters.get("models", world.get("models", {})).values()
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


def what_failed(error: Exception, job: Job) -> str:
    """Return one line for a failed job, such as `cell 4: failing line: ValueError: its message`.

    Cells are counted from 1 in the source notebook. An error outside a cell has its message alone.
    """
    name, said = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    message = f"{name}: {said}".splitlines()[0]
    if not hasattr(error, "ename") or not job.notebook:  # not an error of a cell
        return message
    # Papermill counts from 0, but one cell more, in which it sets the parameters.
    number = getattr(error, "cell_index", "")
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(getattr(error, "traceback", [])))
    arrow = re.search(r"^-+> *\d+ (.*)$", trace, re.M)
    return f"cell {number}: {arrow[1].strip()}: {message}" if arrow else f"cell {number}: {message}"
