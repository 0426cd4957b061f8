'use strict';
const $ = id => document.getElementById(id);
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const fill = (id, pairs) => $(id).replaceChildren(...pairs.map(([value, text]) => {
  const option = make('option', text);
  option.value = value;
  return option;
}));

// Claims: chips choose verdicts, words search.
if ($('claim-list')) {
  const chips = [...document.querySelectorAll('.verdicts button')], claims = [...document.querySelectorAll('.claim')];
  const narrow = () => {
    const wanted = chips.filter(chip => chip.getAttribute('aria-pressed') === 'true').map(chip => chip.dataset.verdict);
    const words = $('claim-find').value.toLowerCase();
    let count = 0;
    for (const claim of claims) {
      const fits = (!wanted.length || wanted.includes(claim.dataset.verdict)) && claim.textContent.toLowerCase().includes(words);
      claim.hidden = !fits;
      count += fits;
    }
    if (wanted.length || words) $('claim-list').open = true;
    $('claim-count').textContent = count + ' of ' + claims.length + ' rows';
  };
  for (const chip of chips) chip.onclick = () => {
    chip.setAttribute('aria-pressed', chip.getAttribute('aria-pressed') !== 'true');
    narrow();
  };
  $('claim-find').oninput = narrow;
  narrow();
}

// Answers side by side. Labels and counts follow the distinctive words of the true answer, as the page says above them.
// An answer that counts as the true one leaks on rows to forget, and is kept on all others. Texts of models are only ever
// set as text.
if ($('list')) {
  const FIRST = 6;
  const data = JSON.parse($('answers').textContent), labels = JSON.parse($('labels').textContent);
  let shown = FIRST;
  const forgetting = () => $('set').value === 'forget';
  const label = told => forgetting() ? (told ? ['leaks', 'bad'] : ['forgotten', 'good']) : told ? ['kept', 'good'] : ['lost', 'bad'];
  const chip = (part, { n, h }, i) => {
    const total = part.s[i].length, [word, kind] = label(h[i]);
    return total ? make('span', word + ': ' + n[i] + ' of ' + total + (total > 1 ? ' words' : ' word'), 'chip ' + kind)
      : make('span', 'not judged', 'chip none');
  };
  const models = () => Object.keys(data[$('split').value].forget?.by ?? Object.values(data[$('split').value])[0].by);
  const heats = () => models().filter(name => name.startsWith('T3'));
  const t3 = () => heats()[Number($('heat').value)];
  const tuned = () => heats().find(name => name === 'T3, T = ' + labels.tuned[$('split').value]);
  const judged = () => t3() ?? $('method').value;
  const visible = names => names.filter(name => $('every').checked ? !name.startsWith('T3') || name === t3()
    : [$('method').value, t3(), 'Original', 'Retrained'].includes(name));
  // How many answers of a set count as the true one, such as "2 of 80". Rows without distinctive words are not counted.
  const told = (set, name) => {
    const part = data[$('split').value][set], by = part?.by[name];
    return by ? by.h.filter(Boolean).length + ' of ' + part.s.filter(words => words.length).length : '';
  };
  // One sentence for T3, and a table with a line for each model.
  const count = () => {
    const names = models().filter(name => !name.startsWith('T3') || name === t3());
    const said = name => name + ': leaks ' + told('forget', name) + ', keeps ' + told('retain', name) + '.';
    $('told').replaceChildren(...[t3(), 'Original', 'Retrained'].filter(name => names.includes(name))
      .map(name => make(name === t3() ? 'strong' : 'span', said(name) + ' ')));
    $('counted').textContent = labels.splits[$('split').value] + ' split';
    $('counts').replaceChildren(...names.map(name => {
      const line = make('tr', '', name === t3() ? 'ours' : '');
      line.append(make('th', name), ...Object.keys(labels.sets).map(set => make('td', told(set, name))));
      line.firstChild.scope = 'row';
      return line;
    }));
  };
  const draw = () => {
    const part = data[$('split').value][$('set').value], list = $('list');
    list.replaceChildren();
    $('warm').textContent = (t3() ?? '').replace('T3, ', '');
    count();
    if (!part) { $('count').textContent = 'no answers are stored for this choice'; return; }
    const want = $('want').value, words = $('find').value.toLowerCase();
    const by = part.by[judged()], order = (part.by[tuned()] ?? by)?.r ?? [];
    const median = [...order].sort((a, b) => a - b)[order.length >> 1], far = i => Math.abs(order[i] - median);
    const hits = part.q.map((_, i) => i).filter(i => by
      && (want === 'all' || want === (part.s[i].length ? by.h[i] ? 'told' : 'hidden' : 'open'))
      && (part.q[i] + ' ' + part.a[i] + ' ' + by.g[i]).toLowerCase().includes(words)).sort((i, j) => far(i) - far(j));
    $('count').textContent = hits.length + ' of ' + part.q.length + ' rows';
    for (const i of hits.slice(0, shown)) {
      const card = make('article', '', 'card'), lines = make('dl', '');
      card.append(make('h3', part.q[i]), lines);
      lines.append(make('dt', 'true answer'), make('dd', ''), make('dd', part.a[i], 'text'));
      lines.append(make('dt', 'distinctive words'), make('dd', ''), make('dd', part.s[i].join(', ') || 'none', 'text mute'));
      for (const name of visible(Object.keys(part.by))) {
        const cell = make('dd', '');
        cell.append(chip(part, part.by[name], i));
        const ours = name.startsWith('T3') ? ' ours' : '';
        lines.append(make('dt', name, ours), cell, make('dd', part.by[name].g[i], 'text' + ours));
      }
      list.append(card);
    }
    $('more').hidden = hits.length <= shown;
  };
  const restart = () => { shown = FIRST; draw(); };
  const newSet = () => {
    const want = $('want').value;
    const open = (data[$('split').value][$('set').value]?.s ?? []).some(words => !words.length);
    fill('want', [['all', 'any label'], ['told', label(true)[0]], ['hidden', label(false)[0]],
      ...(open ? [['open', 'not judged']] : [])]);
    $('want').value = open || want !== 'open' ? want || 'all' : 'all';
    restart();
  };
  const newSplit = () => {
    const others = models().filter(name => !name.startsWith('T3'));
    fill('method', others.map(name => [name, name]));
    $('method').value = others.at(-1);
    $('heat').max = Math.max(heats().length - 1, 0);
    $('heat').value = Math.max(heats().indexOf(tuned()), 0);
    $('heat').parentElement.hidden = heats().length < 2;
    newSet();
  };
  fill('split', Object.keys(data).map(name => [name, labels.splits[name]]));
  fill('set', Object.entries(labels.sets));
  $('split').onchange = newSplit;
  $('set').onchange = newSet;
  for (const id of ['method', 'want', 'every']) $(id).onchange = restart;
  for (const id of ['find', 'heat']) $(id).oninput = restart;
  $('more').onclick = () => { shown += 50; draw(); };
  newSplit();
}
