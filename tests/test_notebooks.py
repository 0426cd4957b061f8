"""The notebooks keep to the rules that make them thin, parameterised and runnable anywhere."""

import ast
import builtins
import json
import re

import nbformat
import numpy as np
import pytest
import yaml
from conftest import ROOT

from t3lib import theory

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters(notebook):
    [cell] = [
        cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])
    ]
    return cell


def test_thin(notebook):
    cells = code_cells(notebook)
    tree = ast.parse("\n".join(re.sub(r"(?m)^[%!].*$", "", cell.source) for cell in cells))
    nodes = list(ast.walk(tree))
    assert len(cells) <= 15 and sum(isinstance(node, ast.stmt) for node in nodes) <= 110
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_runs_anywhere(notebook):
    assert notebook.metadata.kernelspec.name == "python3"
    source = "\n".join(cell.source for cell in code_cells(notebook))
    assert not re.search(
        r"pip install|sys\.path|['\"]/(home|work|root|tmp|Users)\b|os\.chdir", source
    )


def declared(notebook):
    """{name: the statement} of the parameters cell."""
    return {node.target.id: node for node in ast.parse(parameters(notebook).source).body}


def test_one_parameters_cell_of_typed_literals_first(notebook):
    cell = parameters(notebook)
    assert code_cells(notebook)[0] is cell
    lines = cell.source.splitlines()
    for name, node in declared(notebook).items():
        assert type(ast.literal_eval(node.value)).__name__ == node.annotation.id, name
        written = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        assert "  # " in written, f"{name} has no help"


def test_every_parameter_is_used(notebook):
    cell = parameters(notebook)
    rest = "\n".join(
        re.sub(r"(?m)^[%!].*$", "", other.source)
        for other in code_cells(notebook)
        if other is not cell
    )
    used = {node.id for node in ast.walk(ast.parse(rest)) if isinstance(node, ast.Name)}
    assert used >= {*declared(notebook)}


def test_committed_without_outputs_or_errors(notebook):
    assert not notebook.metadata.get("papermill")
    for cell in code_cells(notebook):
        assert not cell.outputs and cell.execution_count is None


@pytest.mark.parametrize("name", ["00_t3_in_five_minutes", "07_your_own_model"])
def test_beginners_meet_no_comprehension(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
    source = "\n".join(cell.source for cell in code_cells(notebook))
    nodes = [*ast.walk(ast.parse(source))]
    assert not [node for node in nodes if isinstance(node, ast.ListComp | ast.DictComp)]
    assert "t3lib.ask(" in source


def test_the_audit_has_few_parameters():
    """It once had 21."""
    assert len(declared(nbformat.read(ROOT / "notebooks" / "06_audit.ipynb", 4))) <= 9


def test_cells_that_assert(notebook):
    if "sliders" not in "".join(
        cell.source for cell in notebook.cells
    ):  # 00 shows; tests check what it shows
        assert any("assert " in cell.source for cell in code_cells(notebook))


def test_profiles_name_only_parameters_that_exist():
    known = {path.stem: {*declared(nbformat.read(path, 4))} for path in NOTEBOOKS}
    profiles = sorted((ROOT / "notebooks" / "profiles").glob("*.yaml"))
    assert profiles
    for path in profiles:
        for name, extra in (yaml.safe_load(path.read_text()) or {}).get("notebooks", {}).items():
            assert set(extra or {}) <= known[name], f"{path.name}: {name}"


def test_a_planted_wrong_number_fails_the_check_cell(tmp_path):
    """The assertions of 02 are live: a run whose Forget Quality was edited is caught by the cell
    that recomputes it.
    """
    cells = code_cells(nbformat.read(ROOT / "notebooks" / "02_tofu_unlearning.ipynb", 4))
    [check] = [cell.source for cell in cells if "ks_2samp" in cell.source]
    import pandas as pd

    records = {name: [{"rouge": 0.5}] for name in ("retain", "wf", "ra")}
    run = {
        "method": "T3",
        "status": "ok",
        "truth_ratio": {"forget": [0.1, 0.2], "reference": [0.1, 0.2]},
        "metrics": {"fq": 1.0, "ks_statistic": 0.0, "mu_rouge": 0.5},
        "records": records,
        "trainable": 1,
    }

    class Study:
        evaluation_rows = {"forget": [1, 2]}
        base = type(
            "Base", (), {"parameters": staticmethod(lambda: [__import__("torch").zeros(2)])}
        )

    scope = {"pd": pd, "study": Study}
    exec(check, scope | {"runs": [run]})
    for metric in ("fq", "mu_rouge"):
        wrong = json.loads(json.dumps(run))
        wrong["metrics"][metric] += 0.01
        with pytest.raises(AssertionError):
            exec(check, scope | {"runs": [wrong]})


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (" * T)", ")"),
        ("- head.logf(pooled)", "- 0.9 * head.logf(pooled)"),
        (".cumsum(1)", ".cumsum(1).roll(1, 1)"),
    ],
)
def test_the_cell_on_logits_notices_a_wrong_recovery(family, right, wrong, tiny_model):
    """p = (p_hat / f^w)^T is the base's own distribution, in GPT-2 as in a Llama."""
    cells = code_cells(nbformat.read(ROOT / "notebooks" / "08_attacks.ipynb", 4))
    imports, model, recovery = (
        cell.source
        for cell in cells
        if any(words in cell.source for words in ("import torch", "GPT2Config(", "recovered ="))
    )
    scope = {}
    exec(imports.partition("\nplaces")[0] + "\n" + model, scope)
    if family == "llama":
        scope |= {"base": tiny_model, "head": scope["T3Head"](32, tiny_model.config.vocab_size)}
    exec(recovery, scope)
    assert recovery.count(right) == 1
    with pytest.raises(AssertionError, match="the base's own distribution"):
        exec(recovery.replace(right, wrong), scope)


