// The sliders of notebooks 00_explore and 07_your_own_model, in JupyterLab, in VS Code and on the site.
// No kernel is needed: t3lab/explore stores what a model says, and this script computes with it.
// The functions that it returns compute. The rest draws.
var t3Widget = (() => {
  const { exp, log, log10, max, min, PI, sqrt } = Math;
  const YELLOW = "#dda200", GREY = "#9a9a9a", BLUE = "#2f7fc1";
  const SHOWN = 10, VISIBLE = 0.005; // tokens in a table at most, and the smallest bar

  // Eq. 5 at one place of the true answer, for T number t and w number k of data: p,
  // p^(1/T) / Σ p^(1/T), f^w, and p̂ = p^(1/T) f^w / Σ p^(1/T) f^w of every stored token, the largest
  // p or p̂ first. The two sums over the whole vocabulary are stored as logarithms, z and zf.
  function nextToken(data, place, t, k) {
    const T = data.T[t], w = data.w[k];
    const rows = place.words.map((word, i) => {
      const logp = place.logp[i], tilt = w * place.logf[i];
      return {
        word, true: i === place.target, p: exp(logp), tempered: exp(logp / T - place.z[t]),
        f: exp(tilt), pHat: exp(logp / T + tilt - place.zf[t][k]),
      };
    });
    return rows.sort((a, b) => max(b.p, b.pHat) - max(a.p, a.pHat));
  }

  // Probability per token of the true answer (geometric mean): [of the base, of T3].
  function perToken(data, places, t, k) {
    const rows = places.map((place) => nextToken(data, place, t, k).find((row) => row.true));
    return ["p", "pHat"].map((name) =>
      exp(rows.reduce((sum, row) => sum + log(row[name]), 0) / rows.length));
  }

  // The place whose token begins the words that give the answer away, else the first. Without such
  // words: the place whose true token has the smallest f.
  function opening(places, words) {
    const tilts = places.map((place) => place.logf[place.target]);
    if (words === undefined) return tilts.indexOf(min(...tilts));
    const last = places.at(-1), at = (last.before + last.words[last.target]).indexOf(words);
    return max(0, places.filter((place) => place.before.length <= at).length - 1);
  }

  // The densities and classifiers on a grid: p = (1 − γ) p_r + γ p_f with p_r = N(1, 1) and
  // p_f = N(0, v_f); f* = (1 − γ) p_r / p; f̂ = σ(φ·[1, z, z²]); p̂ = p^(1/T) f̂ / Z (Eqs. 1, 2, 8).
  function curves(data, v_f, fit, t) {
    const sd = sqrt(v_f), T = data.T[t], [a, b, c] = fit.phi;
    const normal = (z, mean, v) => exp(-((z - mean) ** 2) / (2 * v)) / sqrt(2 * PI * v);
    const grid = [...Array(281).keys()].map((i) => -2.5 + i / 40);
    grid.push(...[...Array(121).keys()].map((i) => (i / 10 - 6) * sd).filter((z) => z > -2.5));
    return grid.sort((x, y) => x - y).map((z) => {
      const p_r = normal(z, 1, 1), p_f = normal(z, 0, v_f), p = (1 - data.gamma) * p_r + data.gamma * p_f;
      const f = 1 / (1 + exp(-(a + z * (b + z * c))));
      return { z, p, p_r, p_f, f, best: (1 - data.gamma) * p_r / p, pHat: p ** (1 / T) * f / exp(fit.z[t]) };
    });
  }

  // ---- elements --------------------------------------------------------------------------------
  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "g", "path", "line", "text"].includes(tag);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const written = (value) => (value > 0 && value < 0.001 ? value.toExponential() : String(value));

  // A slider over a list of values. Returns the label to show; `index` is the chosen one.
  function slider(name, values, start, changed) {
    const input = make("input", { type: "range", min: 0, step: 1 }), output = make("output");
    const label = make("label", {}, name, input, output);
    label.set = (list, index) => {
      label.values = list;
      input.max = list.length - 1;
      input.value = label.index = min(index, list.length - 1);
      output.textContent = written(list[label.index]);
      input.setAttribute("aria-valuetext", output.textContent);
      input.disabled = list.length < 2;
    };
    label.set(values, start);
    input.addEventListener("input", () => { label.set(label.values, +input.value); changed(); });
    return label;
  }

  const bar = (p, colour) => {
    const mark = make("span", { class: "bar" });
    mark.style.background = colour;
    mark.style.width = `${100 * max(p, 0)}%`;
    return make("td", {}, max(p, 0).toFixed(3), mark);
  };

  const line = (name, text) => make("p", { class: "text" }, make("b", {}, `${name}: `), text);

  // ---- one question to forget and one to keep --------------------------------------------------
  function language(root, data) {
    const chosen = data.sides.map(() => 0);
    const question = (s) => data.sides[s][chosen[s]];
    const boxes = data.sides.map(() => make("div"));
    const T = slider("T", data.T, data.start[0], draw), w = slider("w", data.w, data.start[1], draw);
    const position = slider("position", [0], 0, draw);
    const longest = () => [...Array(max(...data.sides.map((_, s) => question(s).places.length))).keys()];
    const wanted = () => opening(question(0).places, data.secrets[chosen[0]]);

    function table(s, t, k) {
      const { places } = question(s), place = places[min(position.index, places.length - 1)];
      const every = nextToken(data, place, t, k), right = every.find((row) => row.true);
      let rows = every.filter((row) => max(row.p, row.pHat) >= VISIBLE).slice(0, SHOWN);
      if (!rows.includes(right)) rows = [...rows.slice(0, SHOWN - 1), right];
      const rest = (name) => 1 - rows.reduce((sum, row) => sum + row[name], 0);
      const strength = data.w.length > 1 ? `f^${data.w[k]}` : "f";
      const heads = ["next token", "base p", `p^(1/${data.T[t]})`, `tilt ${strength}`, "unlearned p̂"];
      const body = rows.map((row) => make("tr", row.true ? { class: "true" } : {},
        make("th", { scope: "row" }, row.word.replaceAll(" ", "␣").replaceAll("\n", "⏎") + (row.true ? " ◂" : "")),
        bar(row.p, YELLOW), bar(row.tempered, GREY), make("td", {}, `× ${row.f.toFixed(3)}`), bar(row.pHat, BLUE)));
      body.push(make("tr", {}, make("th", { scope: "row" }, "all others"),
        bar(rest("p"), YELLOW), bar(rest("tempered"), GREY), make("td"), bar(rest("pHat"), BLUE)));
      return make("table", {},
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...body));
    }

    function draw() {
      position.set(longest(), position.index);
      const t = T.index, k = w.index, dials = `T = ${data.T[t]}` + (data.w.length > 1 ? `, w = ${data.w[k]}` : "");
      boxes.forEach((box, s) => {
        const { truth, places, answers } = question(s), mean = perToken(data, places, t, k);
        const { before } = places[min(position.index, places.length - 1)];
        const base = answers[0], now = answers[1 + t * data.w.length + k];
        box.replaceChildren(
          line("answer in the row, so far", make("span", {}, before, make("b", {}, "▮"))), table(s, t, k),
          make("p", {}, `answer in the row, probability per token: base ${mean[0].toFixed(3)}, unlearned ${mean[1].toFixed(3)}`),
          line("answer in the row", truth), line("base", base[0]), line(dials, now[0]),
          line("base, sampled", base[1]), line(`${dials}, sampled`, now[1]));
      });
    }

    const panels = data.sides.map((questions, s) => {
      const options = questions.map((each, i) => make("option", { value: i }, each.question));
      const select = make("select", { "aria-label": data.names[s] }, ...options);
      select.addEventListener("change", () => {
        chosen[s] = +select.value;
        if (s === 0) position.set(longest(), wanted());
        draw();
      });
      return make("div", {}, make("b", {}, data.names[s]), select, boxes[s]);
    });
    position.set(longest(), wanted());
    const controls = make("div", { class: "controls" }, T, ...(data.w.length > 1 ? [w] : []), position);
    root.replaceChildren(controls, make("div", { class: "sides" }, ...panels));
    draw();
  }

  // ---- a spike to forget -----------------------------------------------------------------------
  function gaussians(root, data) {
    const dials = ["T", "v_f", "n", "seed"].map((name, i) => slider(name, data[name], data.start[i], draw));
    const words = make("p", { "aria-live": "polite" }), picture = make("div");
    const X = (z) => 60 + (z + 2.5) * 80;
    // linear up to 1 and logarithmic above, because the spike is up to 400 high
    const density = (y) => 300 - 180 * min(y, 1) - (y > 1 ? 40 * log10(y) : 0);
    const share = (y) => 470 - 130 * y;

    const path = (points, Y, name, colour, more = {}) => make("path", {
      d: `M${points.map((point) => `${X(point.z).toFixed(1)},${Y(point[name]).toFixed(1)}`).join("L")}`,
      fill: "none", stroke: colour, "stroke-width": 1.5, ...more,
    });
    const rule = (x1, y1, x2, y2, more = {}) => make("line", { x1, y1, x2, y2, stroke: "currentColor", ...more });
    const text = (x, y, words, more = {}) => make("text", { x, y, ...more }, words);

    function draw() {
      const [t, v, n, seed] = dials.map((dial) => dial.index), fit = data.fits[v][n][seed];
      const points = curves(data, data.v_f[v], fit, t), count = data.n[n];
      const labels = data.labels[seed].slice(0, count), kept = labels.reduce((sum, label) => sum + label, 0);
      const faint = { opacity: 0.25 }, dotted = { "stroke-dasharray": "2 3" };
      const scale = [0, 0.2, 0.4, 0.6, 0.8, 1, 10, 100].map((y) => text(54, density(y) + 4, String(y), { "text-anchor": "end" }));
      const ticks = [-2, -1, 0, 1, 2, 3, 4].map((z) => text(X(z), 488, String(z), { "text-anchor": "middle" }));
      const samples = labels.map((label, i) => {
        const x = X(label + data.noise[seed][i] * (label ? 1 : sqrt(data.v_f[v])));
        return rule(x, 328, x, 336, { stroke: label ? BLUE : YELLOW });
      });
      const legend = [["p_r, to keep", BLUE], ["p = (1 − γ) p_r + γ p_f", YELLOW], ["p̂, unlearned", "currentColor"]]
        .flatMap(([name, colour], i) => [rule(450, 24 + 18 * i, 476, 24 + 18 * i, { stroke: colour, "stroke-width": 2.5 }), text(482, 28 + 18 * i, name)]);
      const title = `Densities and classifiers at T = ${data.T[t]}`;
      picture.replaceChildren(make("svg", { viewBox: "0 0 640 505", role: "img", "aria-label": title },
        rule(60, density(0), 620, density(0), faint), rule(60, density(1), 620, density(1), faint),
        rule(60, share(0), 620, share(0), faint), rule(60, share(1), 620, share(1), faint),
        ...scale, ...ticks, text(340, 503, "z", { "text-anchor": "middle" }), text(64, 12, "density (above 1: logarithmic)"),
        text(54, share(0) + 4, "0", { "text-anchor": "end" }), text(54, share(1) + 4, "1", { "text-anchor": "end" }),
        text(64, 322, "samples, and P(keep): f̂, f* dotted"), ...samples, ...legend,
        path(points, density, "p_r", BLUE, { "stroke-width": 3, opacity: 0.6 }), path(points, density, "p_f", YELLOW, dotted),
        path(points, density, "p", YELLOW), path(points, density, "pHat", "currentColor"),
        path(points, share, "best", "currentColor", dotted), path(points, share, "f", "currentColor")));
      words.replaceChildren(
        make("b", {}, `Retain Error ${fit.retain[t].toFixed(4)}, Forget Error ${fit.forget[t].toFixed(4)}`),
        ` ${kept} samples to keep and ${count - kept} to forget`);
    }

    root.replaceChildren(make("div", { class: "controls" }, ...dials), words, picture);
    draw();
  }

  // ---- ------------------------------------------------------------------------------------------
  const views = { language, gaussians };
  const roots = typeof document === "undefined" ? [] : document.querySelectorAll(".t3-widget:not([data-live])");
  for (const root of roots) {
    const data = JSON.parse(root.querySelector("script").textContent);
    root.dataset.live = "";
    root.dataset.lmSuppressShortcuts = "true"; // or JupyterLab's shortcuts take a slider's arrow keys
    views[data.view](root, data);
  }
  return { nextToken, perToken, opening, curves };
})();
