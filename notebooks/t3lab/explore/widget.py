"""One piece of HTML with sliders that need no kernel, in JupyterLab, in VS Code and on the site.

The script is report/templates/widget.js. It computes with the numbers that `language` and
`gaussians` stored, and loads nothing.
"""

from typing import Any

import pandas as pd

from t3lab.report import render


def page(view: str, static: pd.DataFrame, **data: Any) -> render.Html:
    """Write the HTML of some sliders.

    view: "language" or "gaussians", a function of widget.js.
    static: a table that is shown where scripts may not run, as on GitHub.
    data: what the view reads, as JSON.
    """
    note = "Where scripts may run, as in a trusted notebook, sliders replace this table."
    texts = {"static": render.html(static, note=note), "data": {"view": view, **data}}
    return render.Html(render.TEMPLATES.get_template("widget.html").render(texts))