# ---- Hidden cells and exercises -----------------------------------------------------------------


def is_hidden(cell):
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def test_only_plumbing_is_hidden(notebook):
    """Parameters, checks of numbers and the training of methods are always seen."""
    for cell in filter(is_hidden, code_cells(notebook)):
        assert "parameters" not in cell.metadata.get("tags", [])
        assert not re.search(r"(run_method|work\.run|unlearn|ks_2samp)\(", cell.source)


@pytest.mark.parametrize("name", ["02_tofu_unlearning", "03_temperature_ablation"])
def test_a_class_sees_little_code(name):
    seen = [
        cell.source
        for cell in code_cells(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4))
        if not is_hidden(cell)
    ]
    assert len("\n".join(seen).splitlines()) <= 60


def answers_of(notebook):
    """{text of an answer: its Python code} of a notebook's exercises."""
    texts = [cell.source for cell in notebook.cells if "<summary>" in cell.source]
    return {text: "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for text in texts}


def test_answers_are_folded_and_their_code_uses_names_of_the_notebook(notebook):
    """A blank line on both sides of the folded text, otherwise it is not read as Markdown."""
    known = {*dir(builtins)}
    for cell in code_cells(notebook):
        nodes = [*ast.walk(ast.parse(re.sub(r"(?m)^[%!].*$", "", cell.source)))]
        known |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        known |= {(n.asname or n.name).split(".")[0] for n in nodes if isinstance(n, ast.alias)}
    for text, code in answers_of(notebook).items():
        assert text.startswith("<details>\n<summary>Answer</summary>\n\n")
        assert text.endswith("\n\n</details>")
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        assert names and {node.id for node in names} <= known | own


def test_three_notebooks_have_an_exercise():
    found = {path.stem[:2] for path in NOTEBOOKS if answers_of(nbformat.read(path, 4))}
    assert found == {"01", "02", "07"}


def test_the_answer_on_tempering_is_what_its_code_prints(capsys):
    notebook = nbformat.read(ROOT / "notebooks" / "01_synthetic_theory.ipynb", 4)
    [(text, code)] = answers_of(notebook).items()
    exec(code, {"np": np, "theory": theory, "peaks": np.array([1e6, 1e10])})
    printed = capsys.readouterr().out
    grown = re.findall(r"([\d,]+)\.\d+ times", printed)
    assert grown == ["10,000", "10,000", "10"] and "By $10^4$, by $10^4$, and by $10$." in text
    [low, high] = re.findall(r"w = (\S+) gives", printed)
    assert f"about {low} and {high}." in text
    for pair in re.findall(r"gives (\S+), T = 4 gives (\S+)", printed):
        assert float(pair[0]) == pytest.approx(float(pair[1]), rel=0.02)
    retain, forget = (
        [float(number) for number in re.findall(f"{side} Error ([\\d.]+)", printed)]
        for side in ("Retain", "Forget")
    )
    assert len(forget) == 3 and retain == sorted(retain) and retain[0] < retain[-1]


# ---- The pictures of executed copies ------------------------------------------------------------


def source_of(cell):
    return "".join(cell["source"]).strip()


def code_below_parameters(notebook):
    """Texts of the code cells, without the parameters and what papermill injects below them."""
    cells = code_cells(notebook)
    return [
        source_of(cell)
        for cell in cells
        if not {"parameters", "injected-parameters"} & {*cell.metadata.get("tags", [])}
    ]


def without_picture(executed):
    """The cells that call `render.show` at their top level and have no picture among their
    outputs.
    """
    found = []
    for cell in code_cells(executed):
        shows = [
            node for node in ast.parse(source_of(cell)).body if "render.show(" in ast.unparse(node)
        ]
        sure = any(isinstance(node, ast.Expr | ast.For) for node in shows)
        if sure and not any(
            key.startswith("image/") for output in cell.outputs for key in output.get("data", {})
        ):
            found.append(source_of(cell))
    return found


EXECUTED = sorted((ROOT / "results").glob("profiles/*/notebooks/*.ipynb"))


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_committed_copies_show_their_figures(path):
    executed = nbformat.read(path, 4)
    today = nbformat.read(ROOT / "notebooks" / f"{path.stem.split('--')[0]}.ipynb", 4)
    if code_below_parameters(executed) != code_below_parameters(today):
        pytest.skip("an older copy: made before the notebook's code changed")
    assert not without_picture(executed)


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_committed_copies_name_no_folder_of_the_machine_that_made_them(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.:/])/(work|root|home|Users|tmp)/", text)
    assert not re.search(r'"(in|out)put_path": "[^"]*/', text)


@pytest.mark.parametrize(
    ("profile", "name"), [("smollm", "00_t3_in_five_minutes"), ("cpu", "07_your_own_model")]
)
def test_a_copy_that_make_does_not_run_is_of_todays_cells(profile, name):
    """Nothing else makes these copies again."""
    places = (
        ROOT / "notebooks" / f"{name}.ipynb",
        ROOT / "results" / "profiles" / profile / "notebooks" / f"{name}.ipynb",
    )
    today, copy = (code_below_parameters(nbformat.read(path, 4)) for path in places)
    assert today == copy
